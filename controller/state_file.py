"""The state file of a controller, for a restarted controller and for other commands: its process and its switches."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from controller.errors import ControllerError, StateError
from controller.topology import Topology
from hostlib.system.process import Process, write_whole
from hostlib.system.user_file import parse_json, read_text

STATE_FILE = "controller.json"


@dataclass(frozen=True, slots=True)
class Embedded:
    """How an embedded switch was started.

    Attributes:
        options: of `emulation switch`, except for its ports' addresses.
        wires: port to another switch -> ADDRESS:PORT of this switch's end.
    """

    options: list[str]
    wires: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """A controller and its switches, as in STATE_DIR/controller.json.

    Attributes:
        processes: the switches that the controller started, by name; empty if it was given its switches.
        embedded: how each of those was started, in case one must be restarted.
        operator: the token that ending jobs and draining switches needs.
        authority: file with the certificate that its HTTPS is checked by; None without TLS.
        elements: per packet, of the switches' program; None in files of earlier versions.
    """

    controller: Process
    http: str
    topology: Topology
    processes: dict[str, Process]
    log: str
    embedded: dict[str, Embedded] = field(default_factory=dict)
    elements: int | None = None
    operator: str = field(default="", repr=False)
    authority: str | None = None

    def write(self, directory: Path) -> None:
        """Raises StateError: it cannot be written."""
        _write(
            directory / STATE_FILE,
            {
                "pid": self.controller.pid,
                "start_time": self.controller.start_time,
                "http": self.http,
                "switches": self.topology.as_json(),
                "processes": {name: asdict(process) for name, process in self.processes.items()},
                "embedded": {name: asdict(switch) for name, switch in self.embedded.items()},
                "log": self.log,
                "elements": self.elements,
                "operator": self.operator,
                "authority": self.authority,
            },
        )

    @classmethod
    def read(cls, directory: Path) -> State | None:
        """Read the state file; None if there is none.

        Raises:
            StateError: the file was not written by a controller.
        """
        path = directory / STATE_FILE
        try:
            fields = parse_json(read_text(path))
            return cls(
                Process(fields["pid"], fields["start_time"]),
                fields["http"],
                Topology.of_json(fields["switches"]),
                {name: Process(**process) for name, process in fields["processes"].items()},
                fields["log"],
                {name: _embedded(**switch) for name, switch in fields["embedded"].items()},
                fields.get("elements"),
                fields.get("operator", ""),
                fields.get("authority"),
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{path} cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, ControllerError) as error:
            raise StateError(f"{path} is not a controller's state file: {error}; remove it") from error

    @property
    def at_work(self) -> bool:
        """Whether its switches are running, as far as this machine can tell: switches that it was given may be."""
        return not self.processes or any(process.alive for process in self.processes.values())

    @staticmethod
    def forget(directory: Path) -> None:
        (directory / STATE_FILE).unlink(missing_ok=True)


def _embedded(options: list[str], wires: dict[str, str]) -> Embedded:
    return Embedded(options, {int(port): end for port, end in wires.items()})


def _write(path: Path, described: dict[str, Any]) -> None:
    try:
        write_whole(path, described, private=True)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror or error}") from error


def create_folder(directory: Path) -> None:
    """Create the folder of a controller's state.

    Raises:
        StateError: it cannot be created.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"the state folder {directory} cannot be created: {error.strerror}; choose another with --state-dir"
        ) from error


def is_full(folder: Path) -> bool:
    """Whether the disk with a folder has not one block left for this user."""
    space = os.statvfs(folder)
    return (space.f_bfree if os.geteuid() == 0 else space.f_bavail) == 0


def running(pid: int, http: str) -> StateError:
    """The error for starting a controller while one is running."""
    return StateError(
        f"a controller is running already (pid {pid}, {http}); stop it with controller stop, start a standby with "
        "--standby, or choose another --state-dir"
    )


@dataclass(frozen=True, slots=True)
class Standby:
    """A controller that waits to become the primary, as in a file of its own."""

    process: Process
    http: str

    def write(self, directory: Path) -> None:
        """Raises StateError: it cannot be written."""
        described = {"pid": self.process.pid, "start_time": self.process.start_time, "http": self.http}
        _write(self._path(directory), described)

    def forget(self, directory: Path) -> None:
        self._path(directory).unlink(missing_ok=True)

    def _path(self, directory: Path) -> Path:
        return directory / f"standby-{self.process.pid}.json"

    @classmethod
    def all(cls, directory: Path) -> list[Standby]:
        """Those that are there; files of dead ones are removed."""
        found = []
        for path in sorted(directory.glob("standby-*.json")):
            try:
                fields = parse_json(read_text(path))
                each = cls(Process(fields["pid"], fields["start_time"]), fields["http"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # It has just gone.
            if each.process.alive:
                found.append(each)
            else:
                path.unlink(missing_ok=True)
        return found
