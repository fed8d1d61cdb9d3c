"""Processes that outlive the command that started them: who they are, and how they are stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from controller.errors import ControllerError, StateError
from controller.topology import Topology

STATE_FILE = "controller.json"
KILLED_S = 10.0  # until what was killed is gone, on a busy machine


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is no such process (or a dead one that
    nobody has waited for). With the pid it names a process for good: pids are used again.

    Source: proc(5), /proc/[pid]/stat, fields 3 and 22.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told from a later one with the same pid."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        started = start_time(pid)
        return None if started is None else cls(pid, started)

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.start_time

    def stop(self, patience_s: float = 10.0) -> bool:
        """SIGTERM, and SIGKILL when that does not help; whether it was alive."""
        if not self.alive:
            return False
        os.kill(self.pid, signal.SIGTERM)
        if not self.gone_within(patience_s):
            os.kill(self.pid, signal.SIGKILL)
            self.gone_within(KILLED_S)
        return True

    def gone_within(self, seconds: float) -> bool:
        """Wait for its end, which somebody else brings about; whether it came."""
        give_up = time.monotonic() + seconds
        while self.alive and time.monotonic() < give_up:
            time.sleep(0.02)
        return not self.alive


@dataclass(frozen=True, slots=True)
class Embedded:
    """How an embedded switch was started.

    Attributes:
        options: of `emulation switch`, without those that say where its ports are.
        wires: port to another switch -> ADDRESS:PORT of this switch's end.
    """

    options: list[str]
    wires: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """What STATE_DIR/controller.json says of a controller and its switches.

    Attributes:
        processes: the switches that the controller started, by name; none when it was given them.
        embedded: the same, for who must start one of them again.
    """

    controller: Process
    http: str
    topology: Topology
    processes: dict[str, Process]
    log: str
    embedded: dict[str, Embedded] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        write_whole(
            directory / STATE_FILE,
            {
                "pid": self.controller.pid,
                "start_time": self.controller.start_time,
                "http": self.http,
                "switches": self.topology.as_json(),
                "processes": {name: asdict(process) for name, process in self.processes.items()},
                "embedded": {name: asdict(switch) for name, switch in self.embedded.items()},
                "log": self.log,
            },
        )

    @classmethod
    def read(cls, directory: Path) -> State | None:
        """What the state file says; None when there is none.

        Raises:
            StateError: there is one that no controller wrote.
        """
        path = directory / STATE_FILE
        try:
            said = json.loads(path.read_text())
            return cls(
                Process(said["pid"], said["start_time"]),
                said["http"],
                Topology.of_json(said["switches"]),
                {name: Process(**process) for name, process in said["processes"].items()},
                said["log"],
                {name: _embedded(**switch) for name, switch in said["embedded"].items()},
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ControllerError) as wrong:
            raise StateError(f"{path} is not a controller's state file: {wrong}; remove it") from wrong

    @staticmethod
    def forget(directory: Path) -> None:
        (directory / STATE_FILE).unlink(missing_ok=True)


def _embedded(options: list[str], wires: dict[str, str]) -> Embedded:
    return Embedded(options, {int(port): end for port, end in wires.items()})


def running(state: State | None) -> StateError:
    """The error for starting a controller where one runs."""
    which = f"pid {state.controller.pid}, {state.http}" if state is not None else "it is just starting"
    return StateError(
        f"a controller is running already ({which}); stop it with controller stop, or choose another --state-dir"
    )


def write_whole(path: Path, content: Any) -> None:
    """Write JSON so that a reader, or a crash, sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content) + "\n")
    os.replace(partial, path)
