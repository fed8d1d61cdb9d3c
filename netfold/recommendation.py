"""Recommend how to train a model on a cluster."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from pathlib import Path

from hostlib.protocol import constants
from hostlib.text import units
from netfold.cell_options import cell_options
from netfold.question import Asked, ask
from simulation.answers.assumptions import computing_speed
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
    links: str | Path | None = None,
    calibration: str | Path | None = None,
    seed: int = 1,
) -> Recommendation:
    """Recommend a strategy, mechanism, parallel plan, bucket size and number of slots; as `netfold ask --search`.

    Args:
        model: a model that `netfold ask` knows; None if `trace` is given.
        batch: examples per worker and iteration; None for 32, or that of the trace.
        cluster: None for four workers.
        trace: path of a trace file.
        examples: of the data set, for the time and cost of `epochs`.
        links, calibration: see netfold.ask.
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
    of_cluster = {each.name: getattr(cluster, each.name) for each in fields(cluster) if each.name not in OF_SEARCH}
    arguments = {
        **defaults,
        **of_cluster,
        "model": model,
        "trace": trace,
        "batch": batch,
        "links": links,
        "calibration": calibration,
        "seed": seed,
    }
    given = {name for name, value in arguments.items() if value != defaults[name]} - {"model", "trace"}
    wanted = Wanted(examples, epochs, cluster.price)
    path = None if trace is None else Path(trace)
    asked = Asked(model, path, None, cluster.bandwidth, cell_options(arguments), given)
    return recommendation(asked, wanted, cluster.gpu_memory)[0]


def recommendation(
    asked: Asked,
    wanted: Wanted,
    gpu_memory: str | None = None,
    tell: Tell = lambda line: None,
) -> tuple[Recommendation, Scenario, str]:
    """Search what a question leaves open.

    Args:
        asked: what it gives is not searched.
        gpu_memory: a size; None for that of the GPU.
        tell: takes a line of progress.

    Returns:
        The recommendation, a cell, and the name of what is trained.

    Raises:
        SimulationError, HostlibError: see recommend.
    """
    if asked.model is None and asked.trace is None:
        raise SimulationError(f"--model is missing; legal are {', '.join(sorted(BUILDERS))}, or --trace")
    options, given, calibration = asked.options, asked.given, asked.calibration
    cells, what = asked.cells()
    cell = cells[0]
    cell.require_counts()
    limit = memory_limit(gpu_memory, options["gpu"])
    semantics = cell.semantics
    free = not options["mechanisms"] and cell.workers > 1  # one worker has nothing to exchange
    space = SearchSpace(
        cell,
        tuple(each.mechanism for each in cells),
        strategies=free and cell.gpus_per_host == 1 and not semantics.servers_first,
        pipelines=free and cell.gpus_per_host == 1 and not semantics.servers_first and cell.jobs == 1,
        buckets=() if {"bucket", "message"} & set(given) or not semantics.bucket_bytes else _buckets(cell),
        slots=() if "slots" in given or not semantics.slots else (constants.SLOTS // 2, constants.SLOTS),
    )
    assumptions = asked.assumptions([cell], calibration)
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
    speed, seed = computing_speed(cell), options["seed"]
    found = recommended(space, assumptions, speed, seed, limit, wanted, tell, calibration)
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
