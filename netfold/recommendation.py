"""Recommend how to train a model on a cluster."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hostlib.protocol import constants
from hostlib.text import units
from netfold.cell_options import cell_options
from netfold.question import ask, assumptions_of
from simulation.answers.assumptions import computing_speed
from simulation.answers.question import cells_of, names_of
from simulation.errors import SimulationError
from simulation.experiments.scenario import Scenario
from simulation.models.architectures import BUILDERS
from simulation.models.gpus import find_gpu
from simulation.recommendation.recommendation import Recommendation, Wanted
from simulation.recommendation.recommendation import recommend as recommended
from simulation.recommendation.search import SearchSpace, Tell

BUCKETS = (1 << 20, 5 << 20, 50 << 20, 100 << 20)  # beside DDP's 25 MiB


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, in the words of `netfold ask`.

    Attributes:
        workers: number of GPUs.
        bandwidth: of every host's link, each way.
        gpu: a name that `--gpu` takes; None for published times, or 10 TFLOP/s.
        gpu_memory: of each GPU, as `80GB`; None for that of `gpu`.
        price: of a GPU hour.
        host_link: of each GPU to the others of its host, of which there are `gpus_per_host`.
        racks, oversubscription, latency: see netfold.predict.
    """

    workers: int = 4
    bandwidth: str = "25gbit"
    gpu: str | None = None
    tflops: float | None = None
    gpu_memory: str | None = None
    price: float | None = None
    gpus_per_host: int = 1
    host_link: str = "nvlink4"
    latency: str = "0us"
    racks: int = 1
    oversubscription: float = 1.0
    slots: int | None = None
    elements: int | None = None


OF_SEARCH = ("gpu_memory", "price")  # of Cluster, and no options of a cell


def recommend(
    model: str | None,
    batch: int | None = None,
    cluster: Cluster | None = None,
    *,
    trace: str | Path | None = None,
    examples: int | None = None,
    epochs: int = 1,
    seed: int = 1,
) -> Recommendation:
    """Recommend a strategy, mechanism, parallel plan, bucket size and number of slots; as `netfold ask --search`.

    Args:
        model: a model that `netfold ask` knows; None if `trace` is given.
        batch: examples per worker and iteration; None for 32, or that of the trace.
        cluster: None for four workers.
        trace: path of a trace file.
        examples: of the data set, for the time and cost of `epochs`.
        seed: of intervals.

    Returns:
        The plan, candidates with intervals and memory, and what would change it. Its `recommended` is None if nothing fits
        or all plans take the same.

    Raises:
        UnknownNameError: there is no such mechanism, strategy or option.
        QuantityError: a value is not a bandwidth, time or size.
        SimulationError: there is no such model, or no plan can be simulated on this network.
    """
    cluster = cluster or Cluster()
    defaults = {name: each.default for name, each in inspect.signature(ask).parameters.items()}
    asked = {each.name: getattr(cluster, each.name) for each in fields(cluster) if each.name not in OF_SEARCH}
    arguments = {**defaults, **asked, "model": model, "trace": trace, "batch": batch, "seed": seed}
    given = {name for name, value in arguments.items() if value != defaults[name]} - {"model", "trace"}
    wanted = Wanted(examples, epochs, cluster.price)
    path = None if trace is None else Path(trace)
    options = cell_options(arguments)
    return recommendation(model, path, cluster.bandwidth, options, given, wanted, cluster.gpu_memory)[0]


def recommendation(
    model: str | None,
    trace: Path | None,
    bandwidth: str,
    options: dict[str, Any],
    given: Collection[str],
    wanted: Wanted,
    gpu_memory: str | None = None,
    tell: Tell = lambda line: None,
) -> tuple[Recommendation, Scenario, str]:
    """Search what options leave open.

    Args:
        options: those of simulation/commands/options.py by name.
        given: names of those that differ from their defaults; these are not searched.
        gpu_memory: a size; None for that of the GPU.
        tell: takes a line of progress.

    Returns:
        The recommendation, a cell, and the name of what is trained.

    Raises:
        SimulationError, HostlibError: see recommend.
    """
    if model is None and trace is None:
        raise SimulationError(f"--model is missing; legal are {', '.join(sorted(BUILDERS))}, or --trace")
    options = dict(options)
    mechanisms = options.pop("mechanisms")
    names = names_of([mechanisms] if isinstance(mechanisms, str) else mechanisms)
    workers, jobs, apart = (options.pop(name) for name in ("workers", "jobs", "apart"))
    (cell,), what = cells_of(names[:1], model, trace, None, workers, bandwidth, options, jobs, apart)
    cell.require_counts()
    limit = memory_limit(gpu_memory, options["gpu"])
    semantics = cell.semantics
    free = not mechanisms and cell.workers > 1  # one worker has nothing to exchange
    space = SearchSpace(
        cell,
        names,
        strategies=free and cell.gpus_per_host == 1 and not semantics.servers_first,
        pipelines=free and cell.gpus_per_host == 1 and not semantics.servers_first and cell.jobs == 1,
        buckets=() if {"bucket", "message"} & set(given) or not semantics.bucket_bytes else _buckets(cell),
        slots=() if "slots" in given or not semantics.slots else (constants.SLOTS // 2, constants.SLOTS),
    )
    assumptions = assumptions_of(model, trace, [cell], bandwidth, options, given)
    source = (
        "--gpu-memory"
        if gpu_memory is not None
        else "its data sheet"
        if limit is not None
        else "neither --gpu nor --gpu-memory is given"
    )
    assumptions["GPU memory"] = {
        "value": "unknown: whether plans fit is not checked" if limit is None else f"{limit / 1e9:g} GB",
        "source": source,
    }
    found = recommended(space, assumptions, computing_speed(cell), options["seed"], limit, wanted, tell)
    return found, cell, what


def memory_limit(text: str | None, gpu: str | None) -> int | None:
    """Bytes of a GPU's memory: as given, or the named GPU's.

    Raises:
        QuantityError: it is not a size.
        SimulationError: it is 0, or there is no such GPU.
    """
    if text is not None:
        count = units.size(text, "--gpu-memory")
        if count < 1:
            raise SimulationError(f"--gpu-memory must be at least 1 byte, not {text}")
        return count
    return None if gpu is None else find_gpu(gpu).memory_gb * 10**9


def _buckets(cell: Scenario) -> tuple[int, ...]:
    """Sizes other than the cell's, of which at most one holds the whole model."""
    total = cell.subject.trace.bytes
    smaller = [size for size in BUCKETS if size < total]
    larger = [size for size in BUCKETS if size >= total][:1]
    own = cell.semantics.bucket_bytes
    return tuple(size for size in (*smaller, *larger) if size != own and min(size, own) < total)
