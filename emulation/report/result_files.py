"""Read and validate an experiment's results: run.json, results.json and cells/CELL.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from emulation.errors import EmulationError
from hostlib.errors import HostlibError, QuantityError
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.strategies.strategy import choose
from hostlib.system.user_file import parse_json, read_text
from hostlib.text import units

Quantity = TypeVar("Quantity")
KINDS = ("forward", "backward", "communication")


class ReportError(EmulationError):
    """A missing or malformed file of an experiment; names the file and the field."""

    def __init__(self, file: Path, problem: str, field: str = "") -> None:
        self.file, self.field = file, field
        super().__init__(f"{file}{', ' + field if field else ''}: {problem}")


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """A setting under which mechanisms are compared.

    Attributes:
        slots: of each of a job's pools on a switch.
        delay_ns: of every link, one way; 0 where the topology says it.
    """

    model: str
    bandwidth_bits_s: float
    workers: int
    jobs: int
    loss: float
    slots: int = SLOTS_PER_POOL
    delay_ns: int = 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a node sent and received in one iteration."""

    sent_bytes: float
    received_bytes: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: a mechanism under a setting.

    Attributes:
        needs_fabric: the mechanism has switches sum or multicast.
        iteration_ms, simulated_ms, retransmits, marked: None if there is no such number.
        bottleneck: the part of the emulation itself that was too slow, and what would fix it.
        traffic: by node.
        cpu: share of time that processors were busy, by process or machine.
        cause: of the bottleneck; see emulation.experiments.validity.Cause.
        enough_dilation: that would make the cell valid.
    """

    name: str
    setting: Setting
    mechanism: str
    needs_fabric: bool
    valid: bool
    iteration_ms: float | None
    spread_ms: float | None
    simulated_ms: float | None
    dilation: float
    bottleneck: str | None
    traffic: Mapping[str, Traffic]
    retransmits: int | None
    cpu: Mapping[str, float]
    cause: str | None = None
    enough_dilation: float | None = None
    marked: int | None = None

    def mean_bytes(self, kind: str) -> Traffic | None:
        """The mean over all nodes of a kind, as `worker`."""
        mine = [traffic for node, traffic in self.traffic.items() if node.startswith(kind)]
        if not mine:
            return None
        return Traffic(sum(t.sent_bytes for t in mine) / len(mine), sum(t.received_bytes for t in mine) / len(mine))


@dataclass(frozen=True, slots=True)
class Span:
    """An activity of a node in one measured iteration."""

    kind: str
    name: str
    start_ms: float
    end_ms: float


Timeline = Mapping[str, tuple[Span, ...]]  # by node


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment's files.

    Attributes:
        declaration: the text of experiment.toml.
        run: contents of run.json.
        timelines: by cell's name, of those cells that have one.
    """

    folder: Path
    declaration: str
    run: Mapping[str, Any]
    cells: tuple[Cell, ...]
    timelines: Mapping[str, Timeline]

    @property
    def title(self) -> str:
        return str(self.run.get("title") or self.run.get("experiment") or self.folder.name)

    @property
    def finished(self) -> bool:
        return self.run.get("finished") is not None


def read(folder: Path) -> Experiment:
    """Read an experiment's folder; an unfinished one as far as it goes.

    Raises:
        ReportError: a file is missing or malformed.
    """
    if not folder.is_dir():
        raise ReportError(folder, "is not a folder; what is reported is an experiment's, with run.json in it")
    run = _load(folder / "run.json")
    _require(isinstance(run, dict), folder / "run.json", f"must be an object, not {_shown(run)}")
    _check_run(_Fields(folder / "run.json", "", run))
    results = folder / "results.json"
    rows = [] if run.get("finished") is None and not results.exists() else _load(results)
    _require(isinstance(rows, list), results, f"must be a list of cells, not {_shown(rows)}")
    cells = tuple(_cell(_Fields(results, f"[{index}]", each)) for index, each in enumerate(rows))
    _check_unique(results, cells)
    details = {cell.name: folder / "cells" / f"{cell.name}.json" for cell in cells}
    timelines = {name: _timeline(path) for name, path in details.items() if path.exists()}
    declaration = folder / "experiment.toml"
    return Experiment(folder, _text(declaration) if declaration.exists() else "", run, cells, timelines)


# ---- files ---------------------------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise ReportError(path, "is missing; `emulation run` writes it") from None
    except OSError as error:
        raise ReportError(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ReportError(path, "is not text in UTF-8") from None


def _load(path: Path) -> Any:
    try:
        return parse_json(_text(path))
    except ValueError as error:
        raise ReportError(path, f"is not JSON: {error}") from None


def _require(holds: bool, file: Path, problem: str, field: str = "") -> None:
    if not holds:
        raise ReportError(file, problem, field)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


class _Fields:
    """A JSON object of a file, with access to its fields by name and type."""

    def __init__(self, file: Path, where: str, value: Any) -> None:
        _require(isinstance(value, dict), file, f"must be an object, not {_shown(value)}", where)
        self.file, self._where, self._value = file, where, value

    def __iter__(self) -> Iterator[str]:
        return iter(self._value)

    def path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def refuse(self, name: str, problem: str) -> ReportError:
        return ReportError(self.file, problem, self.path(name))

    def get(self, name: str) -> Any:
        if name not in self._value:
            raise self.refuse(name, "is missing")
        return self._value[name]

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str) or not value:
            raise self.refuse(name, f"must be a string, not {_shown(value)}")
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise self.refuse(name, f"must be true or false, not {_shown(value)}")
        return value

    def number(self, name: str, least: float = 0.0) -> float:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
            raise self.refuse(name, f"must be a number of {least:g} or more, not {_shown(value)}")
        return float(value)

    def count(self, name: str, least: int = 0) -> int:
        value = self.number(name, least)
        if value != int(value):
            raise self.refuse(name, f"must be a whole number, not {value!r}")
        return int(value)

    def above_0(self, name: str) -> float:
        if (value := self.number(name)) == 0:
            raise self.refuse(name, "must be above 0")
        return value

    def quantity(self, name: str, parse: Callable[[str], Quantity]) -> Quantity:
        """A number with its unit."""
        try:
            return parse(self.text(name))
        except QuantityError as error:
            raise self.refuse(name, str(error)) from None

    def object(self, name: str) -> _Fields:
        return _Fields(self.file, self.path(name), self.get(name))

    def lacks(self, name: str) -> bool:
        """Whether the field is null or missing."""
        return self._value.get(name) is None


# ---- cells ---------------------------------------------------------------------------------------------------------


def _check_run(fields: _Fields) -> None:
    for name in ("experiment", "title", "started", "finished", "realisation", "switch", "predictor", "command"):
        if not fields.lacks(name):
            fields.text(name)
    for name in ("versions", "machine", "topology", "replay"):
        if not fields.lacks(name):
            table = fields.object(name)
            if name == "machine" and not table.lacks("memory_gib"):
                table.number("memory_gib")


def _cell(fields: _Fields) -> Cell:
    name = fields.text("cell")
    if "/" in name or "\0" in name or name in (".", ".."):
        raise fields.refuse("cell", f"must be a file's name, not {_shown(name)}")
    mechanism = fields.text("mechanism")
    bandwidth = fields.quantity("bandwidth", units.bandwidth)
    try:
        needs_fabric = choose(mechanism).mechanism.needs_fabric
    except HostlibError as error:
        raise fields.refuse("mechanism", str(error)) from None
    valid = fields.flag("valid")
    unmeasured = fields.lacks("iteration_ms") and not valid
    cpu = None if fields.lacks("cpu") else fields.object("cpu")
    return Cell(
        name,
        Setting(
            fields.text("model"),
            bandwidth,
            fields.count("workers", 1),
            1 if fields.lacks("jobs") else fields.count("jobs", 1),
            0.0 if fields.lacks("loss") else fields.number("loss"),
            SLOTS_PER_POOL if fields.lacks("slots") else fields.count("slots", 1),
            0 if fields.lacks("delay") else fields.quantity("delay", units.time_ns),
        ),
        mechanism,
        needs_fabric,
        valid,
        None if unmeasured else fields.above_0("iteration_ms"),
        None if fields.lacks("iteration_ms_spread") else fields.number("iteration_ms_spread"),
        None if fields.lacks("simulated_ms") else fields.above_0("simulated_ms"),
        1.0 if fields.lacks("dilation") else fields.above_0("dilation"),
        None if fields.lacks("bottleneck") else fields.text("bottleneck"),
        {} if fields.lacks("bytes_per_node") else _traffic(fields.object("bytes_per_node")),
        None if fields.lacks("retransmits") else fields.count("retransmits"),
        {} if cpu is None else {what: cpu.number(what) for what in cpu},
        None if fields.lacks("cause") else fields.text("cause"),
        None if fields.lacks("enough_dilation") else fields.above_0("enough_dilation"),
        None if fields.lacks("marked") else fields.count("marked"),
    )


def _traffic(nodes: _Fields) -> dict[str, Traffic]:
    of = {name: nodes.object(name) for name in nodes}
    return {name: Traffic(node.number("sent"), node.number("received")) for name, node in of.items()}


def _check_unique(file: Path, cells: tuple[Cell, ...]) -> None:
    names: set[str] = set()
    places: dict[tuple[Setting, str], str] = {}
    for index, cell in enumerate(cells):
        _require(cell.name not in names, file, f"there is a cell {cell.name!r} already", f"[{index}].cell")
        names.add(cell.name)
        other = places.setdefault((cell.setting, cell.mechanism), cell.name)
        _require(other == cell.name, file, f"{cell.name!r} has the mechanism and setting of {other!r}", f"[{index}]")


def _timeline(path: Path) -> Timeline:
    fields = _Fields(path, "", _load(path))
    if fields.lacks("timeline"):
        return {}
    nodes = fields.object("timeline")
    return {node: tuple(_spans(nodes, node)) for node in nodes}


def _spans(nodes: _Fields, node: str) -> Iterator[Span]:
    listed = nodes.get(node)
    if not isinstance(listed, list):
        raise nodes.refuse(node, f"must be a list, not {_shown(listed)}")
    for index, each in enumerate(listed):
        fields = _Fields(nodes.file, f"{nodes.path(node)}[{index}]", each)
        kind = fields.text("kind")
        if kind not in KINDS:
            raise fields.refuse("kind", f"must be one of {', '.join(KINDS)}, not {_shown(kind)}")
        start_ms = fields.number("start_ms")
        yield Span(kind, fields.text("name"), start_ms, fields.number("end_ms", start_ms))
