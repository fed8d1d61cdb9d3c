"""The `simulation` command."""

from __future__ import annotations

import json
import sys
import time

import click
from rich.console import Console
from rich.table import Table

from hostlib.errors import HostlibError
from hostlib.registry import find, registered
from simulation import quantity
from simulation.errors import SimulationError
from simulation.player import Player, Star


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """What a mechanism would take on a network that is not here."""


@main.command()
@click.option("--mechanism", "mechanisms", multiple=True, help="Repeat to compare [default: all that have a schedule].")
@click.option("--workers", default=4, show_default=True, help="How many workers.")
@click.option("--size", default="16MiB", show_default=True, help="Tensor size: bytes, or 16MiB, 64kb, ...")
@click.option("--bandwidth", default="25gbit", show_default=True, help="Of every worker's link, each way.")
@click.option("--latency", default="0us", show_default=True, help="One way, worker to worker.")
@click.option("--store-and-forward", is_flag=True, help="The switch sums whole pieces instead of streaming.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def run_(
    mechanisms: tuple[str, ...],
    workers: int,
    size: str,
    bandwidth: str,
    latency: str,
    store_and_forward: bool,
    as_json: bool,
) -> None:
    """Play one all-reduce over a star of equal links.

    \b
    Example
        simulation run --workers 32 --size 528MiB --bandwidth 25gbit
    """
    if workers < 1:
        raise SimulationError(f"--workers must be at least 1, not {workers}")
    star = Star(quantity.bandwidth(bandwidth), quantity.time_ns(latency), store_and_forward)
    bytes_ = quantity.size(size)
    names = mechanisms or tuple(name for name, m in registered().items() if m.build is not None)
    results = {}
    for name in names:
        schedule = find(name).schedule(workers)
        started = time.perf_counter()
        played = Player(schedule, bytes_, star).play()
        results[name] = {
            "time_s": played.time_ns / 1e9,
            "bytes_per_link": {n: {"sent": s, "received": r} for n, (s, r) in played.link_bytes.items()},
            "events": played.events,
            "wall_s": time.perf_counter() - started,
        }
    if as_json:
        click.echo(json.dumps(results, indent=2))
        return
    table = Table(
        "mechanism", title=f"all-reduce of {size}, {workers} workers, {bandwidth} links", title_justify="left"
    )
    for heading in ("time", "algbw", "sent per worker"):
        table.add_column(heading, justify="right")
    for name, result in results.items():
        seconds = result["time_s"]
        sent = max(link["sent"] for link in result["bytes_per_link"].values())
        algbw = f"{bytes_ * 8 / seconds / 1e9:.2f} Gbit/s" if seconds else "-"
        table.add_row(name, f"{seconds * 1e3:.3f} ms", algbw, f"{sent / 1e6:.2f} MB")
    Console().print(table)


main.add_command(run_, "run")


def run() -> None:
    """Entry point: errors of netfold become one line and exit code 1."""
    try:
        main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except (SimulationError, HostlibError) as wrong:
        click.echo(f"error: {wrong}", err=True)
        sys.exit(1)
