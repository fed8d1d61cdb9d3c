"""Start, identify, wait for and stop processes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostlib.errors import HostlibError

START_S = 90.0
STOP_S = 10.0
KILLED_S = 10.0  # until killed processes are gone, on a busy machine
POLL_S = 0.02
NAMESPACES = "/run/netns"  # as of `ip netns`
PR_SET_PDEATHSIG = 1


class StartError(HostlibError):
    """A process that failed to start or to become ready.

    Attributes:
        reason: the last line it wrote, if any.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


# ---- identity ------------------------------------------------------------------------------------------------------


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process, or only a zombie.

    Pids are reused; pid and start time together identify a process for good.

    Not psutil's create_time(): that is a float of seconds since 1970, which moves when the clock is set, so another
    process may read a different number for the same process.

    Source: proc(5), /proc/[pid]/stat, fields 3 and 22.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True)
class Process:
    """A process, distinguished from a later one with the same pid."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        started = start_time(pid)
        return None if started is None else cls(pid, started)

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.start_time

    def stop(self, patience_s: float = STOP_S) -> bool:
        """Send SIGTERM, then SIGKILL if it does not end; returns whether it was alive."""
        if not self.alive:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
            if not self.gone_within(patience_s):
                os.kill(self.pid, signal.SIGKILL)
                self.gone_within(KILLED_S)
        return True

    def gone_within(self, seconds: float) -> bool:
        """Wait for its end without signalling it; returns whether it ended."""
        give_up = time.monotonic() + seconds
        while self.alive and time.monotonic() < give_up:
            time.sleep(POLL_S)
        return not self.alive


# ---- starting --------------------------------------------------------------------------------------------------------


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Call in a new process: have the kernel send it this signal when its parent dies. A parent that is already dead
    sends none.

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def dying_with_us(number: signal.Signals = signal.SIGKILL) -> list[str]:
    """Command prefix that has the started process get this signal when its parent dies.

    Not a preexec_fn: Python would run its hooks around the fork, and a Ctrl-C during one of them is lost.
    """
    return ["setpriv", "--pdeathsig", number.name.removeprefix("SIG")]


def inside_namespace(space: str | None) -> list[str]:
    """Command prefix that runs a command in a network namespace.

    Args:
        space: its name, or a path to it; None for this process's own.
    """
    return [] if space is None else ["nsenter", f"--net={Path(NAMESPACES, space)}"]


@dataclass(frozen=True, slots=True)
class Starting:
    """A process that was started and announces in a file that it is ready.

    Attributes:
        what: what messages call it.
        ready: the file: JSON, or a socket. JSON with another process's "pid" is ignored.
        log: its output, from offset `begin` on.
    """

    what: str
    child: subprocess.Popen[bytes]
    ready: Path
    log: Path
    begin: int = 0

    def wait(self, within_s: float = START_S, cancelled: threading.Event | None = None) -> dict[str, Any]:
        """Wait until the process is ready; returns what its file says (nothing for a socket).

        Args:
            cancelled: an event that ends the wait when another thread sets it.

        Raises:
            StartError: the process ended, takes too long, or `cancelled` was set; the process is left alone.
        """
        stop, give_up = cancelled or threading.Event(), time.monotonic() + within_s
        while (described := self._described()) is None:
            if self.child.poll() is not None:
                reason = self._last_words()
                raise StartError(f"{self.what} did not start: {reason}", reason)
            if time.monotonic() > give_up:
                raise StartError(f"{self.what} was not ready within {within_s:.0f} s; see {self.log}")
            if stop.wait(POLL_S):
                raise StartError(f"waiting for {self.what} was cancelled")
        return described

    def _described(self) -> dict[str, Any] | None:
        if not self.ready.exists():
            return None
        if self.ready.is_socket():
            return {}
        try:
            described = dict(json.loads(self.ready.read_text()))
        except FileNotFoundError:  # Left by an earlier process, which has just ended.
            return None
        return described if described.get("pid", self.child.pid) == self.child.pid else None

    def _last_words(self) -> str:
        output = self.log.read_bytes()[self.begin :].decode(errors="replace")
        lines = [line for line in output.splitlines() if line.strip()]
        return lines[-1].removeprefix("error: ") if lines else f"exit code {self.child.returncode}"


def start(
    command: Sequence[str],
    ready: Path,
    log: Path,
    *,
    what: str,
    append: bool = False,
    space: str | None = None,
    dies_by: signal.Signals | None = signal.SIGKILL,
    folder: Path | None = None,
) -> Starting:
    """Start a process in a session of its own.

    Args:
        ready: the file that it writes when it is ready.
        log: the file for its standard output and error; `append` keeps what is there.
        what: what messages call it.
        space: the network namespace that it runs in, as inside_namespace takes it.
        dies_by: the signal it gets when this process dies; None: it outlives this process.
        folder: its working directory.

    Raises:
        StartError: a required program is not on PATH.
    """
    enter = ([] if dies_by is None else dying_with_us(dies_by)) + inside_namespace(space)
    with log.open("ab" if append else "wb") as lines:
        begin = lines.tell()
        try:
            child = subprocess.Popen(
                [*enter, *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=lines,
                stderr=lines,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise StartError(f"{what} did not start: no {error.filename} on PATH") from None
    return Starting(what, child, ready, log, begin)


def start_and_wait_ready(
    command: Sequence[str],
    ready: Path,
    log: Path,
    *,
    what: str,
    within_s: float = START_S,
    cancelled: threading.Event | None = None,
    append: bool = False,
    space: str | None = None,
    dies_by: signal.Signals | None = signal.SIGKILL,
    folder: Path | None = None,
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start a process and wait until it is ready; returns it and the contents of its ready file. See `start` and
    Starting.

    Raises:
        StartError: it did not start; nothing is left running.
    """
    starting = start(command, ready, log, what=what, append=append, space=space, dies_by=dies_by, folder=folder)
    try:
        return starting.child, starting.wait(within_s, cancelled)
    except BaseException:
        stop(starting.child)
        raise


@contextmanager
def running(
    command: Sequence[str],
    ready: Path,
    log: Path,
    *,
    what: str,
    space: str | None = None,
    dies_by: signal.Signals = signal.SIGKILL,
    folder: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Run a process for the duration of the block, once it is ready; yields the contents of its ready file. See
    `start`.

    Raises:
        StartError: it did not start.
    """
    child, described = start_and_wait_ready(command, ready, log, what=what, space=space, dies_by=dies_by, folder=folder)
    try:
        yield described
    finally:
        stop(child)


def stop(child: subprocess.Popen[Any], patience_s: float = STOP_S) -> None:
    """Send SIGTERM to a child, then SIGKILL if it does not end."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(patience_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


# ---- files -----------------------------------------------------------------------------------------------------------


def write_whole(path: Path, content: Any, private: bool = False) -> None:
    """Write JSON atomically: a reader, or a crash, sees either the old file or the new one.

    Args:
        private: only this user may read it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    if private:
        partial.touch(mode=0o600)
        partial.chmod(0o600)
    partial.write_text(json.dumps(content) + "\n")
    os.replace(partial, path)
