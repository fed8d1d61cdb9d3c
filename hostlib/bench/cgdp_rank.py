"""Compare CGDP's cost model with measurements on this machine.

Workers on one host measure the cost of each layer, and the backward pass with each chunk size. `python -m
hostlib.bench.cgdp_rank` is one worker; `hostlib cgdp check` starts them.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.collectives.bootstrap import join_group
from hostlib.collectives.collective import Collective
from hostlib.collectives.create import create_collective
from hostlib.collectives.shared_memory import SharedMemoryCollective
from hostlib.errors import RunError
from hostlib.launch.hosts import LocalHosts
from hostlib.launch.launcher import run_ranks
from hostlib.mechanisms.mechanism import find
from hostlib.models.inspection import example, input_of
from hostlib.models.loading import load_model
from hostlib.strategies.builtin.cgdp.cgdp_options import Options
from hostlib.strategies.builtin.cgdp.cgdp_trainer import HostAccumulating, trained_layers
from hostlib.strategies.builtin.cgdp.cost_model import LayerCost, partition, predict, without_overlap
from hostlib.strategies.trainer import TrainerContext
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.rank_context import RankContext

NS_PER_S = 1e9
WARM_UP = 2
LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What to measure.

    Attributes:
        shape: of one example; None for the model's own.
        chunks: chunk sizes.
        batch: examples per worker.

    Raises:
        RunError: a number is out of range.
    """

    model: str
    chunks: tuple[int, ...]
    shape: tuple[int, ...] | None = None
    workers: int = 2
    batch: int = 8
    steps: int = 20
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("workers", "batch", "steps"):
            if getattr(self, name) < 1:
                flag = "iterations" if name == "steps" else name
                raise RunError(f"--{flag} must be at least 1, not {getattr(self, name)}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CheckOptions:
        fields = json.loads(text)
        shape = fields.pop("shape")
        return cls(**{**fields, "chunks": tuple(fields["chunks"])}, shape=tuple(shape) if shape else None)


@dataclass(frozen=True, slots=True)
class Compared:
    """Backward pass with a chunk size until the last sum has arrived, in seconds; size None: all sums after it."""

    chunk: int | None
    chunks: int
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Error of the prediction, relative to the measurement."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class CostModelCheck:
    """Results of the comparison.

    Attributes:
        costs: of layers 1 to l.
        rows: each chunk size, and last: everything summed after the backward pass.
    """

    costs: list[LayerCost]
    rows: list[Compared]


def check(options: CheckOptions) -> CostModelCheck:
    """Start the workers, measure, and compare.

    Raises:
        RunError: one of them failed.
        UnknownNameError, ModelError: there is no such model.
    """
    with torch.device("meta"):
        load_model(options.model)  # Report impossible options once, not once per worker.
    measured = run_ranks(__name__, lambda rank: options.to_json(), options.workers, LocalHosts(), lambda event: None)
    costs = [LayerCost(**cost) for cost in measured["costs"]]
    rows = []
    for size, measured_s in measured["measured_s"].items():
        prediction = predict(costs, partition(len(costs), int(size)))
        rows.append(Compared(int(size), len(prediction.chunks), prediction.total, measured_s))
    rows.append(Compared(None, 1, without_overlap(costs), measured["afterwards_s"]))
    return CostModelCheck(costs, rows)


# ---- one worker ------------------------------------------------------------------------------------------------------


class NoSums:
    """A collective that does nothing: what remains of a step is the backward pass."""

    def __init__(self) -> None:
        self.failures: list[dict[str, Any]] = []

    def allreduce(
        self, tensor: Tensor, average: bool, future: torch.futures.Future[Tensor] | None = None
    ) -> torch.futures.Future[Tensor]:
        future = torch.futures.Future() if future is None else future
        future.set_result(tensor)
        return future

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None: ...


class Worker:
    """One rank: the same model twice, with sums and without."""

    def __init__(self, options: CheckOptions, rank_context: RankContext, sums: SharedMemoryCollective) -> None:
        self._options, self._sums = options, sums
        self._alone = self._trainer(rank_context, NoSums())
        self._together = self._trainer(rank_context, sums)
        self._layers = len(trained_layers(self._together.model))
        model = self._together.model
        inputs = example(model, options.shape or input_of(model))
        shape = (options.batch, *inputs.shape[1:])
        self._inputs = torch.randn(shape) if inputs.is_floating_point() else torch.zeros(shape, dtype=inputs.dtype)
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def _trainer(self, rank_context: RankContext, collective: Collective) -> HostAccumulating:
        torch.manual_seed(1)
        options, model = self._options, load_model(self._options.model)
        context = TrainerContext(
            rank_context,
            find("shm"),
            model,
            lambda outputs, _: outputs.square().mean(),
            partial(torch.optim.SGD, lr=LEARNING_RATE),
            collective,
            batch_size=options.batch,
            bucket_mb=1.0,
            example=lambda: example(model, options.shape or input_of(model)),
        )
        return HostAccumulating(context, Options(chunk=1))

    def measure(self) -> dict[str, float]:
        """Median seconds of each measurement, by name. Kinds of steps alternate, so that disturbances affect all of
        them.
        """
        for number in range(WARM_UP + self._options.steps):
            if number == WARM_UP:
                self._seconds.clear()
            self._backward()
            self._layer_by_layer()
            for size in self._options.chunks:
                self._with_chunks(size)
        return {name: statistics.median(values) for name, values in self._seconds.items()}

    def _note(self, name: str, ns: int) -> None:
        self._seconds[name].append(ns / NS_PER_S)

    def _backward(self) -> None:
        """Measure back-propagation, layer by layer, on all workers at the same time; then one sum of everything."""
        dist.barrier()
        self._alone.step(self._inputs, self._inputs)
        times = self._alone.state.step
        before_ns = times.backward_begin_ns
        for span in times.spans:
            self._note(f"bp {self._layers - span.bucket}", span.begin_ns - before_ns)
            before_ns = span.begin_ns
        begin_ns = time.perf_counter_ns()
        self._sums.allreduce(self._alone.gradients, average=True).wait()
        summed_ns = time.perf_counter_ns() - begin_ns
        self._note("afterwards", times.backward_end_ns - times.backward_begin_ns + summed_ns)

    def _layer_by_layer(self) -> None:
        """Measure handing over, accumulation and broadcast of each layer alone."""
        self._together.cut(1)
        for number, part in enumerate(self._together.parts):
            before = self._sums.accumulation_ns, self._sums.broadcast_ns
            begin_ns = time.perf_counter_ns()
            future = self._sums.allreduce(part.values, average=True)
            self._note(f"as {self._layers - number}", time.perf_counter_ns() - begin_ns)
            future.wait()
            self._note(f"aa {self._layers - number}", self._sums.accumulation_ns - before[0])
            self._note(f"bc {self._layers - number}", self._sums.broadcast_ns - before[1])

    def _with_chunks(self, size: int) -> None:
        self._together.cut(size)
        dist.barrier()
        self._together.step(self._inputs, self._inputs)
        times = self._together.state.step
        self._note(f"chunk {size}", max(span.done_ns for span in times.spans) - times.backward_begin_ns)


def work(options: CheckOptions, here: LaunchEnvironment) -> dict[str, Any]:
    """Run one worker; returns the means over all workers."""
    torch.set_num_threads(1)
    with join_group(here, "check", options.deadline_s) as (rank_context, job):
        sums = create_collective(find("shm"), rank_context, "", job)
        assert isinstance(sums, SharedMemoryCollective)
        try:
            mine = Worker(options, rank_context, sums).measure()
            everybody: list[Any] = [None] * here.world_size
            dist.all_gather_object(everybody, mine)
        finally:
            sums.close()
    mean = {name: statistics.mean(each[name] for each in everybody) for name in mine}
    layers = range(1, 1 + sum(name.startswith("bp ") for name in mean))
    return {
        "costs": [
            asdict(LayerCost(*(mean[f"{kind} {layer}"] for kind in ("bp", "as", "aa", "bc")))) for layer in layers
        ],
        "measured_s": {size: mean[f"chunk {size}"] for size in options.chunks},
        "afterwards_s": mean["afterwards"],
    }


def main() -> None:
    """Run this process's part."""
    from hostlib.launch.rank_main import run_part

    run_part("hostlib cgdp check", lambda text, here, tell: work(CheckOptions.from_json(text), here))


if __name__ == "__main__":
    main()
