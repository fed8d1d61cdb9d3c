"""Traces: when each gradient of a model is ready, what is sent for it, and how long layers compute.

The core is the five-attribute event of "How to Train your DNN", section 5: time, parameter, size, source device,
destination device. Events whose source is a worker are that worker's aggregation trace, with times relative to its
first event. Events whose source is a server are the distribution trace, of which only the order counts. More tables
hold what five attributes cannot: how long layers compute, which variables there are beside the gradients, and for how
many examples the times are.

A trace is one text file of comma-separated tables, each under its name in brackets; `#` begins a comment. A file with
only events, without a table name, is also a trace.

    [model]
    batch,flops,family
    32,1500000,cnn
    [layers]
    layer,forward_s,backward_s
    conv1,0.0012,0.0025
    [parameters]
    parameter,bytes,layer,trained
    conv1/weights,6912,conv1,yes
    [events]
    time_s,parameter,bytes,source,destination
    0,conv1/weights,6912,worker0,server0
    0,conv1/weights,6912,server0,worker0

Torch-free.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar, get_args

from hostlib.errors import HostlibError
from hostlib.models.layer_info import Family
from hostlib.system.user_file import read_text

COLUMNS = {
    "layers": ("layer", "forward_s", "backward_s"),
    "parameters": ("parameter", "bytes", "layer", "trained"),
    "events": ("time_s", "parameter", "bytes", "source", "destination"),
    "model": ("batch", "flops", "family"),
}
DEVICE = re.compile(r"(worker|server)[0-9]+")
NS = 10**9
MOST_DIGITS = 30  # of a whole number


class TraceError(HostlibError):
    """An invalid trace; names file, line and field."""

    def __init__(self, file: str, line: int, field: str, problem: str) -> None:
        self.file, self.line, self.field = file, line, field
        super().__init__(f"{file}, line {line}, {field}: {problem}")


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's computing times for one batch, in nanoseconds."""

    name: str
    forward_ns: int
    backward_ns: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """A variable of a layer; one without a gradient is not `trained`, but counts in the numbering of variables."""

    name: str
    bytes: int
    layer: str
    trained: bool = True


@dataclass(frozen=True, slots=True)
class Event:
    """The five-attribute event: a variable is ready to be sent."""

    time_ns: int
    parameter: str
    bytes: int
    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class Trace:
    """One iteration of a model.

    Attributes:
        layers: in the order of the forward pass.
        parameters: in the order in which the model creates them.
        events: aggregation and distribution.
        batch: examples for which the times are; None if unknown.
        flops: of one example's forward pass; None if unknown.
        family: what kind of model it is; None if unknown.
    """

    layers: tuple[Layer, ...]
    parameters: tuple[Parameter, ...]
    events: tuple[Event, ...]
    batch: int | None = None
    flops: int | None = None
    family: Family | None = None

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers whose aggregation was recorded."""
        return tuple(dict.fromkeys(e.source for e in self.events if e.source.startswith("worker")))

    def aggregation(self, worker: str) -> tuple[Event, ...]:
        """A worker's gradients, in the order in which they are ready."""
        return tuple(sorted((e for e in self.events if e.source == worker), key=lambda event: event.time_ns))

    @property
    def distribution(self) -> tuple[Event, ...]:
        """What servers send, in order."""
        return tuple(e for e in self.events if e.source.startswith("server"))

    @property
    def lead_ns(self) -> int:
        """Time of the backward pass before the first gradient, in nanoseconds."""
        first = self.aggregation(self.workers[0])[0].parameter
        layer = next(p.layer for p in self.parameters if p.name == first)
        names = [each.name for each in self.layers]
        return sum(each.backward_ns for each in self.layers[names.index(layer) :])

    @property
    def compute_s(self) -> float:
        """Seconds of both passes."""
        return sum(layer.forward_ns + layer.backward_ns for layer in self.layers) / NS

    @property
    def bytes(self) -> int:
        """Total bytes of all gradients."""
        return sum(p.bytes for p in self.parameters if p.trained)

    # ---- editing ----

    def scale_compute(self, factor: float, pattern: str = ".*") -> Trace:
        """Multiply the computing times of layers whose name matches the regular expression `pattern` by a factor."""
        fits = _fitting(self.layers, pattern)
        layers = tuple(
            replace(each, forward_ns=round(each.forward_ns * factor), backward_ns=round(each.backward_ns * factor))
            if each.name in fits
            else each
            for each in self.layers
        )
        owner = {p.name: p.layer for p in self.parameters}
        return replace(
            self,
            layers=layers,
            events=self._regapped(
                lambda gaps: [(round(gap * factor) if owner[e.parameter] in fits else gap, e) for gap, e in gaps]
            ),
        )

    def scale_sizes(self, factor: float, pattern: str = ".*") -> Trace:
        """Multiply the bytes of the parameters of matching layers by a factor; at least 1 byte remains."""
        fits = _fitting(self.layers, pattern)
        sizes = {p.name: max(1, round(p.bytes * factor)) if p.layer in fits else p.bytes for p in self.parameters}
        return replace(
            self,
            parameters=tuple(replace(p, bytes=sizes[p.name]) for p in self.parameters),
            events=tuple(replace(e, bytes=sizes[e.parameter]) for e in self.events),
        )

    def add_layers(self, pattern: str, count: int) -> Trace:
        """Insert `count` copies of the group of matching layers after the last of them."""
        fits = _fitting(self.layers, pattern)
        owner = {p.name: p.layer for p in self.parameters}

        def copied(name: str, copy: int) -> str:
            return f"copy{copy}/{name}"

        place = {each.name: index for index, each in enumerate(self.layers)}

        def grown(gaps: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
            start = next((i for i, (_, e) in enumerate(gaps) if owner[e.parameter] in fits), len(gaps))
            module = [(gap, e) for gap, e in gaps if owner[e.parameter] in fits]
            if not module:
                return gaps
            # Other layers may compute, but send nothing, before the first matching one: their time counts once, not per
            # copy.
            above = place[owner[gaps[start - 1][1].parameter]] if start else len(self.layers)
            between = self.layers[place[owner[module[0][1].parameter]] + 1 : above]
            others = sum(each.backward_ns for each in between if each.name not in fits) if start else 0
            alone = (
                self.layers[place[owner[module[0][1].parameter]]].backward_ns if not start else module[0][0] - others
            )
            again = [(max(0, alone), module[0][1]), *module[1:]]
            copies = [
                (gap, replace(e, parameter=copied(e.parameter, copy)))
                for copy in range(count, 0, -1)
                for gap, e in (module if copy == count else again)
            ]
            return gaps[:start] + copies + [(max(0, alone), gaps[start][1])] + gaps[start + 1 :]

        return Trace(
            tuple(
                _behind(self.layers, lambda x: x.name in fits, count, lambda x, c: replace(x, name=copied(x.name, c)))
            ),
            tuple(
                _behind(
                    self.parameters,
                    lambda p: p.layer in fits,
                    count,
                    lambda p, c: replace(p, name=copied(p.name, c), layer=copied(p.layer, c)),
                )
            ),
            self._regapped(grown)
            + tuple(
                _behind(
                    self.distribution,
                    lambda e: owner[e.parameter] in fits,
                    count,
                    lambda e, c: replace(e, parameter=copied(e.parameter, c)),
                )
            ),
            self.batch,  # its operations are others now
        )

    def _regapped(self, change: Callable[[list[tuple[int, Event]]], list[tuple[int, Event]]]) -> tuple[Event, ...]:
        """The workers' events after a change of their intervals; then, if nothing was added, the servers'."""
        events: list[Event] = []
        for worker in self.workers:
            mine = self.aggregation(worker)
            gaps = [(e.time_ns - (mine[i - 1].time_ns if i else 0), e) for i, e in enumerate(mine)]
            now = 0
            for gap, event in change(gaps):
                now += gap
                events.append(replace(event, time_ns=now))
        added = len(events) != sum(len(self.aggregation(worker)) for worker in self.workers)
        return tuple(events) + (() if added else self.distribution)


def _fitting(layers: Sequence[Layer], pattern: str) -> set[str]:
    try:
        found = {each.name for each in layers if re.match(pattern, each.name)}
    except re.error as error:
        raise HostlibError(f"{pattern!r} is not a regular expression: {error}") from None
    if not found:
        raise HostlibError(f"no layer of the trace matches {pattern!r}")
    return found


T = TypeVar("T")


def _behind(items: Iterable[T], fits: Callable[[T], bool], count: int, renamed: Callable[[T, int], T]) -> Iterator[T]:
    """All items, with `count` renamed copies of the matching ones after the last of them."""
    module = [item for item in items if fits(item)]
    for item in items:
        yield item
        if module and item is module[-1]:
            for copy in range(1, count + 1):
                yield from (renamed(each, copy) for each in module)


def synthesise(layers: Iterable[Layer], parameters: Iterable[Parameter]) -> Trace:
    """Make a trace from computing times: a layer's gradients are ready when its backward pass is done.

    It has one worker and one server. Untrained variables are numbered, but neither aggregated nor distributed.
    """
    layers, parameters = tuple(layers), tuple(parameters)
    for name, times in Counter([x.name for x in layers] + [p.name for p in parameters]).items():
        if times > 1:
            raise HostlibError(f"{name!r} is the name of {times} layers or parameters")
    events: list[Event] = []
    now: int | None = None
    for layer in reversed(layers):
        mine = [p for p in parameters if p.layer == layer.name and p.trained]
        # Relative to the first gradient: earlier time is only in the layers' times.
        now = None if now is None and not mine else 0 if now is None else now + layer.backward_ns
        events += [Event(now or 0, p.name, p.bytes, "worker0", "server0") for p in mine]
    events += [Event(0, p.name, p.bytes, "server0", "worker0") for p in parameters if p.trained]
    return Trace(layers, parameters, tuple(events))


# ---- files ---------------------------------------------------------------------------------------------------------


def as_json_object(trace: Trace) -> dict[str, Any]:
    """A trace's tables by name, a list of rows each."""
    tables = {name: [asdict(row) for row in getattr(trace, name)] for name in ("layers", "parameters", "events")}
    return tables | ({} if trace.batch is None else {"model": [{n: getattr(trace, n) for n in COLUMNS["model"]}]})


def write(trace: Trace, path: Path) -> None:
    """Write a trace; reading the file gives an equal trace."""
    path.write_text(as_text(trace))


def as_text(trace: Trace) -> str:
    """Format a trace as its file's text."""
    lines = ["# netfold trace: times in seconds; docs/simulation.md"]
    if trace.batch is not None:
        known = (trace.batch, trace.flops, trace.family)
        lines += ["[model]", ",".join(COLUMNS["model"]), ",".join("" if x is None else str(x) for x in known)]
    lines += ["[layers]", ",".join(COLUMNS["layers"])]
    lines += [f"{x.name},{_seconds(x.forward_ns)},{_seconds(x.backward_ns)}" for x in trace.layers]
    lines += ["[parameters]", ",".join(COLUMNS["parameters"])]
    lines += [f"{p.name},{p.bytes},{p.layer},{'yes' if p.trained else 'no'}" for p in trace.parameters]
    lines += ["[events]", ",".join(COLUMNS["events"])]
    lines += [f"{_seconds(e.time_ns)},{e.parameter},{e.bytes},{e.source},{e.destination}" for e in trace.events]
    return "\n".join(lines) + "\n"


def _seconds(ns: int) -> str:
    return f"{Decimal(ns) / NS:f}"


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a table, with its location."""

    file: str
    line: int
    values: dict[str, str]

    def error(self, field: str, what: str) -> TraceError:
        return TraceError(self.file, self.line, field, what)

    def text(self, field: str) -> str:
        if not self.values[field]:
            raise self.error(field, "is empty")
        return self.values[field]

    def time_ns(self, field: str) -> int:
        try:
            value = Decimal(self.text(field))
        except InvalidOperation:
            raise self.error(field, f"{self.values[field]!r} is not a number of seconds") from None
        if not value.is_finite() or value < 0:
            raise self.error(field, f"must be a time of 0 or more seconds, not {self.values[field]}")
        return round(value * NS)

    def bytes(self, field: str) -> int:
        return self.count(field, " of bytes")

    def count(self, field: str, of: str = "") -> int:
        text = self.text(field)
        if not re.fullmatch(r"[0-9]+", text) or len(text) > MOST_DIGITS or int(text) == 0:
            raise self.error(field, f"must be a whole number{of} above 0, not {text!r}")
        return int(text)

    def device(self, field: str) -> str:
        text = self.text(field)
        if not DEVICE.fullmatch(text):
            raise self.error(field, f"must be worker0, worker1, ... or server0, server1, ..., not {text!r}")
        return text


def read(path: Path) -> Trace:
    """Read a trace.

    Raises:
        TraceError: it is malformed; names file, line and field.
        HostlibError: the file cannot be read.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise HostlibError(f"{path} cannot be read as a trace: {getattr(error, 'strerror', None) or error}") from None
    tables = _tables(str(path), text)
    layers, parameters = _layers(tables["layers"]), _parameters(tables["parameters"])
    events = _events(tables["events"])
    sizes = {p.name: p.bytes for p in parameters}
    for row, event in zip(tables["events"], events, strict=True):
        if parameters and event.parameter not in sizes:
            raise row.error("parameter", f"{event.parameter!r} is not in [parameters]")
        if sizes.setdefault(event.parameter, event.bytes) != event.bytes:
            raise row.error("bytes", f"{event.parameter} has {sizes[event.parameter]} elsewhere, not {event.bytes}")
    _complete(str(path), text, tables["events"], events)
    if not parameters:
        order = [e for e in events if e.source.startswith("server")] or list(reversed(events))
        first = dict.fromkeys(e.parameter for e in [*order, *events])
        parameters = tuple(Parameter(name, sizes[name], name.rpartition("/")[0] or name) for name in first)
    if not layers:
        layers = tuple(Layer(name, 0, 0) for name in dict.fromkeys(p.layer for p in parameters))
    named = {each.name for each in layers}
    for row, parameter in zip(tables["parameters"], parameters, strict=False):
        if parameter.layer not in named:
            raise row.error("layer", f"{parameter.layer!r} is not in [layers]")
    return Trace(layers, parameters, events, *_model(tables["model"]))


def _model(rows: list[_Row]) -> tuple[int | None, int | None, Family | None]:
    """Batch, FLOPs and family; empty fields are unknown."""
    if not rows:
        return None, None, None
    if len(rows) > 1:
        raise rows[1].error("batch", "a trace is of one model")
    row, family = rows[0], rows[0].values["family"]
    counts = {name: row.count(name) if row.values[name] else None for name in ("batch", "flops")}
    if family not in ("", *get_args(Family)):
        raise row.error("family", f"must be {', '.join(get_args(Family))} or empty, not {family!r}")
    return counts["batch"], counts["flops"], family or None  # type: ignore[return-value]


def _complete(file: str, text: str, rows: list[_Row], events: tuple[Event, ...]) -> None:
    """Check that every recorded worker has every gradient once, the first at time 0."""
    recorded: dict[str, Counter[str]] = {}
    first: dict[str, tuple[int, _Row]] = {}
    for row, event in zip(rows, events, strict=True):
        if event.source.startswith("server"):
            continue
        seen = recorded.setdefault(event.source, Counter())
        seen[event.parameter] += 1
        if seen[event.parameter] > 1:
            raise row.error("parameter", f"{event.source} has {event.parameter!r} twice")
        if event.source not in first or event.time_ns < first[event.source][0]:
            first[event.source] = (event.time_ns, row)
    if not recorded:
        raise TraceError(file, len(text.splitlines()), "source", "no event of a worker: nothing is aggregated")
    for source, (time_ns, row) in first.items():
        if time_ns != 0:
            raise row.error("time_s", f"the first event of {source} must be at 0, times are relative to it")
    everything = set().union(*recorded.values())
    for source, seen in recorded.items():
        if missing := sorted(everything - set(seen)):
            raise first[source][1].error("parameter", f"{source} has no event for {missing[0]!r}, other workers have")


def _tables(file: str, text: str) -> dict[str, list[_Row]]:
    tables: dict[str, list[_Row]] = {name: [] for name in COLUMNS}
    section, columns = "events", None
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        if line.startswith("["):
            section, columns = line.strip("[]"), None
            if section not in COLUMNS:
                raise TraceError(file, number, line, f"no such table; legal are {', '.join(COLUMNS)}")
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if columns is None:
            columns = COLUMNS[section]
            unlike = next((i for i, name in enumerate(columns) if i >= len(cells) or cells[i] != name), None)
            if unlike is not None or len(cells) > len(columns):
                raise TraceError(file, number, "header", f"must be {','.join(columns)}, not {line}")
            continue
        if len(cells) != len(columns):
            field = columns[len(cells)] if len(cells) < len(columns) else columns[-1]
            raise TraceError(file, number, field, f"expected {len(columns)} fields, found {len(cells)}")
        tables[section].append(_Row(file, number, dict(zip(columns, cells, strict=True))))
    return tables


def _unique(rows: list[_Row], field: str) -> None:
    seen: set[str] = set()
    for row in rows:
        if row.values[field] in seen:
            raise row.error(field, f"{row.values[field]!r} appears twice")
        seen.add(row.values[field])


def _layers(rows: list[_Row]) -> tuple[Layer, ...]:
    _unique(rows, "layer")
    return tuple(Layer(r.text("layer"), r.time_ns("forward_s"), r.time_ns("backward_s")) for r in rows)


def _parameters(rows: list[_Row]) -> tuple[Parameter, ...]:
    _unique(rows, "parameter")
    for row in rows:
        if row.values["trained"] not in ("yes", "no"):
            raise row.error("trained", f"must be yes or no, not {row.values['trained']!r}")
    return tuple(
        Parameter(r.text("parameter"), r.bytes("bytes"), r.text("layer"), r.values["trained"] == "yes") for r in rows
    )


def _events(rows: list[_Row]) -> tuple[Event, ...]:
    for row in rows:
        source, destination = row.device("source"), row.device("destination")
        if source.startswith("worker") == destination.startswith("worker"):
            raise row.error("destination", f"{source} sends to a {'server' if source[0] == 'w' else 'worker'}, "
                            f"not to {destination}")  # fmt: skip
    return tuple(
        Event(r.time_ns("time_s"), r.text("parameter"), r.bytes("bytes"), r.values["source"], r.values["destination"])
        for r in rows
    )
