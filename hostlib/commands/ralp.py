"""`hostlib ralp`: what RALP's profiler says of a model, and the paper's tables computed again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hostlib.errors import RunError
from hostlib.strategies.builtin.ralp.placement import THRESHOLD, Placement, place, shares, volume
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.common_options import input_option
from hostlib.text.output import output

BYTES_PER_ELEMENT = 4
GIB = 1 << 30

# What the paper prints. Table 1: skewness factors. Table 2: batch size, and GB of the model, of a step of Horovod and
# of one of RALP; W is the number of machines.
TABLE_1 = {
    "alexnet": -2.27,
    "googlenet": -0.74,
    "inception3": -0.96,
    "lenet": -1.16,
    "overfeat": -2.11,
    "resnet50": -1.26,
    "vgg11": -3.62,
    "vgg19": -3.02,
}
TABLE_2 = {"alexnet": (512, 0.23, 3.23, 0.47), "inception3": (32, 0.09, 1.24, 1.30), "vgg11": (64, 0.50, 6.93, 0.64)}
TABLE_2_WORKERS = 8


@click.command(cls=Command)
@click.argument("model", required=False)
@click.option("--batch", type=types.N, default=1, show_default=True, help="Examples per worker and iteration.")
@input_option()
@click.option(
    "--workers",
    type=types.N,
    default=TABLE_2_WORKERS,
    show_default=True,
    help="Number of workers, for the job's traffic.",
)
@click.option(
    "--threshold",
    type=types.NUMBER,
    default=THRESHOLD,
    show_default=True,
    help="Split models whose skewness is below this.",
)
@click.option("--gpus", type=types.N, help="Compare how a job with this many GPUs would use them (RALP-H and RALP-N).")
@click.option("--tables", is_flag=True, help="Show the paper's Tables 1 and 2, published and computed; without MODEL.")
@json_option
def ralp(
    model: str | None,
    batch: int,
    shape: tuple[int, ...] | None,
    workers: int,
    threshold: float,
    gpus: int | None,
    tables: bool,
    as_json: bool,
) -> None:
    """Decide whether to place the last layers of MODEL on a server, and from which layer on (RALP's profiler).

    MODEL is one of `netfold models`, or MODULE:FACTORY.

    \b
    Examples
        hostlib ralp vgg19 --batch 64
        hostlib ralp resnet50 --threshold -1.5 --json
        hostlib ralp --tables
    """
    if (model is None) != tables:
        raise RunError("give a MODEL, or --tables for the paper's: one of the two")
    console = output()
    if model is None:
        _tables(console, as_json)
        return
    placement = profiled(model, batch, threshold, shape)
    traffic = volume(placement, workers)
    shared = None if gpus is None else _shares(placement, gpus)
    if as_json:
        click.echo(json.dumps(described(placement), indent=2))
        return
    console.print(_layers(model, placement))
    for line in (
        f"skewness {placement.skewness:.2f}, threshold {threshold:g}",
        placement.verdict,
        f"{workers} workers' links carry {_gib(traffic.ring):.2f} GiB per step with a ring, "
        f"{_gib(traffic.ralp):.2f} GiB with the cheapest cut.",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    if shared is not None:
        console.print(shared)


def profiled(
    model: str, batch: int = 1, threshold: float = THRESHOLD, shape: tuple[int, ...] | None = None
) -> Placement:
    """What the profiler says of a model by name.

    Args:
        shape: of one example, as (3, 224, 224); None for what the model says.

    Raises:
        HostlibError: no such model, or one that cannot be looked at.
    """
    from hostlib.models.inspection import load

    return place(load(model, shape).layers, batch, threshold)


def described(placement: Placement) -> dict[str, Any]:
    """The decision, as JSON has it."""
    split = placement.split if placement.partition else None
    return {
        "layers": [
            {
                "index": cut.layer.index,
                "name": cut.layer.name,
                "kind": cut.layer.kind,
                "params": cut.layer.params,
                "output": cut.output,
            }
            for cut in placement.cuts
        ],
        "skewness": placement.skewness,
        "partition": placement.partition,
        "split_after": None if split is None else split.layer.name,
        "cost": None if split is None else split.cost,
    }


def _layers(model: str, placement: Placement) -> Table:
    table = Table(title=f"{model}, {placement.batch} per worker and step", title_justify="left", box=None)
    for name in ("", "layer", "kind", "params", "output", "cost", "cut behind it?"):
        table.add_column(name, justify="right" if name in ("", "params", "output", "cost") else "left")
    for cut in placement.cuts:
        cheapest = "yes: the cheapest" if cut is placement.cheapest else "yes"
        table.add_row(
            str(cut.layer.index),
            cut.layer.name,
            cut.layer.kind,
            f"{cut.layer.params:,}",
            f"{cut.output:,}",
            f"{cut.cost:,}",
            f"no: {cut.obstacle}" if cut.obstacle else cheapest,
        )
    return table


def _shares(placement: Placement, gpus: int) -> Table:
    """What each way to share GPUs out sends per example: RALP-N's examples are about twice RALP-H's."""
    table = Table(title=f"{gpus} GPUs", title_justify="left", box=None)
    for name in ("", "workers", "servers", "examples per step", "MB per example"):
        table.add_column(name, justify="left" if name == "" else "right")
    for each in shares(gpus):
        traffic = volume(placement, each.workers)
        through_servers = 2 * each.workers * placement.params
        carried = {"parameter servers": through_servers, "Horovod": traffic.ring}.get(each.name, traffic.ralp)
        examples = each.workers * placement.batch
        megabytes = BYTES_PER_ELEMENT * carried / examples / 1e6
        table.add_row(each.name, str(each.workers), str(each.servers), f"{examples:,}", f"{megabytes:,.2f}")
    return table


# ---- the paper's tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of a table of the paper."""

    table: int
    model: str
    column: str
    published: float
    computed: float


def paper_cells() -> Iterator[Cell]:
    """Tables 1 and 2, from the models of the zoo."""
    for model, published in TABLE_1.items():
        yield Cell(1, model, "skewness", published, profiled(model).skewness)
    for model, (batch, *numbers) in TABLE_2.items():
        placement = profiled(model, batch)
        traffic = volume(placement, TABLE_2_WORKERS)
        computed = (placement.params, traffic.ring, traffic.ralp)
        for column, number, elements in zip(("model", "Horovod", "RALP"), numbers, computed, strict=True):
            yield Cell(2, model, f"{column} (GiB)", number, _gib(elements))


def _tables(console: Console, as_json: bool) -> None:
    cells = list(paper_cells())
    if as_json:
        rows = [
            {
                "table": cell.table,
                "model": cell.model,
                "column": cell.column,
                "published": cell.published,
                "computed": cell.computed,
            }
            for cell in cells
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("table", "model", "column", title="RALP, published and computed", title_justify="left", box=None)
    for name in ("published", "computed"):
        table.add_column(name, justify="right")
    for cell in cells:
        table.add_row(str(cell.table), cell.model, cell.column, f"{cell.published:.2f}", f"{cell.computed:.4f}")
    console.print(table)


def _gib(elements: int) -> float:
    return BYTES_PER_ELEMENT * elements / GIB


PLACE = 80
COMMANDS = (ralp,)
