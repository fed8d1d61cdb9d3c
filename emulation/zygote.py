"""A process that has loaded torch once and forks whoever is to run on a virtual host: that takes milliseconds, and the
memory of one. Orders come as JSON lines on standard input; answers, and what the children say, go out as JSON lines.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulation.errors import EmulationError
from hostlib.launch import die_with_parent
from hostlib.namespace import CLONE_NEWNET

START_S, ANSWER_S, END_S = 120.0, 10.0, 5.0
# A library that starts threads when it is loaded cannot be forked.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
FAILED = 70  # exit status after an exception that is none of ours

Event = dict[str, Any]


@dataclass(slots=True)
class Zygote:
    """The end of whoever has processes forked.

    Attributes:
        ended: pid -> exit status; below 0 the signal that killed it.
    """

    process: subprocess.Popen[bytes]
    ended: dict[int, int] = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)
    _answers: list[Event] = field(default_factory=list)
    _heard: bytes = b""

    def fork(
        self, module: str, environment: dict[str, str], netns: str | None, errors: Path, output: Path | None = None
    ) -> int:
        """Start `main()` of a module in a network namespace; its pid.

        Args:
            netns: a path for setns(2); None for this process's own.
            errors, output: where its standard error and output go; None: its output is heard by `events`.
        """
        said = {2: str(errors)} | ({} if output is None else {1: str(output)})
        order = {"module": module, "environment": environment, "netns": netns, "said": said}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise EmulationError(f"the process that forks ranks is gone: status {self.process.wait()}") from None
        return int(self._answer(ANSWER_S)["pid"])

    def events(self, seconds: float) -> list[Event]:
        """What children said, waiting so long for news."""
        self.listen(seconds)
        said, self._events = self._events, []
        return said

    def listen(self, seconds: float) -> None:
        """Hear of ends, and of what is for `events`, waiting so long for news."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return
        chunk = os.read(self.process.stdout.fileno(), 1 << 16)
        if not chunk:
            raise EmulationError(f"the process that forks ranks ended with status {self.process.wait()}")
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "status" in said:
                self.ended[said["pid"]] = said["status"]
            elif "event" in said:
                self._events.append(said)
            else:
                self.ended.pop(said.get("pid", 0), None)  # numbers come again
                self._answers.append(said)

    def _answer(self, within_s: float) -> Event:
        give_up = time.monotonic() + within_s
        while not self._answers:
            if time.monotonic() > give_up:
                raise EmulationError(f"the process that forks ranks says nothing within {within_s:.0f} s")
            self.listen(0.1)
        return self._answers.pop(0)


@contextmanager
def zygote(*modules: str, folder: Path | None = None) -> Iterator[Zygote]:
    """One, for as long as the block runs; what it forked ends with it.

    Args:
        modules: that it loads, for all.
        folder: where it runs.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "emulation.zygote", *modules],
        cwd=folder,
        env={**os.environ, **SINGLE_THREADED, "TORCH_CPP_LOG_LEVEL": "ERROR"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        made = Zygote(process)
        made._answer(START_S)
        yield made
    finally:
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


# ---- the process itself --------------------------------------------------------------------------------------------


def say(**told: object) -> None:
    """A line for whoever has processes forked; whole, as long as it is short."""
    os.write(sys.stdout.fileno(), json.dumps(told).encode() + b"\n")


def _reap(*_: object) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        say(pid=pid, status=os.waitstatus_to_exitcode(status))


def _be(order: Event) -> None:
    die_with_parent()
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for stream, path in order["said"].items():
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, int(stream))
        os.close(opened)
    if order["netns"] is not None:
        with open(order["netns"]) as entry:
            if ctypes.CDLL(None, use_errno=True).setns(entry.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), order["netns"])
    os.environ.update(order["environment"])
    importlib.import_module(order["module"]).main()


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise EmulationError(f"{threads} threads: this process must not be forked")
    signal.signal(signal.SIGCHLD, _reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say(ready=True)
    for line in sys.stdin:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # A child's end is told after its start.
        pid = os.fork()
        if pid == 0:
            try:
                _be(json.loads(line))
                os._exit(0)
            except Exception as wrong:
                os.write(2, f"error: {type(wrong).__name__}: {wrong}\n".encode())
            finally:
                os._exit(FAILED)
        say(pid=pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


if __name__ == "__main__":
    main()
