"""Tables and plots of the suite's results, and of what it consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.table import Table

from emulation.report.axis_units import size, three_digits, times
from emulation.suite.catalogue import DATASETS, NETWORKS, SEQUENTIAL, frameworks
from emulation.suite.suite_run import SuiteRun
from hostlib.system.plot_file import new_figure, save
from hostlib.text.output import output
from simulation.models.architectures import build

Row = dict[str, Any]
ACROSS = 3  # panels of a plot
DASHED: dict[str, Any] = {"color": "0.5", "linewidth": 0.8, "linestyle": "--"}


def print_results(rows: Sequence[Row]) -> None:
    """Print a table for each data set and number of workers: speed-up and epoch seconds by framework and network."""
    console = output()
    several = sorted({row["workers"] for row in rows if row["workers"] > 1}) or [1]
    for dataset, workers in product(dict.fromkeys(row["dataset"] for row in rows), several):
        mine = [row for row in rows if row["dataset"] == dataset and row["workers"] in (1, workers)]
        networks = list(dict.fromkeys(row["network"] for row in mine))
        found = {(row["framework"], row["network"]): row for row in mine}
        title = f"{dataset}, {workers} workers: speed-up over one worker (seconds of an epoch)"
        table = Table("framework", title=title, title_justify="left", box=None)
        for network in networks:
            table.add_column(network, justify="right")
        for framework in dict.fromkeys(row["framework"] for row in mine):
            table.add_row(framework, *(_cell(found.get((framework, network))) for network in networks))
        console.print(table)
    for line in remarks(rows):
        console.print(line, highlight=False)


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    if row["failed"] is not None:
        return "failed"
    speedup = "" if row["speedup"] is None or row["framework"] == SEQUENTIAL else times(row["speedup"])
    memory = "" if row["peak_memory_bytes"] is None else f", {size(row['peak_memory_bytes'])}"
    return f"{speedup} ({three_digits(row['epoch_s'])} s{memory}){'' if row['valid'] else '*'}".strip()


def remarks(rows: Sequence[Row]) -> list[str]:
    """What a reader of the table must know."""
    found = []
    if any(row["failed"] is None and not row["valid"] for row in rows):
        found.append("* the time is not the network's: this machine had too few cores for the workers")
    if any(row["peak_memory_bytes"] is not None for row in rows):
        found.append("bytes: peak of the largest worker's process, PyTorch and the synthetic images included")
    found += [f"{row['cell']} failed: {row['failed']}" for row in rows if row["failed"] is not None]
    return found


def listed_cells(run: SuiteRun) -> list[Row]:
    """What would be run, and what is left out, as JSON has it."""
    left = {cell.name for cell in run.left}
    cells = [{"cell": c.name, "batch": c.batch, "done": c.name not in left, "left_out": None} for c in run.cells]
    return cells + [{"cell": n, "batch": None, "done": False, "left_out": why} for n, why in run.left_out.items()]


def print_cells(run: SuiteRun) -> None:
    """Print the cells that would be run, and those that are left out."""
    table = Table("cell", "batch", "done", "left out", box=None)
    for row in listed_cells(run):
        batch = "" if row["batch"] is None else str(row["batch"])
        table.add_row(row["cell"], batch, "yes" if row["done"] else "", row["left_out"] or "")
    output().print(table)


def catalogue_as_json() -> dict[str, Any]:
    """What the suite consists of."""
    return {
        "datasets": [
            {
                "name": each.name,
                "input": list(each.variant.input),
                "classes": each.variant.classes,
                "images": each.images,
                "batch": each.batch,
                "pipeline_batch": each.pipeline_batch,
                "microbatches": each.microbatches,
                "files": each.reader,
            }
            for each in DATASETS.values()
        ],
        "networks": [
            {"name": model, "parameters": made.elements, "flops": made.flops}
            for network, dataset in product(NETWORKS, DATASETS)
            for model in [f"{network}:variant={dataset}"]
            for made in [build(model)]
        ],
        "frameworks": [
            {"name": each.name, "pipeline": each.is_pipeline, "summary": each.summary} for each in frameworks().values()
        ],
    }


def print_catalogue() -> None:
    """Print what the suite consists of."""
    console, found = output(), catalogue_as_json()
    table = Table("data set", "images", "classes", "one image", "batch", "of a pipeline of 4", box=None)
    for each in found["datasets"]:
        of_pipeline = f"{each['pipeline_batch']} in {each['microbatches']} micro-batches"
        shape = "x".join(map(str, each["input"]))
        table.add_row(
            each["name"], f"{each['images']:,}", f"{each['classes']:,}", shape, str(each["batch"]), of_pipeline
        )
    console.print(table)
    sizes = {each["name"]: each for each in found["networks"]}
    table = Table("network", *DATASETS, title="parameters (GFLOP of an image, forward)", title_justify="left", box=None)
    for network in NETWORKS:
        cells = (sizes[f"{network}:variant={dataset}"] for dataset in DATASETS)
        table.add_row(network, *(f"{each['parameters']:,} ({each['flops'] / 1e9:.3g})" for each in cells))
    console.print(table)
    table = Table("framework", "", box=None)
    for each in found["frameworks"]:
        table.add_row(each["name"], each["summary"])
    console.print(table)


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw speed-ups to a file; the dashed line is as many times as workers.

    Raises:
        HostlibError: the file cannot be written.
    """
    several = [row for row in rows if row["speedup"] is not None and row["framework"] != SEQUENTIAL]
    shown = [{**row, "value": row["speedup"]} for row in several]
    draw_panels(shown, title, "speed-up over one worker", float, path)


def draw_panels(rows: Sequence[Row], title: str, label: str, usual: Callable[[int], float], path: Path) -> None:
    """Draw rows' `value` to a file, a panel for each framework: bars by network and data set; with several numbers of
    workers, lines of the networks over them, and a panel for each data set as well.

    Args:
        usual: of so many workers, where the dashed line is.

    Raises:
        HostlibError: the file cannot be written.
    """
    counts = sorted({row["workers"] for row in rows})
    lines = len(counts) > 1
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(f"{row['framework']}, {row['dataset']}" if lines else row["framework"], []).append(row)
    across = min(ACROSS, max(len(panels), 1))
    down = max(-(-len(panels) // across), 1)
    figure = new_figure(4.6 * across, 2.7 * down + 0.6)
    figure.suptitle(title)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    for axes, (name, panel) in zip(grid.flat, panels.items(), strict=False):
        axes.set_title(name, fontsize="small")
        (_lines if lines else _bars)(axes, panel)
        if lines:
            axes.plot(counts, [usual(count) for count in counts], **DASHED)
            axes.set_xticks(counts)
        else:
            axes.axhline(usual(counts[0]), **DASHED)
        axes.grid(axis="y", alpha=0.3)
        axes.tick_params(labelsize="x-small")
    for axes in list(grid.flat)[len(panels) :]:
        axes.axis("off")
    for axes in grid[:, 0]:
        axes.set_ylabel(label, fontsize="x-small")
    if panels:
        grid.flat[0].legend(fontsize="xx-small")
    save(figure, path)


def _bars(axes: Any, panel: Sequence[Row]) -> None:
    networks = [name for name in NETWORKS if any(row["network"] == name for row in panel)]
    datasets = [name for name in DATASETS if any(row["dataset"] == name for row in panel)]
    width = 0.8 / max(len(datasets), 1)
    for number, dataset in enumerate(datasets):
        found = {row["network"]: row["value"] for row in panel if row["dataset"] == dataset}
        places = [place + (number + 0.5) * width - 0.4 for place, name in enumerate(networks) if name in found]
        heights = [found[name] for name in networks if name in found]
        axes.bar(places, heights, width, label=dataset, color=f"C{list(DATASETS).index(dataset)}")
    axes.set_xticks(range(len(networks)), networks, rotation=30, ha="right")


def _lines(axes: Any, panel: Sequence[Row]) -> None:
    for network in NETWORKS:
        mine = sorted((row["workers"], row["value"]) for row in panel if row["network"] == network)
        if mine:
            axes.plot(*zip(*mine, strict=True), marker=".", label=network, color=f"C{NETWORKS.index(network)}")
    axes.set_xlabel("workers", fontsize="x-small")
