"""Ask which mechanism suits a model and a network."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from netfold.cell_options import cell_options
from simulation.answers.answer import Answer
from simulation.answers.assumptions import (
    computing_speed,
    of_calibration,
    of_computing,
    of_cores,
    of_hosts,
    of_links,
    of_network,
    of_pipelines,
)
from simulation.answers.question import cells_of, compare, names_of
from simulation.errors import SimulationError
from simulation.experiments.scenario import Scenario
from simulation.experiments.single_iteration import hosts_of
from simulation.models.architectures import BUILDERS
from simulation.models.measured_links import MeasuredLinks
from simulation.predictors.calibration import Calibration

# What --links measured, or what it has no place for, in the order of the help.
SAID_BY_LINKS = ("bandwidth", "latency", "racks", "oversubscription", "spines", "topology")


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
    links: str | Path | None = None,
    calibration: str | Path | None = None,
    seed: int = 1,
) -> Answer:
    """Ask which mechanism suits a model and a network; the same answer as `netfold ask`.

    Parameters that are not listed below are those of netfold.predict.

    Args:
        model: a model that `netfold ask` knows; None if `trace` or `size` is given.
        mechanisms: those to compare, or a list in a text, as `ring,ps`; all that have a schedule if there are none.
        links: path of what `hostlib bench --probe --output FILE` measured between each two of the hosts, in place of
            `bandwidth` and `latency`; None if these say it.
        calibration: path of a calibration (docs/predictors.md): intervals follow from measured times;
            None: from what the simulator is assumed not to know.
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
    return question(Asked(model, path, size, bandwidth, cell_options(arguments), given))[0]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, in the command line's words.

    Attributes:
        model, trace, size: of which one is given.
        options: those of simulation/commands/options.py by name, `links` and `calibration`.
        given: names of those that differ from their defaults.
    """

    model: str | None
    trace: Path | None
    size: str | None
    bandwidth: str
    options: Mapping[str, Any]
    given: Collection[str]

    @property
    def calibration(self) -> Calibration | None:
        """Its file's. Raises SimulationError, HostlibError: the file is none."""
        path = self.options["calibration"]
        return None if path is None else Calibration.read(Path(path))

    @property
    def measured(self) -> MeasuredLinks | None:
        """The hosts' links, if they were measured.

        Raises:
            SimulationError: another option says what links are, or other hosts were measured.
            HostlibError: the file cannot be read, or is something else.
        """
        path = self.options["links"]
        if path is None:
            return None
        if said := [f"--{name}" for name in SAID_BY_LINKS if name in self.given]:
            raise SimulationError(
                f"{', '.join(said)}: --links has what was measured between hosts, which are played on one switch; "
                "leave one of both out"
            )
        return MeasuredLinks.read(Path(path), hosts_of(self.options["workers"], self.options["gpus_per_host"]))

    @property
    def rate_text(self) -> str:
        """Of hosts' links, as titles have it."""
        return self.bandwidth if self.options["links"] is None else "measured"

    def cells(self) -> tuple[list[Scenario], str]:
        """The cell of each mechanism, and the name of their subject. Raises SimulationError, HostlibError: see ask."""
        options = dict(self.options)
        mechanisms = options.pop("mechanisms")
        names = names_of([mechanisms] if isinstance(mechanisms, str) else mechanisms)
        workers, jobs, apart = (options.pop(name) for name in ("workers", "jobs", "apart"))
        del options["links"]
        return cells_of(
            names, self.model, self.trace, self.size, workers, self.bandwidth, options, jobs, apart, self.measured
        )

    def assumptions(self, cells: Sequence[Scenario], calibration: Calibration | None) -> dict[str, Mapping[str, Any]]:
        """What cells rest on that differ in their plans alone, each with its source."""
        cell, options, given = cells[0], self.options, self.given
        return {
            **of_computing(self.model, self.trace, cell, given),
            **of_pipelines(cells),
            **of_hosts(cell, options["host_link"], given),
            **of_cores(cell, options["host_costs"], given),
            **of_network(cell, self.bandwidth, options["latency"], given),
            **of_links(self.measured),
            **of_calibration(calibration, options["calibration"]),
        }


def question(asked: Asked) -> tuple[Answer, list[Scenario], str]:
    """Answer a question.

    Returns:
        The answer, its cells, and the name of their subject.

    Raises:
        SimulationError, HostlibError: see ask.
    """
    if asked.model is None and asked.trace is None and asked.size is None:
        raise SimulationError(f"--model is missing; legal are {', '.join(sorted(BUILDERS))}, or --trace or --size")
    calibration = asked.calibration
    cells, what = asked.cells()
    assumptions = asked.assumptions(cells, calibration)
    return compare(cells, assumptions, computing_speed(cells[0]), asked.options["seed"], calibration), cells, what
