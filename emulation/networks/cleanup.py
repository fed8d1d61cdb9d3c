"""Record what runs create on this machine as it is created, so that it can always be removed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from emulation.errors import EmulationError
from hostlib.system.network_namespace import delete_namespace
from hostlib.system.process import Process

STOP_S = 10.0


class CleanupError(EmulationError):
    """The record of what runs create cannot be written or read."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Something that was, or would be, removed.

    Attributes:
        kind: process, namespace, interface or folder.
        name: a process's begins with its pid.
        run: the run that created it.
    """

    kind: str
    name: str
    run: str


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What one process has created, in order.

    Attributes:
        path: the record; its name begins with the creator's pid and start time.
    """

    path: Path
    maker: Process
    namespaces: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    processes: tuple[tuple[Process, str], ...] = ()

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def folder(self) -> Path:
        """Folder for logs, sockets and state of the processes that it has started."""
        return self.path.with_suffix("")

    @property
    def alive(self) -> bool:
        return self.maker.alive

    @classmethod
    def read(cls, path: Path) -> RecordedRun:
        """Read the record's current contents.

        Raises:
            CleanupError: it is not a record.
        """
        made: dict[str, list[str]] = {"namespace": [], "interface": []}
        processes: list[tuple[Process, str]] = []
        try:
            pid, start_time, _ = path.stem.split("-")
            maker = Process(int(pid), int(start_time))
            lines = path.read_text().split("\n")
            # After the last line break there is nothing, or an unfinished line.
            for line in lines[:-1]:
                entry = json.loads(line)
                if "process" in entry:
                    processes.append((Process(entry["process"], entry["start_time"]), entry["what"]))
                else:
                    ((kind, name),) = entry.items()
                    made[kind].append(name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CleanupError(f"{path} is not a run's record: {error}; remove it by hand") from error
        return cls(path, maker, tuple(made["namespace"]), tuple(made["interface"]), tuple(processes))


@dataclass(slots=True)
class CleanupRecord:
    """The record that this process keeps of one run."""

    path: Path
    folder: Path = field(init=False)
    _processes: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.path.with_suffix("")

    def namespace(self, name: str) -> None:
        """Record a namespace before it is created."""
        self._write({"namespace": name})

    def interface(self, name: str) -> None:
        """Record an interface outside the run's namespaces before it is created."""
        self._write({"interface": name})

    def process(self, pid: int, what: str) -> None:
        """Record a process as soon as it has started. Until then, it ends with its creator."""
        process = Process.of(pid)
        if process is not None:
            self._processes[what] = process
            self._write({"process": process.pid, "start_time": process.start_time, "what": what})

    def processes(self) -> dict[str, Process]:
        """The started processes, by name."""
        return dict(self._processes)

    def _write(self, entry: dict[str, str | int]) -> None:
        # One write, so that a line is either complete or absent.
        with self.path.open("ab", buffering=0) as record:
            record.write(json.dumps(entry).encode() + b"\n")


@contextmanager
def cleanup_record(folder: Path | None = None) -> Iterator[CleanupRecord]:
    """Open a new record; at the end of the block, everything in it is removed, and then the record.

    Args:
        folder: of records [default: state_folder()].

    Raises:
        CleanupError: the record cannot be created.
    """
    here = Process.of(os.getpid())
    assert here is not None
    made = CleanupRecord((folder or state_folder()) / f"{here.pid}-{here.start_time}-{secrets.token_hex(3)}.jsonl")
    made.path.touch(0o600)
    try:
        made.folder.mkdir(0o700)
        yield made
    finally:
        remove(RecordedRun.read(made.path))


def state_folder() -> Path:
    """/run/netfold for root, $XDG_RUNTIME_DIR/netfold for others, or /tmp/netfold-UID; created if it does not exist.

    Raises:
        CleanupError: it cannot be created, or belongs to another user.
    """
    uid, runtime = os.geteuid(), os.environ.get("XDG_RUNTIME_DIR")
    folder = Path("/run/netfold") if uid == 0 else Path(runtime or "/tmp", "netfold" if runtime else f"netfold-{uid}")
    try:
        folder.mkdir(0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise CleanupError(f"cannot keep a record of what is made: {folder}: {error.strerror}") from error
    if found.st_uid != uid or not stat.S_ISDIR(found.st_mode):
        raise CleanupError(f"{folder} is not a folder of this user's")
    return folder


def runs(folder: Path | None = None) -> list[RecordedRun]:
    """The living and dead runs whose records are in a folder (default: state_folder()).

    Raises:
        CleanupError: a record cannot be read.
    """
    found = []
    for path in sorted((folder or state_folder()).glob("*.jsonl")):
        try:
            found.append(RecordedRun.read(path))
        except CleanupError:
            if path.exists():  # Otherwise it has just ended.
                raise
    return found


def present(run: RecordedRun) -> list[Removed]:
    """What a run has left, in the order in which it would be removed."""
    found = [Removed("process", f"{p.pid} ({what})", run.name) for p, what in run.processes[::-1] if p.alive]
    found += [Removed("namespace", name, run.name) for name in run.namespaces[::-1] if _space(name).exists()]
    found += [Removed("interface", name, run.name) for name in run.interfaces[::-1] if _interface(name).exists()]
    return [*found, *(Removed("folder", str(run.folder), run.name) for _ in range(run.folder.exists()))]


def remove(run: RecordedRun) -> list[Removed]:
    """Stop and delete what a run created and nothing else, then its record; returns what still existed.

    Raises:
        CleanupError: something could not be removed; the record stays.
    """
    found = present(run)
    _stop([process for process, _ in run.processes[::-1]])
    for name in run.namespaces[::-1]:
        _delete_namespace(name)
    for name in run.interfaces[::-1]:
        _delete_interface(name)
    shutil.rmtree(run.folder, ignore_errors=True)
    left = present(run)
    if left:
        raise CleanupError(f"cannot remove {', '.join(f'{each.kind} {each.name}' for each in left)}")
    run.path.unlink(missing_ok=True)
    return found


def clean(everything: bool, dry_run: bool, folder: Path | None = None) -> tuple[list[Removed], list[str]]:
    """Remove what dead runs left.

    Args:
        everything: also of living runs, which are ended after a chance to clean up themselves.
        dry_run: only report what would be removed.
        folder: of the records [default: state_folder()].

    Returns:
        What was removed, and the names of living runs that were left alone.

    Raises:
        CleanupError: a record cannot be read, or something could not be removed.
    """
    removed: list[Removed] = []
    left: list[str] = []
    for run in runs(folder):
        if run.alive and not everything:
            left.append(run.name)
            continue
        found = present(run)
        if not dry_run:
            run.maker.stop(STOP_S)
            remove(RecordedRun.read(run.path) if run.path.exists() else run)
        removed += found
    return removed, left


def _stop(processes: list[Process]) -> None:
    """Send SIGTERM to all, then SIGKILL to those that did not end."""
    living = [process for process in processes if process.alive]
    for process in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
            os.kill(process.pid, signal.SIGCONT)
    for process in living:
        if not process.gone_within(STOP_S):
            process.stop(0)


def _space(name: str) -> Path:
    return Path("/run/netns", name)


def _interface(name: str) -> Path:
    return Path("/sys/class/net", name)


def _delete_namespace(name: str) -> None:
    if _space(name).exists():
        delete_namespace(name)


def _delete_interface(name: str) -> None:
    if _interface(name).exists():
        from pyroute2 import IPRoute, NetlinkError

        # It may disappear by itself in the meantime, with its other end.
        with contextlib.suppress(NetlinkError), IPRoute() as kernel:
            for index in kernel.link_lookup(ifname=name):
                kernel.link("del", index=index)
