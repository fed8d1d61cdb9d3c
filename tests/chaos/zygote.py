"""A process that has loaded torch once and forks a rank whenever it is told to, so that a run takes seconds.

Orders come as JSON lines on standard input, and answers go out the same way: {"ready": true}, {"pid": ...} for every
order, and {"pid": ..., "status": ...} when a rank has ended.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

START_S = 60.0
# A library that starts threads when it is loaded cannot be forked.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(slots=True)
class Zygote:
    """The driver's end: start ranks, and hear of their ends.

    Attributes:
        ended: pid -> exit status; below 0 the signal that killed it.
    """

    process: subprocess.Popen[bytes]
    ended: dict[int, int] = field(default_factory=dict)
    heard: bytes = b""
    answers: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls) -> Zygote:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.zygote"],
            cwd=ROOT,
            env={**os.environ, **SINGLE_THREADED},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        zygote = cls(process)
        zygote._answer(START_S)
        return zygote

    def fork(self, environment: dict[str, str], said: Path) -> int:
        """A rank's pid. It writes to SAID.out and SAID.err."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"environment": environment, "said": str(said)}).encode() + b"\n")
        self.process.stdin.flush()
        return int(self._answer(10.0)["pid"])

    def listen(self, seconds: float) -> None:
        """Hear of ranks that ended, waiting so long for news."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return
        chunk = os.read(self.process.stdout.fileno(), 65536)
        if not chunk:
            raise RuntimeError(f"the zygote ended with status {self.process.wait()}")
        *lines, self.heard = (self.heard + chunk).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "status" in answer:
                self.ended[answer["pid"]] = answer["status"]
            else:
                self.ended.pop(answer.get("pid", 0), None)  # numbers come again
                self.answers.append(answer)

    def _answer(self, within_s: float) -> dict[str, Any]:
        give_up = time.monotonic() + within_s
        while not self.answers:
            if time.monotonic() > give_up:
                raise RuntimeError(f"the zygote says nothing within {within_s:.0f} s")
            self.listen(0.1)
        return self.answers.pop(0)

    def close(self) -> None:
        """End it, and with it every rank that is left."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def _say(**answer: object) -> None:
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


def _reap(*_: object) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say(pid=pid, status=os.waitstatus_to_exitcode(status))


def _be_rank(order: dict[str, Any]) -> None:
    from hostlib.cli import run_rank
    from hostlib.launch import die_with_parent

    die_with_parent()
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for name, stream in (("out", 1), ("err", 2)):
        opened = os.open(f"{order['said']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, stream)
        os.close(opened)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ.update(order["environment"])
    run_rank()


def main() -> None:
    import hostlib.train  # noqa: F401  what takes so long
    from hostlib.data import digits

    digits(1)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise RuntimeError(f"{threads} threads: this process must not be forked")
    signal.signal(signal.SIGCHLD, _reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _say(ready=True)
    for line in sys.stdin:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # A rank's end is told after its start.
        pid = os.fork()
        if pid == 0:
            try:
                _be_rank(json.loads(line))
            finally:
                os._exit(70)
        _say(pid=pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


if __name__ == "__main__":
    main()
