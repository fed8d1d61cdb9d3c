"""A process that has loaded torch once and forks whoever is to run: that takes milliseconds, and the memory of one.

Orders come in files (memfd, so they are of any size), each with those that a child gets, as packets on its standard input;
answers, and what children say that get no output of their own, go out as JSON lines.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil

from hostlib.errors import RunError
from hostlib.system.extras import require_installed
from hostlib.system.network_namespace import CLONE_NEWNET
from hostlib.system.process import NAMESPACES, die_with_parent

START_S, ANSWER_S = 120.0, 10.0
# A library that starts threads when it is loaded cannot be forked.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ORDER = b"o"  # what goes with the files of one
MOST_FILES = 3
PR_SET_NAME = 15
FAILED = 70  # exit status after an exception that is none of ours

Event = dict[str, Any]


@dataclass(slots=True)
class ForkServer:
    """The end of whoever has processes forked.

    Attributes:
        ended: pid -> exit status; below 0 the signal that killed it.
    """

    process: subprocess.Popen[bytes]
    orders: socket.socket
    ended: dict[int, int] = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)
    _answers: list[Event] = field(default_factory=list)
    _heard: bytes = b""
    _ready: bool = False

    def fork(
        self,
        module: str,
        environment: dict[str, str],
        netns: str | None,
        errors: int,
        output: int | None = None,
        name: str = "",
    ) -> int:
        """Start `main()` of a module in a network namespace; its pid.

        Args:
            netns: its name, or a path that leads to it; None for this process's own.
            errors, output: descriptors, of what its standard error and output are; None: its output is heard by `events`.
            name: what `ps -o comm` calls it, 15 characters at most.

        Raises:
            RunError: whoever forks is gone, could not load what it was told to, or does not answer.
        """
        self._wait()
        order = {"module": module, "environment": environment, "netns": netns, "name": name}
        outputs = [errors] if output is None else [errors, output]
        try:
            with os.fdopen(os.memfd_create("order"), "wb") as file:
                file.write(json.dumps(order).encode())
                file.flush()
                socket.send_fds(self.orders, [ORDER], [file.fileno(), *outputs])
        except (BrokenPipeError, ConnectionResetError):
            raise RunError(f"the process that forks others is gone: status {self.process.wait()}") from None
        except OSError as error:
            raise RunError(f"the process that forks others cannot be told to: {error.strerror}") from error
        return int(self._answer(ANSWER_S)["pid"])

    def _wait(self) -> None:
        """Until it has loaded everything: its starter may do other things meanwhile."""
        if not self._ready:
            self._answer(START_S)
            self._ready = True

    def events(self, seconds: float) -> list[Event]:
        """What children said, waiting so long for news."""
        self.listen(seconds)
        events, self._events = self._events, []
        return events

    def listen(self, seconds: float) -> None:
        """Hear of ends, and of what is for `events`, waiting so long for news.

        Raises:
            RunError: whoever forks is gone.
        """
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return
        chunk = os.read(self.process.stdout.fileno(), 1 << 16)
        if not chunk:
            raise RunError(f"the process that forks others ended with status {self.process.wait()}")
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "status" in message:
                self.ended[message["pid"]] = message["status"]
            elif "event" in message:
                self._events.append(message)
            else:
                self.ended.pop(message.get("pid", 0), None)  # numbers come again
                self._answers.append(message)

    def _answer(self, within_s: float) -> Event:
        give_up = time.monotonic() + within_s
        while not self._answers:
            if time.monotonic() > give_up:
                raise RunError(f"the process that forks others says nothing within {within_s:.0f} s")
            self.listen(0.1)
        answer = self._answers.pop(0)
        if "error" in answer:
            raise RunError(answer["error"])
        return answer


@contextmanager
def fork_server(*modules: str, folder: Path | None = None) -> Iterator[ForkServer]:
    """One, for as long as the block runs, which loads while its starter goes on; what it forked ends with it.

    Args:
        modules: that it loads, for all.
        folder: where it runs.

    Raises:
        ModuleNotFoundError: torch, which all of them load, is not installed.
    """
    require_installed("torch")
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, its:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getpid()), *modules],
            cwd=folder,
            env={**os.environ, **SINGLE_THREADED, "TORCH_CPP_LOG_LEVEL": "ERROR"},
            stdin=its.fileno(),
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        its.close()
        assert process.stdout is not None
        try:
            yield ForkServer(process, mine)
        finally:
            process.kill()  # Whether or not it has loaded everything by now; the kernel ends what it forked.
            process.wait()
            process.stdout.close()


# ---- the process itself --------------------------------------------------------------------------------------------


def say(**fields: object) -> None:
    """A line for whoever has processes forked; whole, as long as it is short."""
    os.write(sys.stdout.fileno(), json.dumps(fields).encode() + b"\n")


def _reap(*_: object) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        say(pid=pid, status=os.waitstatus_to_exitcode(status))


def _be(order: Event, outputs: list[int], parent: int) -> None:
    die_with_parent()
    if os.getppid() != parent:
        return  # It died before.
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    ctypes.CDLL(None).prctl(PR_SET_NAME, order["name"].encode() or b"python")
    for stream, descriptor in zip((0, 2, 1), (os.open(os.devnull, os.O_RDONLY), *outputs), strict=False):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    if order["netns"] is not None:
        with Path(NAMESPACES, order["netns"]).open() as entry:
            if ctypes.CDLL(None, use_errno=True).setns(entry.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), order["netns"])
    os.environ.update(order["environment"])
    importlib.import_module(order["module"]).main()
    sys.stdout.flush()


def _orders() -> Iterator[tuple[Event, list[int]]]:
    """What to fork, and what its output goes to, as long as somebody asks."""
    with socket.socket(fileno=os.dup(0)) as asked:
        while True:
            there, files, _, _ = socket.recv_fds(asked, len(ORDER), MOST_FILES)
            if not there:
                return
            with os.fdopen(files[0], "rb") as order:
                order.seek(0)  # Its writer is at the end of it.
                yield json.load(order), files[1:]


def _give_up(why: str) -> NoReturn:
    say(error=why)
    os._exit(1)


def main() -> None:
    starter, *modules = sys.argv[1:]
    # Here, and not between fork and exec: what Python does there loses a Ctrl-C.
    die_with_parent()
    if os.getppid() != int(starter):
        return  # It died before.
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            _give_up(f"{module} cannot be loaded: {error}")
    threads = psutil.Process().num_threads()
    if threads != 1:
        _give_up(f"what is loaded started threads, {threads} in all: this process must not be forked")
    signal.signal(signal.SIGCHLD, _reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forker = os.getpid()
    say(ready=True)
    for order, outputs in _orders():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # A child's end is told after its start.
        pid = os.fork()
        if pid == 0:
            try:
                _be(order, outputs, forker)
                os._exit(0)
            except Exception as error:
                os.write(2, f"error: {type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(FAILED)
        for descriptor in outputs:
            os.close(descriptor)
        say(pid=pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os._exit(0)


if __name__ == "__main__":
    main()
