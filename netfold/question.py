"""Ask which mechanism suits a model and a network."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from netfold.cell_options import cell_options
from simulation.answers.answer import Answer
from simulation.answers.assumptions import computing_speed, of_computing, of_cores, of_hosts, of_network, of_pipelines
from simulation.answers.question import cells_of, compare, names_of
from simulation.errors import SimulationError
from simulation.experiments.scenario import Scenario
from simulation.models.architectures import BUILDERS


def ask(
    model: str | None = None,
    workers: int = 4,
    bandwidth: str = "25gbit",
    *,
    mechanisms: Sequence[str] | str = (),
    trace: str | Path | None = None,
    size: str | None = None,
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
) -> Answer:
    """Ask which mechanism suits a model and a network; the same answer as `netfold ask`.

    Parameters that are not listed below are those of netfold.predict.

    Args:
        model: a model that `netfold ask` knows; None if `trace` or `size` is given.
        mechanisms: those to compare, or a list in a text, as `ring,ps`; all that have a schedule if there are none.
        seed: of the perturbations from which intervals follow, and of jitter.

    Returns:
        The answer in a sentence, a row for each mechanism with its interval, and all assumptions.

    Raises:
        UnknownNameError: there is no such mechanism, strategy or option.
        QuantityError: a value is not a bandwidth, time or size.
        SimulationError: there is no such model, or no mechanism can be simulated on this network.
    """
    arguments = dict(locals())
    defaults = {name: each.default for name, each in inspect.signature(ask).parameters.items()}
    given = {name for name, value in arguments.items() if value != defaults[name]} - {"model", "trace"}
    path = None if trace is None else Path(trace)
    return question(model, path, size, bandwidth, cell_options(arguments), given)[0]


def question(
    model: str | None,
    trace: Path | None,
    size: str | None,
    bandwidth: str,
    options: dict[str, Any],
    given: Collection[str],
) -> tuple[Answer, list[Scenario], str]:
    """Answer a question that options describe.

    Args:
        options: those of simulation/commands/options.py by name.
        given: names of those that differ from their defaults.

    Returns:
        The answer, its cells, and the name of their subject.

    Raises:
        SimulationError, HostlibError: see ask.
    """
    if model is None and trace is None and size is None:
        raise SimulationError(f"--model is missing; legal are {', '.join(sorted(BUILDERS))}, or --trace or --size")
    options = dict(options)
    mechanisms = options.pop("mechanisms")
    names = names_of([mechanisms] if isinstance(mechanisms, str) else mechanisms)
    workers, jobs, apart = (options.pop(name) for name in ("workers", "jobs", "apart"))
    cells, what = cells_of(names, model, trace, size, workers, bandwidth, options, jobs, apart)
    assumptions = assumptions_of(model, trace, cells, bandwidth, options, given)
    return compare(cells, assumptions, computing_speed(cells[0]), options["seed"]), cells, what


def assumptions_of(
    model: str | None,
    trace: Path | None,
    cells: Sequence[Scenario],
    bandwidth: str,
    options: dict[str, Any],
    given: Collection[str],
) -> dict[str, Mapping[str, Any]]:
    """What cells rest on that differ in their plans alone, each with its source; for the arguments see question."""
    cell = cells[0]
    return {
        **of_computing(model, trace, cell, given),
        **of_pipelines(cells),
        **of_hosts(cell, options["host_link"], given),
        **of_cores(cell, options["host_costs"], given),
        **of_network(cell, bandwidth, options["latency"], given),
    }
