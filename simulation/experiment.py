"""Experiments: one file says what is compared; simulation, emulation and real hosts read the same one.

A file (TOML) has a `[cells]` table, whose lists are combined, and may have `[topology]` and `[replay]`; docs/experiments.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from hostlib import quantity
from hostlib.errors import HostlibError
from hostlib.layers import LayerInfo
from hostlib.plan import Plan
from hostlib.registry import Mechanism, find, registered
from hostlib.strategy import Choice, choose
from hostlib.trace import Trace, read
from hostlib.wire import frame_bytes
from simulation.engine import Job, play
from simulation.errors import SimulationError
from simulation.network import LEAVES, Network
from simulation.synthesis import DEFAULT_BATCH, model_layers, model_trace
from simulation.workload import Workload, of_plan

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

# A full segment of TCP with timestamps (RFC 7323) in an Ethernet frame, and its half of an acknowledgement of two
# (RFC 5681, 4.2) that shares the link with the other direction's segments.
TCP_PAYLOAD, TCP_FRAME, HALF_ACKNOWLEDGEMENT = 1448, 1514, 33
TURNS = 256  # in which streams share a link while a tensor is sent, at most: more is exacter, and takes longer
TCP_EFFICIENCY = TCP_PAYLOAD / (TCP_FRAME + HALF_ACKNOWLEDGEMENT)
ROOT_KEYS = ("title", "seed", "cells", "topology", "replay", "training")


class ExperimentError(SimulationError):
    """A file that is no experiment; one line that names file and key."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement.

    Attributes:
        mechanism: with a strategy's name before it, where it is another than wfbp.
        bandwidth: of every host's link, as the file has it.
        loss: probability that a frame is lost, per link and direction.
        jobs: so many of the same at a time, on hosts of their own.
    """

    model: str
    mechanism: str
    bandwidth: str
    workers: int
    loss: float = 0.0
    jobs: int = 1

    @property
    def name(self) -> str:
        """What its files are called."""
        words = [Path(self.model).stem, self.mechanism, self.bandwidth, f"{self.workers}w"]
        words += [f"{self.loss:g}loss"] if self.loss else []
        words += [f"{self.jobs}jobs"] if self.jobs > 1 else []
        return re.sub(r"[^\w.+=-]", "_", "-".join(words))


@dataclass(frozen=True, slots=True)
class Replay:
    """How a model's training is played.

    Attributes:
        dilation: times which all takes longer: links are slower by so much, computing lasts so much longer; 0 for what
            the emulation thinks it needs.
        shrink: times which tensors are smaller, and links slower: the same times with fewer bytes.
        iterations, warm_up: measured, and played before.
        bucket_bytes: gradients are summed together up to so many (unshrunk), as DDP does; 0 for each alone.
    """

    dilation: float = 0.0
    shrink: float = 1.0
    iterations: int = 3
    warm_up: int = 1
    bucket_bytes: int = 25 * 2**20
    batch: int = DEFAULT_BATCH
    pixels: int | None = None
    tflops: float | None = None


@dataclass(frozen=True, slots=True)
class Training:
    """How models are trained in earnest, instead of being replayed.

    Attributes:
        batch_size: of each worker.
        bucket_mb: of DDP, MiB.
    """

    iterations: int = 10
    warm_up: int = 2
    batch_size: int = 16
    bucket_mb: float = 25.0


@dataclass(frozen=True)
class Experiment:
    """What a file says.

    Attributes:
        topology: its table, as it is there; see emulation/topology.
        training: None where computing is replayed.
    """

    name: str
    title: str
    text: str
    cells: tuple[Cell, ...]
    topology: Mapping[str, Any]
    replay: Replay
    seed: int = 1
    training: Training | None = None
    _models: dict[str, tuple[Trace, tuple[LayerInfo, ...]]] = field(default_factory=dict, repr=False)
    _plans: dict[tuple[str, str, int], Plan] = field(default_factory=dict, repr=False)

    @cached_property
    def folder(self) -> str:
        """What a run's directory is called."""
        return re.sub(r"[^\w.-]", "_", self.name)

    def plan(self, cell: Cell) -> Plan:
        """What a cell's strategy makes of its model; shrunk.

        Raises:
            HostlibError, SimulationError: there is no such model or trace, or not enough is known of it.
        """
        if cell.model not in self._models:
            self._models[cell.model] = self._model(cell.model)
        key = cell.model, cell.mechanism, cell.workers
        if key not in self._plans:
            trace, layers = self._models[cell.model]
            plan = self.choice(cell).plan(trace, layers, cell.workers, self.replay.batch)
            self._plans[key] = plan.scaled(1 / self.replay.shrink)
        return self._plans[key]

    def workload(self, cell: Cell) -> Workload:
        """What one of a cell's workers does in an iteration; tensors shrunk, times undilated.

        Raises:
            HostlibError, SimulationError: see plan.
        """
        return self._workload(self.plan(cell))

    def _workload(self, plan: Plan) -> Workload:
        return of_plan(plan, bucket_bytes=round(self.replay.bucket_bytes / self.replay.shrink))

    def _model(self, name: str) -> tuple[Trace, tuple[LayerInfo, ...]]:
        if name.endswith(".trace") or "/" in name:
            return read(Path(name)), ()
        replay = self.replay
        trace = model_trace(name, replay.pixels, batch=replay.batch, tflops=replay.tflops)
        return trace, model_layers(name, replay.pixels)

    def racks(self, cell: Cell) -> int:
        """Leaves of a leaf-spine network; 1 for a star."""
        if self.topology.get("kind") != "leaf-spine":
            return 1
        return int(self.topology.get("leaves", min(LEAVES, cell.workers * cell.jobs)))

    def choice(self, cell: Cell) -> Choice:
        """A cell's; where switches form a tree, with the form that is summed at all levels, as the fabric does it."""
        plain, racks = choose(cell.mechanism), self.racks(cell)
        mechanism = plain.mechanism
        if racks > 1 and "racks" in mechanism.options and "racks" not in mechanism.chosen:
            return Choice(plain.strategy, find(f"{mechanism.name}:racks={racks}"))
        return plain

    def network(self, cell: Cell) -> Network:
        """What the simulator plays a cell on: what its links carry besides headers.

        Raises:
            SimulationError: the topology is one that it cannot play.
        """
        kind = self.topology.get("kind", "star")
        if kind not in ("star", "leaf-spine"):
            raise SimulationError(f"a {kind} topology cannot be simulated; legal are star, leaf-spine")
        link = quantity.bandwidth(cell.bandwidth) / self.replay.shrink
        mechanism = choose(cell.mechanism).mechanism
        # A switch passes a frame on when it has the whole of it.
        frame_ns = round(frame_size(mechanism) * 8e9 / link)
        return Network(
            link * wire_efficiency(mechanism),
            latency_ns=2 * quantity.time_ns(self.topology.get("delay", "0us")) + frame_ns,
            racks=self.racks(cell),
            oversubscription=self.topology.get("oversubscription", 1.0),
            turn_bytes=max(TCP_PAYLOAD, max(tensor.bytes for tensor in self.workload(cell).tensors) // TURNS),
            servers_on_spine=True,
        )

    def simulated_s(self, cell: Cell) -> float | None:
        """An iteration's time by simulation, undilated; None for what a library's own mechanism sums, where frames are
        lost, and where computing takes what it takes.

        What is played is data-parallel training as DDP does it: the forward pass begins when all is summed.
        """
        mechanism = self.choice(cell).mechanism
        if cell.loss or self.training is not None or (mechanism.build is None and self.workload(cell).summed):
            return None
        # Links carry the mechanism's frames; what goes by others is as much larger as those are worse.
        plan = self.plan(cell).with_exchanges_scaled(wire_efficiency(mechanism) / TCP_EFFICIENCY)
        job = Job(
            self._workload(plan), mechanism, cell.workers, bare=True, pipelined=False, channels=mechanism.channels
        )
        return play(self.network(cell), [job] * cell.jobs, apart=True).outcomes[0].iteration_s


def frame_size(mechanism: Mechanism) -> int:
    """Bytes of a full frame: of the slot protocol, or TCP's."""
    return frame_bytes()[1] if mechanism.needs_fabric else TCP_FRAME


def wire_efficiency(mechanism: Mechanism) -> float:
    """Values' share of what a link carries in both directions: frames of the slot protocol, or TCP's."""
    if mechanism.needs_fabric:
        payload, frame = frame_bytes()
        return payload / frame
    return TCP_EFFICIENCY


# ---- files ---------------------------------------------------------------------------------------------------------


def read_experiment(path: Path) -> Experiment:
    """An experiment's file.

    Raises:
        ExperimentError: it cannot be read, has a key that does not exist, or a value that cannot be.
    """
    try:
        text = path.read_text()
        told = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as wrong:
        reason = wrong.strerror if isinstance(wrong, OSError) else "it is not text"
        raise ExperimentError(f"{path} cannot be read: {reason}") from None
    except tomllib.TOMLDecodeError as wrong:
        raise ExperimentError(f"{path} is not TOML: {wrong}") from None
    try:
        return _experiment(path.stem, text, told)
    except (SimulationError, HostlibError) as wrong:
        raise ExperimentError(f"{path}: {wrong}") from None


def _experiment(name: str, text: str, told: dict[str, Any]) -> Experiment:
    _only("", told, ROOT_KEYS)
    experiment = Experiment(
        name,
        _of_kind("title", told.get("title", name), str),
        text,
        _cells(_of_kind("cells", told.get("cells"), dict)),
        _of_kind("topology", told.get("topology", {}), dict),
        _replay(_of_kind("replay", told.get("replay", {}), dict)),
        _of_kind("seed", told.get("seed", 1), int),
        _training(told["training"], told) if "training" in told else None,
    )
    for cell in experiment.cells:
        choose(cell.mechanism).require_workers(cell.workers)
    if experiment.training is not None:
        return experiment
    for cell in {(each.model, each.mechanism): each for each in experiment.cells}.values():
        experiment.workload(cell)
    return experiment


def _cells(table: dict[str, Any]) -> tuple[Cell, ...]:
    _only("cells.", table, ("models", "mechanisms", "bandwidths", "workers", "loss", "jobs"))
    models = _listed(table, "models", str)
    mechanisms = _listed(table, "mechanisms", str, _runnable())
    bandwidths = _listed(table, "bandwidths", str, ["25gbit"])
    workers = _listed(table, "workers", int, [8])
    losses = [float(value) for value in _listed(table, "loss", (int, float), [0.0])]
    jobs = _listed(table, "jobs", int, [1])
    for mechanism in mechanisms:
        choose(mechanism)
    for bandwidth in bandwidths:
        quantity.bandwidth(bandwidth)
    for key, values in (("workers", workers), ("jobs", jobs)):
        if min(values) < 1:
            raise ExperimentError(f"cells.{key} must be at least 1, not {min(values)}")
    if not all(0 <= loss < 1 for loss in losses):
        raise ExperimentError("cells.loss must be probabilities in [0, 1)")
    # Cells of one network follow each other: it is set up once.
    combined = product(workers, bandwidths, losses, jobs, models, mechanisms)
    return tuple(Cell(m, how, bandwidth, n, loss, count) for n, bandwidth, loss, count, m, how in combined)


def _runnable() -> list[str]:
    return [name for name, mechanism in registered().items() if mechanism.build is not None and mechanism.runs_on_hosts]


def _replay(table: dict[str, Any]) -> Replay:
    legal = [each.name if each.name != "bucket_bytes" else "bucket" for each in fields(Replay)]
    _only("replay.", table, legal)
    given = dict(table)
    if "bucket" in given:
        bucket = given.pop("bucket")
        given["bucket_bytes"] = quantity.size(bucket if isinstance(bucket, str) else str(bucket))
    least = {"dilation": 0, "shrink": 1, "iterations": 1, "warm_up": 0, "batch": 1, "pixels": 1, "tflops": 0}
    _numbers("replay.", given, least, ("dilation", "shrink", "tflops"))
    return Replay(**given)


def _training(table: Any, told: dict[str, Any]) -> Training:
    _only("training.", _of_kind("training", table, dict), [each.name for each in fields(Training)])
    if "replay" in told:
        raise ExperimentError("replay and training exclude each other")
    least = {"iterations": 1, "warm_up": 1, "batch_size": 1, "bucket_mb": 0.001}
    _numbers("training.", table, least, ("bucket_mb",))
    return Training(**table)


def _numbers(where: str, given: dict[str, Any], least: dict[str, float], fractions: tuple[str, ...]) -> None:
    for key, lowest in least.items():
        value = given.get(key, lowest)
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value < float("inf"):
            raise ExperimentError(f"{where}{key} must be a number of at least {lowest}, not {value!r}")
        if key in given and key not in fractions and not isinstance(value, int):
            raise ExperimentError(f"{where}{key} must be a whole number, not {value!r}")


def _only(where: str, table: dict[str, Any], legal: tuple[str, ...] | list[str]) -> None:
    for key in table:
        if key not in legal:
            raise ExperimentError(f"{where}{key} is no key of an experiment; legal are {', '.join(legal)}")


def _of_kind(key: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        names = {str: "a text", int: "a whole number", dict: "a table"}
        raise ExperimentError(f"{key} must be {names[kind]}" + ("" if value is None else f", not {value!r}"))
    return value


def _listed(table: dict[str, Any], key: str, kind: Any, default: list[Any] | None = None) -> list[Any]:
    values = table.get(key, default)
    right = isinstance(values, list) and values
    if not right or not all(isinstance(value, kind) and not isinstance(value, bool) for value in values):
        raise ExperimentError(f"cells.{key} must be a list that is not empty" + (
            "" if values is None else f" of {'texts' if kind is str else 'numbers'}, not {values!r}"
        ))  # fmt: skip
    return list(dict.fromkeys(values))
