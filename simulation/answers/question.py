"""Questions: the cells that options describe, compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import registered
from hostlib.schedules.contract import Collective
from hostlib.strategies.strategy import choose
from hostlib.text.progress_lines import PlainProgress
from simulation.answers.answer import Answer, Assumptions, answer
from simulation.errors import SimulationError
from simulation.experiments.cost import cost_of
from simulation.experiments.scenario import Scenario
from simulation.experiments.single_iteration import network_of, read_host_rates, scenario_of, semantics_of, subject_of
from simulation.models.measured_links import MeasuredLinks
from simulation.predictors.calibration import Calibration

LONG_S = 3.0  # estimated; from here on, progress is shown


def names_of(listed: Iterable[str], collective: Collective = Collective.ALL_REDUCE) -> tuple[str, ...]:
    """Mechanisms from lists of them, each once; without any, all that have a schedule of the collective.

    Raises:
        HostlibError: there is no such mechanism or strategy.
    """
    names = tuple(dict.fromkeys(name.strip() for names in listed for name in names.split(",")))
    for name in names:
        choose(name)
    return names or tuple(
        name for name, each in registered().items() if each.build is not None and collective in each.collectives
    )


def cells_of(
    mechanisms: Sequence[str],
    model: str | None,
    trace: Path | None,
    size: str | None,
    workers: int,
    bandwidth: str,
    options: dict[str, Any],
    jobs: int = 1,
    apart: bool = False,
    links: MeasuredLinks | None = None,
) -> tuple[list[Scenario], str]:
    """The cell of each mechanism, and the name of their subject.

    Args:
        options: those of simulation/commands/options.py by name.
        links: of the hosts, in place of the bandwidth and the latency.

    Raises:
        SimulationError, HostlibError: one is impossible.
    """
    options = dict(options)
    network = network_of(bandwidth, options)
    semantics = semantics_of(network, options)
    if links is not None:
        network = links.on(network, semantics.framing if semantics.headers else None)
    options["host_rates"] = read_host_rates(options)
    subject, what = subject_of(model, trace, size, options)
    cells = [scenario_of(subject, name, workers, network, semantics, options, jobs, apart) for name in mechanisms]
    for cell in cells:
        if cell.choice.mechanism.build is None:
            cell.made()  # It says what is legal.
    return cells, what


def compare(
    cells: Sequence[Scenario],
    assumptions: Assumptions,
    tflops: float | None = None,
    seed: int = 1,
    calibration: Calibration | None = None,
) -> Answer:
    """Simulate and compare cells, with progress on standard error if that takes long.

    Raises:
        SimulationError, HostlibError: see answer.
    """
    if sum(map(_seconds, cells)) < LONG_S:
        return answer(cells, assumptions, tflops, seed, calibration=calibration)
    with PlainProgress("simulating", len(cells)) as advance:
        return answer(cells, assumptions, tflops, seed, advance, calibration=calibration)


def _seconds(cell: Scenario) -> float:
    try:
        cell.require_counts()
        return cost_of(cell).seconds
    except (SimulationError, HostlibError):  # It is left out.
        return 0.0


def title_of(what: str, cell: Scenario, bandwidth: str) -> str:
    """The title of a table or plot of cells."""
    network, jobs = cell.network, f", {cell.jobs} jobs" if cell.jobs > 1 else ""
    in_racks = f" in {network.racks} racks" if network.racks > 1 else ""
    oversubscribed = f", oversubscription {network.oversubscription:g}" if network.oversubscription != 1 else ""
    workers = cell.workers * cell.gpus_per_host
    plural = "" if workers == 1 else "s"
    on_hosts = f" on {cell.workers:,} host{'s' if cell.workers > 1 else ''}" if cell.gpus_per_host > 1 else ""
    return f"{what}, {workers:,} worker{plural}{on_hosts}{in_racks}, {bandwidth} links{oversubscribed}{jobs}"
