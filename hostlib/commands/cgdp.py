"""`hostlib cgdp`: chunks of layers, the search for their size, and what a size costs."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from hostlib.errors import RunError
from hostlib.models.zoo.catalogue import require_known
from hostlib.strategies.builtin.cgdp.cost_model import (
    ACCUMULATION_GB_S,
    BROADCAST_GB_S,
    SYNCHRONISATION_US,
    Prediction,
    Search,
    costs_of,
    partition,
    predict,
    search,
    without_overlap,
)
from hostlib.system.command import Command, Respelling, json_option
from hostlib.system.command_group import Group
from hostlib.system.user_file import parse_json, read_text
from hostlib.text import option_types as types
from hostlib.text.common_options import input_option
from hostlib.text.output import output
from hostlib.text.status_line import StatusLine
from hostlib.traces.trace import read

if TYPE_CHECKING:
    from hostlib.bench.cgdp_rank import CheckOptions, CostModelCheck

MOST_LAYERS = 1_000_000
MS = 1e3


@click.group(cls=Group)
def cgdp() -> None:
    """Explore CPU-GPU data-parallel training: which layers to send to the host together, and what that costs."""


@cgdp.command(cls=Command)
@click.argument("model", required=False)
@click.option("--layers", type=types.N, help="Number of trained layers [default: those of MODEL].")
@click.option("--chunk", type=types.N, required=True, help="Layers per chunk.")
@json_option
def chunks(model: str | None, layers: int | None, chunk: int, as_json: bool) -> None:
    """List the chunks of MODEL, or of a number of layers, in the order of the backward pass.

    With --json, each chunk is a list of layer numbers from 1.

    \b
    Examples
        hostlib cgdp chunks --layers 8 --chunk 3
        hostlib cgdp chunks resnet152 --chunk 9 --json
    """
    names = _trained(model, layers)
    made = partition(len(names), chunk)
    if as_json:
        click.echo(json.dumps(made))
        return
    table = Table("chunk", "layers", "which", title=f"{len(names)} layers in {len(made)} chunks", title_justify="left")
    for number, members in enumerate(made, 1):
        table.add_row(str(number), _span(members[0], members[-1]), _span(names[members[0] - 1], names[members[-1] - 1]))
    output().print(table)


def _trained(model: str | None, layers: int | None) -> list[str]:
    """The trained layers' names, or their numbers."""
    if (model is None) == (layers is None):
        raise RunError("give a MODEL or --layers N, one of the two")
    if layers is not None:
        if layers < 1:
            raise RunError(f"--layers must be at least 1, not {layers}")
        if layers > MOST_LAYERS:
            raise RunError(f"--layers must be at most {MOST_LAYERS}, not {layers}")
        return [str(number) for number in range(1, layers + 1)]
    assert model is not None
    from hostlib.models.inspection import load

    return [layer.name for layer in load(model).layers if layer.params]


def _span(first: Any, last: Any) -> str:
    return f"{first}" if first == last else f"{first} .. {last}"


SEARCH = (
    click.option(
        "--step",
        type=types.N,
        default=10,
        show_default=True,
        help="Try every chunk size below this, and then every multiple of it.",
    ),
    click.option(
        "--range", "reach", type=types.N, default=5, show_default=True, help="Steps to try beyond the best size."
    ),
    click.option("--interval", type=types.N, default=10, show_default=True, help="Iterations timed together."),
)


@cgdp.command("search", cls=Command)
@click.option(
    "--times",
    type=types.FILE_OR_DASH,
    required=True,
    help='File of seconds per interval by chunk size, as JSON: {"1": 2.5, "2": 2.1, ...}; - is standard input.',
)
@SEARCH[0]
@SEARCH[1]
@SEARCH[2]
@click.option("--layers", type=types.N, help="Number of trained layers, so that no size is tried twice.")
@json_option
def search_command(times: Path, step: int, reach: int, interval: int, layers: int | None, as_json: bool) -> None:
    """Search for the best chunk size, given how long iterations take with each.

    \b
    Example
        hostlib cgdp search --times times.json --step 10 --range 5
    """
    if layers is not None and layers < 1:
        raise RunError(f"--layers must be at least 1, not {layers}")
    done = search(_times(str(times)), step, reach, interval, layers)
    if as_json:
        trials = [{"iteration": interval * n, **asdict(trial)} for n, trial in enumerate(done.trials, 1)]
        click.echo(json.dumps({"best": done.best, "iterations": interval * len(trials), "trials": trials}, indent=2))
    else:
        _print_search(done)


def _times(name: str) -> dict[int, float]:
    try:
        text = sys.stdin.read() if name == "-" else read_text(Path(name))
    except OSError as error:
        raise RunError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RunError(f"{name} cannot be read: it is not text") from None
    try:
        times = {int(size): float(seconds) for size, seconds in parse_json(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise RunError(f'{name} must be one JSON object of chunk sizes and seconds: {{"1": 2.5, "2": 2.1}}') from None
    if not times or any(size < 1 or not 0 < seconds < float("inf") for size, seconds in times.items()):
        raise RunError(f"{name}: chunk sizes must be at least 1, and seconds above 0 and finite")
    return times


def _print_search(done: Search) -> None:
    title = f"step {done.step}, range {done.range}: chunk size {done.best}"
    table = Table("iteration", "chunk", "s", "best so far", title=title, title_justify="left")
    for number, trial in enumerate(done.trials, 1):
        table.add_row(f"{done.interval * number}", f"{trial.chunk}", f"{trial.lapse_s:.4g}", f"{trial.best}")
    output().print(table)


def _as_throughput(flag: str) -> Respelling:
    """Of a bare number, which was of GB/s."""
    return lambda text: [flag, f"{text}GB/s"] if re.fullmatch(r"[0-9.]+", text) else None


@cgdp.command(
    cls=Command,
    renamed={"--chunks": "--chunk"},
    respelled={
        "--sync-us": lambda us: ["--sync", f"{us}us"],
        "--accumulation": _as_throughput("--accumulation"),
        "--broadcast": _as_throughput("--broadcast"),
    },
)
@click.argument("trace", type=types.FILE)
@click.option(
    "--sync",
    type=types.TIME,
    default=f"{SYNCHRONISATION_US:g}us",
    show_default=True,
    help="Time to hand one chunk over to the host.",
)
@click.option(
    "--accumulation",
    type=types.THROUGHPUT,
    default=f"{ACCUMULATION_GB_S:g}GB/s",
    show_default=True,
    help="How fast the host receives and adds gradients.",
)
@click.option(
    "--broadcast",
    type=types.THROUGHPUT,
    default=f"{BROADCAST_GB_S:g}GB/s",
    show_default=True,
    help="How fast sums go back to each worker.",
)
@click.option("--chunk", "wanted", type=types.COUNTED, help="Layers per chunk [default: all sizes that differ].")
@json_option
def model(trace: Path, sync: float, accumulation: float, broadcast: float, wanted: str | None, as_json: bool) -> None:
    """Predict the backward pass of TRACE with each chunk size; `netfold profile` records traces.

    \b
    Example
        hostlib cgdp model resnet18.trace --sync 30us --chunk 1,2,4,8
    """
    costs = costs_of(read(trace), sync, accumulation, broadcast)
    sizes = parse_chunks(wanted, len(costs))
    found = {size: predict(costs, partition(len(costs), size)) for size in sizes}
    original_s = without_overlap(costs)
    if as_json:
        rows = [_row(size, prediction) for size, prediction in found.items()]
        click.echo(json.dumps({"layers": len(costs), "without_overlap_s": original_s, "chunks": rows}, indent=2))
        return
    title = f"{trace.name}: {len(costs)} trained layers; without overlap {original_s * MS:.3f} ms"
    table = Table("chunk", "chunks", "backward (ms)", "overhead (ms)", "speed-up", title=title, title_justify="left")
    for size, each in found.items():
        times = (f"{each.total * MS:.3f}", f"{each.overhead * MS:.3f}", f"{original_s / each.total:.2f}")
        table.add_row(f"{size}", f"{len(each.chunks)}", *times)
    output().print(table)


def _row(size: int, prediction: Prediction) -> dict[str, Any]:
    return {
        "chunk": size,
        "chunks": len(prediction.chunks),
        "total_s": prediction.total,
        "overhead_s": prediction.overhead,
        "done_s": prediction.done,
    }


def parse_chunks(text: str | None, layers: int) -> tuple[int, ...]:
    """Chunk sizes from a list; all that differ when there is none.

    Raises:
        RunError: they are not numbers of layers.
    """
    if text is None:
        return tuple(range(1, max(2, layers)))
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and word.isascii() and int(word) > 0 for word in words):
        raise RunError(f"--chunk takes numbers of layers such as 1,2,4, not {text!r}")
    return tuple(dict.fromkeys(map(int, words)))


@cgdp.command(cls=Command, renamed={"--chunks": "--chunk", "--steps": "--iterations"})
@click.argument("model")
@click.option("--workers", type=types.N, default=2, show_default=True, help="Number of workers, on this host.")
@click.option("--batch", type=types.N, default=8, show_default=True, help="Examples per worker and iteration.")
@input_option()
@click.option("--chunk", "wanted", type=types.COUNTED, default="1,2,4,8", show_default=True, help="Layers per chunk.")
@click.option(
    "--iterations", "steps", type=types.N, default=20, show_default=True, help="Iterations to time; medians count."
)
@json_option
def check(
    model: str, workers: int, batch: int, shape: tuple[int, ...] | None, wanted: str, steps: int, as_json: bool
) -> None:
    """Compare the cost model with what this machine measures for MODEL.

    Measures the cost of each layer alone, predicts the backward pass with each chunk size, and measures it. In the JSON
    document, `times` is what `netfold cgdp search` takes. docs/cgdp.md explains the costs.

    \b
    Example
        hostlib cgdp check cifar10_quick --workers 2 --chunk 1,2,3
    """
    from hostlib.bench.cgdp_rank import CheckOptions
    from hostlib.bench.cgdp_rank import check as measure
    from hostlib.models.loading import image_shape

    require_known(model)
    options = CheckOptions(model, parse_chunks(wanted, 0), image_shape(model, shape), workers, batch, steps)
    with StatusLine(f"{workers} workers measure {model}"):
        done = measure(options)
    if as_json:
        click.echo(json.dumps(_described(done), indent=2))
    else:
        _print_check(options, done)


def _described(done: CostModelCheck) -> dict[str, Any]:
    return {
        "layers": [{"layer": number, **asdict(cost)} for number, cost in enumerate(done.costs, 1)],
        "backward": [{**asdict(row), "error": row.error} for row in done.rows],
        "times": {row.chunk: row.measured_s for row in done.rows if row.chunk is not None},
    }


def _print_check(options: CheckOptions, done: CostModelCheck) -> None:
    sums = [sum(times) * MS for times in zip(*(astuple(cost) for cost in done.costs), strict=True)]
    names = ("backward", "synchronisation", "accumulation", "broadcast")
    costs = ", ".join(f"{name} {ms:.2f}" for name, ms in zip(names, sums, strict=True))
    title = f"{options.model}, {options.workers} workers, batch {options.batch}; all layers, in ms: {costs}"
    table = Table("chunk", "chunks", "predicted (ms)", "measured (ms)", "error", title=title, title_justify="left")
    for row in done.rows:
        name = "all, afterwards" if row.chunk is None else f"{row.chunk}"
        times = (f"{row.predicted_s * MS:.2f}", f"{row.measured_s * MS:.2f}", f"{100 * row.error:+.0f} %")
        table.add_row(name, f"{row.chunks}", *times)
    output().print(table)


PLACE = 90
COMMANDS = (cgdp,)
