"""Tables and plots of a comparison of the suite's runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from emulation.suite.catalogue import NETWORKS
from emulation.suite.suite_comparison import CLOSE, Comparison, Recommendation
from emulation.suite.suite_tables import draw_panels
from hostlib.text.output import output


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: its title, the heading of each column, and rows of as many cells; the first is a name."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        lines = [
            f"### {self.title}",
            "",
            _line(self.header),
            "|---|" + "---:|" * (len(self.header) - 1),
            *(_line((f"`{row[0]}`", *row[1:])) for row in self.rows),
        ]
        return "\n".join(lines) + "\n"

    def rich(self) -> Table:
        table = Table(self.header[0], title=self.title, title_justify="left", box=None)
        for each in self.header[1:]:
            table.add_column(each, justify="right")
        for row in self.rows:
            table.add_row(*row)
        return table


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def grids(comparison: Comparison) -> Iterator[Grid]:
    """The errors in short, those of each framework, recommendations, and the four ways to recommend."""
    yield _in_short(comparison)
    for summary in comparison.errors:
        mine = [each for each in comparison.predictions if each.row["framework"] == summary.framework]
        found = {(each.row["network"], each.row["dataset"], each.row["workers"]): _percent(each.error) for each in mine}
        yield _by_case(f"{summary.framework}, predicted by {summary.predictor}", found)
    if comparison.has_choice:
        said = comparison.recommendations
        found = {(each.network, each.dataset, each.workers): _recommended(each) for each in said}
        yield _by_case(f"recommended (the fastest, how much longer): {_share(said)} right", found)
        yield _ways(comparison)


def _in_short(comparison: Comparison) -> Grid:
    return Grid(
        "predicted epochs, relative to the other run's",
        (
            "framework",
            "predictor",
            "cells",
            "median error",
            "least",
            "most",
            f"within {CLOSE:.0%}".replace("%", " %"),
            "networks within",
        ),
        [
            (
                each.framework,
                each.predictor,
                str(each.cells),
                f"{100 * each.median:.1f} %",
                _percent(each.least),
                _percent(each.most),
                str(each.close),
                f"{each.close_networks} of {each.networks}",
            )
            for each in comparison.errors
        ],
    )


def _by_case(title: str, found: dict[tuple[str, str, int], str]) -> Grid:
    """Networks down, data sets (and numbers of workers, if there are several) across."""
    across = list(dict.fromkeys((dataset, workers) for _, dataset, workers in found))
    several = len({workers for _, workers in across}) > 1
    header = (f"{dataset}, {workers}" if several else dataset for dataset, workers in across)
    networks = sorted({network for network, _, _ in found}, key=NETWORKS.index)
    rows = [(network, *(found.get((network, *case), "-") for case in across)) for network in networks]
    return Grid(title, ("network", *header), rows)


def _recommended(each: Recommendation) -> str:
    if each.regret is None:
        return f"- ({each.fastest})"
    if each.is_right:
        return each.fastest
    return f"{each.recommended} ({each.fastest}, {_percent(each.regret)})"


def _ways(comparison: Comparison) -> Grid:
    rows = []
    for way in comparison.alternatives:
        wrong = [each.regret for each in way.recommendations if each.regret]
        longer = f"{_percent(max(wrong))}" if wrong else "-"
        row = (way.name, _share(way.recommendations), longer, f"{way.took_s:,.0f}", f"{way.worker_s:,.0f}")
        rows.append(row)
    return Grid("ways to recommend", ("way", "right", "longer, at most", "seconds", "workers' seconds"), rows)


def _share(found: Sequence[Recommendation]) -> str:
    return f"{sum(each.is_right for each in found)} of {len(found)}"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def print_comparison(comparison: Comparison) -> None:
    """Print a comparison's tables."""
    for grid in grids(comparison):
        if grid.rows:
            output().print(grid.rich())


def as_markdown(comparison: Comparison) -> str:
    """A comparison's tables as docs/measurements/recommender.md has them."""
    return "\n".join(grid.markdown() for grid in grids(comparison) if grid.rows)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """What a comparison found."""
    return {
        "errors": [asdict(each) for each in comparison.errors],
        "cells": [
            {
                **{name: each.row[name] for name in ("cell", "dataset", "network", "framework", "workers", "epoch_s")},
                "predictor": each.predictor,
                "predicted_epoch_s": each.epoch_s,
                "error": each.error,
            }
            for each in comparison.predictions
        ],
        "recommendations": [asdict(each) for each in comparison.recommendations],
        "ways": [
            {
                "name": each.name,
                "right": each.right,
                "cases": len(each.recommendations),
                "took_s": each.took_s,
                "worker_s": each.worker_s,
            }
            for each in comparison.alternatives
        ],
    }


def draw_errors(comparison: Comparison, path: Path) -> None:
    """Draw errors to a file, as the thesis's figures 5.1, 5.2 and 6.2 have them.

    Raises:
        HostlibError: the file cannot be written.
    """
    rows = [{**each.row, "value": 100 * each.error} for each in comparison.predictions]
    draw_panels(rows, "Predicted epochs, relative to the other run's", "error in %", lambda workers: 0.0, path)
