"""`hostlib cgdp`: chunks of layers, the search for their size, and what a size costs."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from hostlib.errors import RunError
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
from hostlib.system.user_file import parse_json, read_text
from hostlib.traces.trace import read

if TYPE_CHECKING:
    from hostlib.bench.cgdp_rank import CheckOptions, CostModelCheck

MOST_LAYERS = 1_000_000
MS = 1e3
US = 1e6


@click.group()
def cgdp() -> None:
    """CPU-GPU data parallel training: which layers go to the host together, and what that costs.

    \b
    hostlib cgdp chunks   the chunks of a size
    hostlib cgdp search   how the first iterations find a size
    hostlib cgdp model    what the cost model says of each size, for a trace
    hostlib cgdp check    the cost model beside what this machine does
    """


@cgdp.command()
@click.argument("model", required=False)
@click.option("--layers", type=int, help="Trained layers of the network [default: those of MODEL].")
@click.option("--chunk", type=int, required=True, help="Layers in a chunk.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: a list of chunks, each a list of layer numbers from 1.")
def chunks(model: str | None, layers: int | None, chunk: int, as_json: bool) -> None:
    """The chunks of a size, in the order of the backward pass: of MODEL (the zoo's, or module:factory), or of so many layers.

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
    Console().print(table)


def _trained(model: str | None, layers: int | None) -> list[str]:
    """The trained layers' names, or their numbers."""
    if (model is None) == (layers is None):
        raise RunError("this is of a MODEL or of --layers N, one of them")
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
        "--step", default=10, show_default=True, help="Sizes below it are tried one by one, then every so many."
    ),
    click.option("--range", "reach", default=5, show_default=True, help="Steps beyond the best size that are tried."),
    click.option("--interval", default=10, show_default=True, help="Iterations that are timed together."),
)


@cgdp.command("search")
@click.option(
    "--times",
    type=click.Path(allow_dash=True),
    required=True,
    metavar="FILE",
    help='Seconds of an interval by chunk size, as JSON: {"1": 2.5, "2": 2.1, ...}; - is standard input.',
)
@SEARCH[0]
@SEARCH[1]
@SEARCH[2]
@click.option("--layers", type=int, help="Of the network: sizes that are the same as 1 are not tried.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def search_command(times: str, step: int, reach: int, interval: int, layers: int | None, as_json: bool) -> None:
    """The search for a chunk size, given how long iterations take with each.

    \b
    Example
        hostlib cgdp search --times times.json --step 10 --range 5
    """
    if layers is not None and layers < 1:
        raise RunError(f"--layers must be at least 1, not {layers}")
    done = search(_times(times), step, reach, interval, layers)
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
    Console().print(table)


@cgdp.command()
@click.argument("trace", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--sync-us", default=SYNCHRONISATION_US, show_default=True, help="Of handing a chunk over, in microseconds."
)
@click.option(
    "--accumulation", default=ACCUMULATION_GB_S, show_default=True, help="What the host takes in and adds, in GB/s."
)
@click.option("--broadcast", default=BROADCAST_GB_S, show_default=True, help="What goes back to each worker, in GB/s.")
@click.option("--chunks", "wanted", metavar="K,...", help="Chunk sizes [default: all that differ].")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def model(
    trace: Path, sync_us: float, accumulation: float, broadcast: float, wanted: str | None, as_json: bool
) -> None:
    """What the cost model says of the backward pass of TRACE (`hostlib profile` writes one) with each chunk size.

    \b
    Example
        hostlib cgdp model resnet18.trace --sync-us 30 --chunks 1,2,4,8
    """
    if not (0 <= sync_us < math.inf and 0 < accumulation < math.inf and 0 < broadcast < math.inf):
        raise RunError("--accumulation and --broadcast must be above 0, and --sync-us not below")
    costs = costs_of(read(trace), sync_us / US, accumulation * 1e9, broadcast * 1e9)
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
    Console().print(table)


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
        raise RunError(f"--chunks takes numbers of layers such as 1,2,4, not {text!r}")
    return tuple(dict.fromkeys(map(int, words)))


@cgdp.command()
@click.argument("model")
@click.option("--workers", default=2, show_default=True, help="Processes of this host.")
@click.option("--batch", default=8, show_default=True, help="Examples per worker.")
@click.option("--input", "shape", metavar="CxHxW", help="Shape of one example [default: what the model says].")
@click.option("--chunks", "wanted", default="1,2,4,8", show_default=True, metavar="K,...", help="Chunk sizes.")
@click.option("--steps", default=20, show_default=True, help="Times are their medians.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; `times` is what `hostlib cgdp search` takes.")
def check(model: str, workers: int, batch: int, shape: str | None, wanted: str, steps: int, as_json: bool) -> None:
    """The cost model beside what this machine does with MODEL (the zoo's, or module:factory).

    Measures what each layer costs by itself, predicts the backward pass with each chunk size, and measures that.
    docs/cgdp.md says what each cost is on a CPU.

    \b
    Example
        hostlib cgdp check cifar10_quick --workers 2 --chunks 1,2,3
    """
    from hostlib.bench.cgdp_rank import CheckOptions
    from hostlib.bench.cgdp_rank import check as measure

    options = CheckOptions(model, parse_chunks(wanted, 0), _extents(shape), workers, batch, steps)
    with Console(stderr=True).status(f"{workers} workers measure {model}"):
        done = measure(options)
    if as_json:
        click.echo(json.dumps(_described(done), indent=2))
    else:
        _print_check(options, done)


def _extents(shape: str | None) -> tuple[int, ...] | None:
    if shape is None:
        return None
    if not all(extent.isdecimal() and int(extent) > 0 for extent in shape.split("x")):
        raise RunError(f"--input takes a shape such as 3x224x224, not {shape!r}")
    return tuple(map(int, shape.split("x")))


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
    Console().print(table)


PLACE = 90
COMMANDS = (cgdp,)
