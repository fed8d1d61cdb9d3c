"""Predict the time of an iteration with the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from netfold.cell_options import cell_options
from simulation.answers.question import cells_of
from simulation.experiments.single_iteration import SimulatedIteration, simulate


def predict(
    model: str | None,
    mechanism: str,
    workers: int = 4,
    bandwidth: str = "25gbit",
    *,
    trace: str | Path | None = None,
    size: str | None = None,
    collective: str = "all_reduce",
    jobs: int = 1,
    apart: bool = False,
    pixels: int | tuple[int, ...] | None = None,
    batch: int | None = None,
    forward: str | None = None,
    backward: str | None = None,
    tflops: float | None = None,
    gpu: str | None = None,
    gpus_per_host: int = 1,
    host_link: str = "nvlink4",
    host_costs: str | Path | None = None,
    cores: int | None = None,
    latency: str = "0us",
    overhead: str = "0us",
    racks: int = 1,
    oversubscription: float = 1.0,
    spines: int = 1,
    topology: str | Path | None = None,
    semantics: Literal["runtime", "papers"] | None = None,
    headers: bool | None = None,
    framing: Literal["physical", "emulated"] = "physical",
    elements: int | None = None,
    mtu: int | None = None,
    recirculation: str | None = None,
    store_and_aggregate: bool = False,
    store_and_forward: bool = False,
    slots: int | str | None = None,
    bucket: str | None = None,
    message: str | None = None,
    barrier: Literal["global", "none"] = "global",
    order: Literal["round-robin", "block", "random", "priority"] = "round-robin",
    pipelined: Literal["yes", "no"] | None = None,
    iterations: int | None = None,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 1,
) -> SimulatedIteration:
    """Predict the time of a training iteration with the simulator; the same numbers as `simulation run`.

    Quantities are strings with a unit: bandwidths as `25gbit`, times as `5us`, sizes as `16MiB` or in bytes. Parameters
    that are not listed below are the options of the same name of `simulation run`; its help describes them.

    Args:
        model: a network of the zoo, MODULE:FACTORY, or a trace's path; None if `trace` or `size` is given.
        mechanism: as `ring` or `ps:servers=4`, or with a strategy, as `hybcomm/ring`.
        workers: number of GPUs that compute, of which each host has `gpus_per_host`.
        host_costs: a file that `hostlib bench --calibrate` wrote: what hosts' cores take; None if they keep up with
            their links. `cores` of each host sum by the slot protocol; at most four; None for all that the file has.
        host_link: of each GPU to the others of its host: a name as `nvlink4`, or a rate as `400gbit`, each way.
        bandwidth: of every host's link, in each direction.
        trace: path of a trace file, simulated in place of a model.
        size: of one bare tensor, in place of a model; 16 MiB if neither model, trace nor size is given.
        collective: what is done with that tensor: all_reduce, reduce_scatter, all_gather, broadcast, reduce or
            all_to_all. The size is that of each rank's whole tensor.
        jobs: number of identical jobs that run at the same time; with `apart`, each on its own hosts.
        pixels: shape of one example (--input): the width of square images, a number of tokens, or all extents; None for
            the model's own.
        batch: examples per worker and iteration; None for 32, or for that of the trace.
        forward, backward: times of the passes; None for published ones, or else derived from `tflops` (10^12 operations
            per second, as training achieves them) or `gpu` (a name that the help of `simulation run` lists).
        latency: one way, host to host.
        semantics: `runtime` plays what hosts and switches do; `papers` whole tensors without headers, in fabrics without
            limits; None for `runtime`, or `papers` with `store_and_aggregate` or `store_and_forward`.
        slots: number of slots of each job on a switch, of 1 KiB each; 0 for no limit; None as the semantics have it.
        bucket: up to this size gradients are summed together; None as the semantics have it.
        racks, oversubscription: leaf switches of a leaf-spine network, and the oversubscription of their links to the
            spine; 1 rack is a star.
        spines: uplinks of each leaf, which share its bandwidth; hosts' streams are spread over them by a hash.
        topology: file (TOML) with a table [topology], in place of racks.
        stragglers: rank -> how many times slower it computes.

    Returns:
        Times in seconds, and bytes per link.

    Raises:
        UnknownNameError: there is no such mechanism, strategy, option or collective.
        ScheduleError: the mechanism does not do the collective.
        QuantityError: a value is not a bandwidth, time or size.
        SimulationError: there is no such model, or the job or network is impossible.

    Source: docs/simulation.md (what is simulated) and docs/measurements/published-tables.md (how close it comes to
        published times).
    """
    options = cell_options(locals())
    path = None if trace is None else Path(trace)
    (cell,), _ = cells_of([mechanism], model, path, size, workers, bandwidth, options, jobs, apart)
    return simulate(cell)
