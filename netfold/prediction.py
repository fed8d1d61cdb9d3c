"""What the simulator says of an iteration, for Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from simulation.experiments.single_iteration import SimulatedIteration, network_of, simulate, subject_of
from simulation.models.synthetic_trace import DEFAULT_BATCH


def predict(
    model: str | None,
    mechanism: str,
    workers: int = 4,
    bandwidth: str = "25gbit",
    *,
    trace: str | Path | None = None,
    size: str | None = None,
    jobs: int = 1,
    apart: bool = False,
    pixels: int | None = None,
    batch: int = DEFAULT_BATCH,
    forward: str | None = None,
    backward: str | None = None,
    tflops: float | None = None,
    latency: str = "0us",
    overhead: str = "0us",
    racks: int = 1,
    oversubscription: float = 1.0,
    store_and_aggregate: bool = False,
    store_and_forward: bool = False,
    slots: int | str = 0,
    message: str = "0",
    barrier: Literal["global", "none"] = "global",
    order: Literal["round-robin", "block", "random", "priority"] = "round-robin",
    pipelined: Literal["yes", "no"] | None = None,
    iterations: int | None = None,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 1,
) -> SimulatedIteration:
    """What an iteration takes on a network that is not here, by the simulator: the numbers of `simulation run`.

    Quantities are texts with a unit: bandwidths as `25gbit`, times as `5us`, sizes as `16MiB` or in bytes. What is not
    listed below, `simulation run` has as an option of that name, and says in its help what it is.

    Args:
        model: of those that `simulation run` knows; None for `trace` or `size`.
        mechanism: as `ring` or `ps:servers=4`, or a strategy and one, as `hybcomm/ring`.
        workers: how many hosts compute.
        bandwidth: of every host's link, each way.
        trace: a trace file that is simulated in place of a model.
        size: of one bare all-reduce in place of a model; 16 MiB if nothing is named.
        jobs: so many of the same at a time; with `apart`, on hosts of their own.
        pixels: width of the model's square images (--input); None for the model's own.
        batch: images per worker and iteration.
        forward, backward: times of the passes; None for published ones, or else by `tflops` (10^12 operations a second).
        latency: one way, host to host.
        slots: of each job on a switch, of 1 KiB each; 0 for no limit.
        racks, oversubscription: switches of a leaf-spine network, and of each one's way to the spine; 1 is a star.
        stragglers: by rank: how many times slower it computes.

    Returns:
        Seconds, and bytes by link.

    Raises:
        UnknownNameError: no such mechanism, strategy or option of one.
        QuantityError: something is no bandwidth, time or size.
        SimulationError: no such model, or a job or network that cannot be.

    Source: docs/simulation.md and docs/measurements/published-tables.md: what is played, and how near it comes to published times.
    """
    options = {
        "pixels": pixels,
        "batch": batch,
        "forward": forward,
        "backward": backward,
        "tflops": tflops,
        "latency": latency,
        "overhead": overhead,
        "racks": racks,
        "oversubscription": oversubscription,
        "store_and_aggregate": store_and_aggregate,
        "store_and_forward": store_and_forward,
        "slots": slots,
        "message": message,
        "barrier": barrier,
        "order": order,
        "pipelined": pipelined,
        "iterations": iterations,
        "jitter": jitter,
        "stragglers": tuple(f"{rank}={factor}" for rank, factor in (stragglers or {}).items()),
        "seed": seed,
    }
    network = network_of(bandwidth, options)
    subject, _ = subject_of(model, None if trace is None else Path(trace), size, options)
    return simulate(network, subject, mechanism, workers, options, jobs, apart)
