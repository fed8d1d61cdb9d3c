"""The campaign: `python -m tests.chaos.run --runs 500 --seed 1`. Started again with the same file, it goes on."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.chaos.player import Player
from tests.chaos.scenario import KINDS, NONE, TWO, draw
from tests.chaos.training import survive, weights_of
from tests.conftest import running_fabric


def summary(outcomes: list[dict[str, Any]]) -> Table:
    """Per kind of disturbance: how the runs ended, and the time lost per failure of the fabric."""
    table = Table("disturbance", "runs", "finished", "named", "failed", "failures", "returned", "lost: median", "max")
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome["kind"]].append(outcome)
    for kind in [NONE, *KINDS, TWO]:
        runs = by_kind[kind]
        if not runs:
            continue
        ended = Counter(run["ended"] for run in runs)
        failures = [failure for run in runs for failure in run["failures"]]
        lost = [failure["lost_ms"] for failure in failures]
        counts = [len(runs), ended["finished"], ended["named"], ended["failed"], len(failures)]
        table.add_row(
            kind,
            *map(str, counts),
            str(sum(failure["returned"] for failure in failures)),
            f"{statistics.median(lost):.0f} ms" if lost else "-",
            f"{max(lost):.0f} ms" if lost else "-",
        )
    return table


def read(path: Path | None, seed: int) -> list[dict[str, Any]]:
    """What an earlier campaign of this seed wrote."""
    if path is None or not path.exists():
        return []
    outcomes = [json.loads(line) for line in path.read_text().splitlines()]
    if any(outcome["seed"] != seed for outcome in outcomes):
        raise click.ClickException(f"{path} holds runs of another seed than {seed}: name another file")
    return outcomes


def kill_the_switch_under(runs: int, seed: int, console: Console) -> None:
    """`hostlib train`, `runs` times, and each time the switch is killed; says what was lost."""
    options = ("--workers", "3", "--epochs", "30")
    lost, agreement, returned = [], [], 0
    with tempfile.TemporaryDirectory() as directory, running_fabric(Path(directory) / "state") as fabric:
        path = Path(directory) / "result.json"
        expected = weights_of(path, *options, "--controller", fabric.http)
        for number in range(runs):
            result = survive(number, seed, fabric, path, *options)
            if result["weights_sha256"] != expected or len(set(expected)) != 1:
                raise click.ClickException(f"run {number}: wrong weights")
            for failures in zip(*result["fabric_failures"], strict=True):
                lost.append(max(failure["lost_ms"] for failure in failures))
                agreement.append(max(failure["agreement_ms"] for failure in failures))
                returned += failures[0]["returned"]
            console.print(f"run {number}: the same weights, lost {lost[-1]:.0f} ms, {returned} returns so far")
    console.print(
        f"{runs} runs, {len(lost)} failures, {returned} returns; lost ms: median {statistics.median(lost):.0f}, "
        f"max {max(lost):.0f}; of it agreement: median {statistics.median(agreement):.0f}, max {max(agreement):.0f}"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--runs", default=500, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--only", "only", type=int, metavar="NUMBER", help="This run alone.")
@click.option("--only-kind", type=click.Choice([NONE, *KINDS, TWO]), help="All runs with this disturbance.")
@click.option("--command", is_flag=True, help="Real `hostlib train` runs, whose switch is killed at a random moment.")
@click.option(
    "--json",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A JSON line per run; what is there is kept.",
)
def main(runs: int, seed: int, only: int | None, only_kind: str | None, command: bool, path: Path | None) -> None:
    """Randomised training runs, each with a disturbance at a random moment; exit code 1 when one of them failed.

    \b
    Examples
        python -m tests.chaos.run --runs 500 --seed 1 --json chaos.jsonl
        python -m tests.chaos.run --seed 1 --only 137
        python -m tests.chaos.run --runs 20 --command
    """
    console = Console(width=None if sys.stdout.isatty() else 110)
    if command:
        kill_the_switch_under(runs, seed, console)
        return
    outcomes = read(path, seed)
    known = {outcome["number"] for outcome in outcomes}
    numbers = [only] if only is not None else [number for number in range(runs) if number not in known]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    directory = Path(tempfile.mkdtemp(prefix="netfold-chaos-"))
    try:
        with Player(directory) as player, Progress(*columns, console=console) as progress:
            task = progress.add_task("runs", total=len(numbers))
            for number in numbers:
                outcome = player.play(draw(seed, number, only_kind)).as_json()
                outcomes.append(outcome)
                if path is not None:
                    with path.open("a") as file:
                        file.write(json.dumps(outcome) + "\n")
                if outcome["wrong"]:
                    console.print(f"run {number} ({outcome['kind']}): " + "; ".join(outcome["wrong"]), markup=False)
                progress.advance(task)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on" if path is not None else "stopped")
    console.print(summary(outcomes))
    if any(outcome["wrong"] for outcome in outcomes):
        console.print(f"what the ranks of failed runs said is in {directory}", markup=False)
        raise SystemExit(1)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
