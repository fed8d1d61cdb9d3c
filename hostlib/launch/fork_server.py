"""A process that has loaded torch once and forks others from it, in milliseconds and with shared memory.

Requests come as packets on its standard input, with the file descriptors for the child; the request itself is a memfd,
so it may be of any size. Answers, and the output of children without output files of their own, go out as JSON lines.
"""

from __future__ import annotations

import ctypes
import faulthandler
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
# A process whose libraries started threads must not be forked.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ORDER = b"o"  # size of the message that carries the file descriptors
MOST_FILES = 3
PIPE_BYTES = 1 << 16
PR_SET_NAME = 15
STACKS = signal.SIGUSR1  # a child writes what its threads are doing to its standard error
FAILED = 70  # exit status after an unexpected exception

Event = dict[str, Any]


@dataclass(slots=True)
class ForkServer:
    """Client of the fork server.

    Attributes:
        ended: pid -> exit status; negative: the signal that killed it.
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
        """Start `main()` of a module in a network namespace; returns its pid.

        Args:
            netns: its name, or a path to it; None for this process's own.
            errors, output: file descriptors for its standard error and output. Without `output`, `events` returns what
                it prints.
            name: the process name that `ps -o comm` shows, at most 15 characters.

        Raises:
            RunError: the fork server is gone, could not import a module, or does not answer.
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
            raise RunError(f"the fork server is gone: status {self.process.wait()}") from None
        except OSError as error:
            raise RunError(f"cannot send to the fork server: {error.strerror}") from error
        return int(self._answer(ANSWER_S)["pid"])

    def _wait(self) -> None:
        """Wait until it has loaded its modules, so that its starter can do other things first."""
        if not self._ready:
            self._answer(START_S)
            self._ready = True

    def events(self, seconds: float) -> list[Event]:
        """Return the children's events, waiting up to `seconds` for new ones."""
        self.listen(seconds)
        events, self._events = self._events, []
        return events

    def listen(self, seconds: float) -> None:
        """Read the server's messages, waiting up to `seconds`: exit statuses, and events for `events`.

        Raises:
            RunError: the fork server is gone.
        """
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return
        chunk = os.read(self.process.stdout.fileno(), 1 << 16)
        if not chunk:
            raise RunError(f"the fork server ended with status {self.process.wait()}")
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "status" in message:
                self.ended[message["pid"]] = message["status"]
            elif "event" in message:
                self._events.append(message)
            else:
                self.ended.pop(message.get("pid", 0), None)  # pids are reused
                self._answers.append(message)

    def _answer(self, within_s: float) -> Event:
        give_up = time.monotonic() + within_s
        while not self._answers:
            if time.monotonic() > give_up:
                raise RunError(f"the fork server did not answer within {within_s:.0f} s")
            self.listen(0.1)
        answer = self._answers.pop(0)
        if "error" in answer:
            raise RunError(answer["error"])
        return answer


@contextmanager
def fork_server(*modules: str, folder: Path | None = None) -> Iterator[ForkServer]:
    """Run a fork server for the duration of the block. It loads its modules in the background; its children end with
    it.

    Args:
        modules: what it imports for all children.
        folder: its working directory.

    Raises:
        ModuleNotFoundError: torch, which all of them import, is not installed.
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
            process.kill()  # It may still be loading. The kernel ends its children.
            process.wait()
            process.stdout.close()


# ---- the process itself --------------------------------------------------------------------------------------------


def say(**fields: object) -> None:
    """Write one JSON line to the client; atomic as long as it is short."""
    os.write(sys.stdout.fileno(), json.dumps(fields).encode() + b"\n")


def _reap() -> None:
    """Tell the client of each child that has ended since."""
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
        return  # It has already died.
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_NAME, order["name"].encode() or b"python")
    for stream, descriptor in zip((0, 2, 1), (os.open(os.devnull, os.O_RDONLY), *outputs), strict=False):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    faulthandler.register(STACKS, all_threads=True)
    if order["netns"] is not None:
        with Path(NAMESPACES, order["netns"]).open() as entry:
            if ctypes.CDLL(None, use_errno=True).setns(entry.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), order["netns"])
    os.environ.update(order["environment"])
    importlib.import_module(order["module"]).main()
    sys.stdout.flush()


def _orders() -> Iterator[tuple[Event, list[int]]]:
    """Yield requests and the children's file descriptors until the client closes the socket; reap children meanwhile.

    A signal's number goes into a pipe: a child that ends just before the process waits would not wake it otherwise.
    """
    ended, end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(fileno=os.dup(0)) as asked:
        while True:
            ready, _, _ = select.select([asked.fileno(), ended], [], [])
            if ended in ready:
                os.read(ended, PIPE_BYTES)
                _reap()
            if asked.fileno() not in ready:
                continue
            there, files, _, _ = socket.recv_fds(asked, len(ORDER), MOST_FILES)
            if not there:
                return
            with os.fdopen(files[0], "rb") as order:
                order.seek(0)  # The writer's position is at the end of the file.
                yield json.load(order), files[1:]


def _give_up(why: str) -> NoReturn:
    say(error=why)
    os._exit(1)


def main() -> None:
    starter, *modules = sys.argv[1:]
    # Here, and not between fork and exec: Python's hooks there would lose a Ctrl-C.
    die_with_parent()
    if os.getppid() != int(starter):
        return  # It has already died.
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            _give_up(f"{module} cannot be loaded: {error}")
    threads = psutil.Process().num_threads()
    if threads != 1:
        _give_up(f"loaded modules started threads ({threads} in all): this process must not be forked")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forker = os.getpid()
    say(ready=True)
    for order, outputs in _orders():
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
    os._exit(0)


if __name__ == "__main__":
    main()
