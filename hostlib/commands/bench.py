"""`hostlib bench`: how fast mechanisms sum."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from hostlib.commands.tables import PLAIN_WIDTH
from hostlib.errors import RunError
from hostlib.system.interrupts import interrupt_on
from hostlib.system.renamed_options import CommandWithRenamedOptions

KERNELS_S = 2.0


@click.command(
    cls=CommandWithRenamedOptions,
    renamed={"--world-size": "--workers", "--mechanisms": "--mechanism", "--rate": "--bandwidth", "--sizes": "--size"},
)
@click.option(
    "--mechanism",
    "mechanisms",
    metavar="A,B,...",
    help="What to measure; see `hostlib mechanisms` [default: all that these ranks can run].",
)
@click.option(
    "--size",
    "sizes",
    metavar="SIZE,...",
    help="Of the tensor in bytes; K, M and G are 2^10, ... [default: 64K,1M,16M].",
)
@click.option("--from", "first", metavar="SIZE", help="With --to: sizes from here ...")
@click.option("--to", "last", metavar="SIZE", help="... to here.")
@click.option("--factor", default=4, show_default=True, help="With --from and --to: from one size to the next.")
@click.option("--dtype", "dtypes", default="float32", show_default=True, metavar="TYPE,...")
@click.option("--workers", "world_size", type=int, help="Number of ranks [default: 4; with --hosts netns:N, N].")
@click.option("--iterations", type=int, help="All-reduces timed together [default: about a quarter of a second's].")
@click.option("--repeats", default=3, show_default=True, help="How often they are timed; the median counts.")
@click.option("--warm-up", default=1, show_default=True, help="All-reduces before the clock runs.")
@click.option(
    "--hosts",
    default="local",
    show_default=True,
    metavar="WHERE",
    help="local: processes that meet on loopback; netns:N: each rank in a network namespace of its own (needs root).",
)
@click.option(
    "--bandwidth", "rate", metavar="RATE", help="netns: of each link in each direction, as 100mbit [default: no limit]."
)
@click.option("--delay", metavar="TIME", help="Of a frame on each port's link of the embedded switch, as 2ms.")
@click.option(
    "--loss", default=0.0, help="Probability that the embedded switch loses a packet, per port and direction."
)
@click.option("--duplicate", default=0.0, help="Probability that a packet comes twice.")
@click.option("--reorder", default=0.0, help="Probability that a packet is held back 0.2 to 2 ms.")
@click.option("--corrupt", default=0.0, help="Probability that one bit of a packet is flipped.")
@click.option("--seed", default=0, show_default=True, help="Of the data and of the faults.")
@click.option(
    "--controller", metavar="URL", help="Of a fabric that runs already [default: start one, where one is needed]."
)
@click.option(
    "--deadline",
    "deadline_s",
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a rank waits without progress before it says who is missing.",
)
@click.option("--kernels", is_flag=True, help="The packet engine's kernels, too, beside memcpy.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: only the kernels, with --kernels, and what a bucket costs; on the current GPU.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON instead of the table.")
def bench(
    mechanisms: str | None,
    sizes: str | None,
    first: str | None,
    last: str | None,
    factor: int,
    dtypes: str,
    kernels: bool,
    device: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast mechanisms sum a tensor over all ranks: nccl-tests' table.

    Starts ranks, and for mechanisms that need it a controller with an embedded switch, and stops them. Results are
    checked: `#wrong` counts elements that are not what they must be, and if there are any, the exit code is 1.
    docs/bench.md says how to read the table.

    \b
    Examples
        hostlib bench --mechanism inagg+mcast,ring --workers 2 --from 4K --to 16M
        hostlib bench --hosts netns:8 --bandwidth 100mbit --size 16M
        hostlib bench --hosts netns:8 --bandwidth 100mbit --mechanism inagg+mcast --loss 0.01
        hostlib bench --kernels --device cuda
    """
    from hostlib.bench.allreduce import (
        BenchOptions,
        BenchProgress,
        measurable,
        measurements,
        parse_sizes,
        print_rows,
        run_bench,
    )
    from hostlib.bench.local_fabric import Faults

    if device == "cuda":
        _cuda_figures(kernels, as_json)
        return
    interrupt_on(signal.SIGTERM)
    faults = Faults(
        **{name: options.pop(name) for name in ("loss", "duplicate", "reorder", "corrupt", "delay", "seed")}
    )
    asked = BenchOptions(
        measurable(options["hosts"]) if mechanisms is None else _listed(mechanisms),
        parse_sizes(sizes, first, last, factor),
        _listed(dtypes),
        faults=faults,
        **options,
    )
    rates = _kernel_rates() if kernels else []
    with BenchProgress(Console(stderr=True), measurements(asked)) as report:
        rows = run_bench(asked, report)
    if as_json:
        records = [asdict(row) for row in rows]
        click.echo(
            json.dumps({"rows": records, "kernels": [asdict(r) for r in rates]} if kernels else records, indent=2)
        )
    else:
        console = Console()
        longest = max(map(len, asked.mechanisms))
        print_rows(asked, rows, console if console.is_terminal else Console(width=PLAIN_WIDTH + longest))
        if kernels:
            from hostlib.bench.kernels import print_table

            print_table(rates, console)
    if any(row.wrong for row in rows):
        sys.exit(1)


def _cuda_figures(kernels: bool, as_json: bool) -> None:
    if not kernels:
        raise RunError("--device cuda measures kernels alone: add --kernels (ranks' tensors are on the CPU)")
    from hostlib.bench.device_bench import measure_cuda, print_tables

    figures = measure_cuda(KERNELS_S)
    if as_json:
        click.echo(json.dumps(asdict(figures), indent=2))
    else:
        print_tables(figures, Console())


def _kernel_rates() -> list[Any]:
    from hostlib.bench.kernels import run

    return run(KERNELS_S)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


PLACE = 30
COMMANDS = (bench,)
