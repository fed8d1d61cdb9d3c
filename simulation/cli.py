"""The `simulation` command."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from hostlib.errors import HostlibError
from hostlib.registry import registered
from hostlib.strategy import choose
from hostlib.trace import Trace, as_text, read, write
from simulation import quantity
from simulation.architecture import BUILDERS
from simulation.engine import Job, Order, Played, play
from simulation.errors import SimulationError
from simulation.experiment import Cell as ExperimentCell
from simulation.experiment import read_experiment
from simulation.network import Network
from simulation.paper import NOTES, TABLES, Cell, find_table, title_of
from simulation.subject import Subject, bare, known, recorded
from simulation.synthesis import DEFAULT_BATCH, DEFAULT_TFLOPS, model_trace
from simulation.workload import Variation

PLAIN_WIDTH = 120


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """What a mechanism would take on a network that is not here."""


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


model_options = _options(
    click.option("--input", "pixels", type=int, help="Width of the model's square images [default: the model's own]."),
    click.option("--batch", default=DEFAULT_BATCH, show_default=True, help="Images per worker and iteration."),
    click.option("--forward", "forward", help="Time of the forward pass [default: published, else by --tflops]."),
    click.option("--backward", "backward", help="Time of the backward pass [default: likewise]."),
    click.option(
        "--tflops",
        type=float,
        help=f"Compute by operations at this rate, not by published times [for others: {DEFAULT_TFLOPS:g}].",
    ),
)

network_options = _options(
    click.option("--latency", default="0us", show_default=True, help="One way, host to host."),
    click.option(
        "--overhead", default="0us", show_default=True, help="A host's link is taken so long by each message."
    ),
    click.option("--racks", default=1, show_default=True, help="Switches of a leaf-spine network; 1 is a star."),
    click.option("--oversubscription", default=1.0, show_default=True, help="Of each rack's way to the spine."),
    click.option("--store-and-aggregate", is_flag=True, help="Switches have the whole sum before they send it on."),
    click.option("--store-and-forward", is_flag=True, help="Switches have any whole message before they send it on."),
    click.option("--slots", default="0", help="Bytes that a switch can sum at a time [default: any]."),
)

job_options = _options(
    click.option(
        "--message", default="0", help="Split tensors into messages of at most so many bytes [default: whole]."
    ),
    click.option(
        "--barrier",
        type=click.Choice(["global", "none"]),
        default="global",
        show_default=True,
        help="Between iterations. With none, the time is the mean of all but the first.",
    ),
    click.option(
        "--order",
        type=click.Choice([each.value for each in Order]),
        default=Order.ROUND_ROBIN.value,
        show_default=True,
        help="In which servers distribute.",
    ),
    click.option(
        "--pipelined",
        type=click.Choice(["yes", "no"]),
        help="The forward pass begins with the first layer's parameters [default: with servers].",
    ),
    click.option("--iterations", type=int, help="[default: 1; 3 without a barrier]"),
    click.option("--jitter", default=0.0, show_default=True, help="Of compute times: standard deviation over mean."),
    click.option("--straggler", "stragglers", multiple=True, metavar="RANK=FACTOR", help="A rank that is slower."),
    click.option("--seed", default=1, show_default=True, help="Of jitter and of the random order."),
)


def _network(bandwidth: str, given: dict[str, Any]) -> Network:
    aggregate, forward = given.pop("store_and_aggregate"), given.pop("store_and_forward")
    return Network(
        quantity.bandwidth(bandwidth),
        quantity.time_ns(given.pop("latency")),
        quantity.time_ns(given.pop("overhead")),
        given.pop("racks"),
        given.pop("oversubscription"),
        store_and_forward=forward,
        store_and_aggregate=aggregate or forward,
        slot_bytes=quantity.size(given.pop("slots")),
    )


def _seconds(text: str | None) -> float | None:
    return None if text is None else quantity.time_ns(text) / 1e9


def _model(name: str, given: dict[str, Any]) -> Trace:
    return model_trace(
        name,
        given["pixels"],
        _seconds(given["forward"]),
        _seconds(given["backward"]),
        given["batch"],
        given["tflops"],
    )


def _job(subject: Subject, mechanism: str, workers: int, given: dict[str, Any]) -> Job:
    barrier = given["barrier"] == "global"
    stragglers = {}
    for text in given["stragglers"]:
        rank, _, factor = text.partition("=")
        try:
            stragglers[int(rank)] = float(factor)
        except ValueError:
            raise SimulationError(f"--straggler takes RANK=FACTOR, not {text!r}") from None
    choice = choose(mechanism)
    return Job(
        subject.workload(choice, workers),
        choice.mechanism,
        workers,
        iterations=given["iterations"] if given["iterations"] is not None else 1 if barrier else 3,
        barrier=barrier,
        pipelined=None if given["pipelined"] is None else given["pipelined"] == "yes",
        bare=subject.bare,
        order=Order(given["order"]),
        variation=Variation(given["jitter"], stragglers, given["seed"]),
    )


@main.command("run")
@click.argument("experiment", required=False, type=click.Path(path_type=Path))
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    help="Or STRATEGY/MECHANISM; repeat to compare [default: all mechanisms that have a schedule].",
)
@click.option("--model", help=f"Train this: {', '.join(sorted(BUILDERS))}.")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="Train what this trace describes.")
@click.option("--size", help="No model, one all-reduce of this size: bytes, or 16MiB, 64kb, ... [default: 16MiB].")
@click.option("--workers", default=4, show_default=True, help="How many workers.")
@click.option("--bandwidth", default="25gbit", show_default=True, help="Of every host's link, each way.")
@click.option("--jobs", default=1, show_default=True, help="So many of the same at a time.")
@click.option("--apart", is_flag=True, help="Jobs have hosts of their own, and share switches only.")
@model_options
@network_options
@job_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def run_(
    experiment: Path | None,
    mechanisms: tuple[str, ...],
    model: str | None,
    trace_file: Path | None,
    size: str | None,
    workers: int,
    bandwidth: str,
    jobs: int,
    apart: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Play an iteration of training a model, or one bare all-reduce; or every cell of an EXPERIMENT's file, which then
    says all but --json.

    \b
    Examples
        simulation run emulation/experiments/fabric-vs-host.toml
        simulation run --workers 32 --size 528MiB --bandwidth 25gbit
        simulation run --model vgg16 --mechanism ring --workers 32 --bandwidth 25gbit
        simulation run --model vgg19 --mechanism ring --mechanism hybcomm/ring --mechanism poseidon --mechanism cgdp
        simulation run --model resnet50 --workers 64 --racks 4 --oversubscription 3
    """
    if experiment is not None:
        _run_experiment(experiment, as_json)
        return
    if jobs < 1:
        raise SimulationError(f"--jobs must be at least 1, not {jobs}")
    network = _network(bandwidth, given)
    subject, what = _subject(model, trace_file, size, given)
    results: dict[str, dict[str, Any]] = {}
    for name in mechanisms or _playable(network):
        job = _job(subject, name, workers, given)
        results[name] = _result(play(network, [job] * jobs, apart), job.iterations)
    if as_json:
        click.echo(json.dumps(next(iter(results.values())) if len(mechanisms) == 1 else results, indent=2))
        return
    title = f"{what}, {workers} workers, {bandwidth} links"
    table = Table("mechanism", title=title, title_justify="left")
    for heading in ("time", "algbw", "busiest link", "events", "wall"):
        table.add_column(heading, justify="right")
    for name, result in results.items():
        seconds = result["iteration_s"]
        busiest = max(max(link.values()) for link in result["bytes_per_link"].values())
        algbw = f"{subject.trace.bytes * 8 / seconds / 1e9:.2f} Gbit/s" if seconds else "-"
        table.add_row(name, f"{seconds * 1e3:.3f} ms", algbw, f"{busiest / 1e6:.2f} MB", f"{result['events']:,}",
                      f"{result['wall_s']:.2f} s")  # fmt: skip
    _console().print(table)


def _run_experiment(path: Path, as_json: bool) -> None:
    """All cells; what the command line says besides is refused, since the file says it."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    besides = [p.opts[0] for p in context.command.params if context.get_parameter_source(p.name or "") is source]
    if extra := [name for name in besides if name not in ("experiment", "--json")]:
        raise SimulationError(
            f"{', '.join(extra)}: an experiment's file says this itself; with one, only --json is legal"
        )
    experiment = read_experiment(path)
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=Console(stderr=True)
    )
    rows = []
    with progress:
        bar = progress.add_task("simulating", total=len(experiment.cells))
        for cell in experiment.cells:
            seconds = experiment.simulated_s(cell)
            rows.append({**asdict(cell), "iteration_ms": None if seconds is None else seconds * 1e3})
            progress.advance(bar)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(*(each.name for each in fields(ExperimentCell)), title=experiment.title, title_justify="left")
    table.add_column("iteration", justify="right")
    for row in rows:
        *of_cell, ms = row.values()
        table.add_row(*map(str, of_cell), "not simulated" if ms is None else f"{ms:.3f} ms")
    _console().print(table)


def _playable(network: Network) -> tuple[str, ...]:
    """All mechanisms that have a schedule; on several racks, with the sums at both levels where there is one for that."""
    names = tuple(name for name, each in registered().items() if each.build is not None)
    if network.racks == 1:
        return names
    return tuple(f"{n}:racks={network.racks}" if "racks" in registered()[n].options else n for n in names)


def _subject(
    model: str | None, trace_file: Path | None, size: str | None, given: dict[str, Any]
) -> tuple[Subject, str]:
    if sum(each is not None for each in (model, trace_file, size)) > 1:
        raise SimulationError("--model, --trace and --size exclude each other")
    message = quantity.size(given["message"])
    if model is not None:
        return known(model, _model(model, given), given["pixels"], given["batch"], message), model
    if trace_file is not None:
        return recorded(trace_file, given["batch"], message), str(trace_file)
    bytes_ = quantity.size(size or "16MiB")
    if bytes_ < 1:
        raise SimulationError(f"--size must be at least 1 byte, not {size}")
    return bare(bytes_, message), f"all-reduce of {size or '16MiB'}"


def _result(played: Played, iterations: int) -> dict[str, Any]:
    """The first job's time, all jobs' bytes; `iteration_s` of each where there are several."""
    result: dict[str, Any] = {
        "iteration_s": played.outcomes[0].iteration_s,
        "bytes_per_link": {n: {"sent": s, "received": r} for n, (s, r) in played.link_bytes.items()},
        "events": played.events,
        "wall_s": played.wall_s,
    }
    if iterations > 1:
        result["iterations"] = iterations
    if played.stood_for > 1:
        result["workers_per_played"] = played.stood_for
    if len(played.outcomes) > 1:
        result["jobs_iteration_s"] = [outcome.iteration_s for outcome in played.outcomes]
    return result


# ---- traces --------------------------------------------------------------------------------------------------------


@main.group(invoke_without_command=True)
@click.option("--model", help=f"Make one of this model: {', '.join(sorted(BUILDERS))}.")
@model_options
@click.option("--output", type=click.Path(path_type=Path), help="Write it here [default: print it].")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.pass_context
def trace(context: click.Context, model: str | None, output: Path | None, as_json: bool, **given: Any) -> None:
    """Make a trace from an architecture and its compute times; edit one; look at one.

    \b
    Examples
        simulation trace --model vgg16 --input 299 --output vgg16.trace
        simulation trace edit vgg16.trace --scale-compute 0.5 --output faster.trace
    """
    if context.invoked_subcommand is not None:
        return
    if model is None:
        raise SimulationError(f"--model is missing; legal are {', '.join(sorted(BUILDERS))}")
    _put(_model(model, given), output, as_json)


@trace.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--scale-compute", type=float, help="Times all compute times.")
@click.option("--scale-sizes", type=float, help="Times all sizes.")
@click.option(
    "--layers", default=".*", show_default=True, help="Only of layers whose name fits (a regular expression)."
)
@click.option("--add", type=int, help="Copies of those layers, behind the last of them.")
@click.option("--output", type=click.Path(path_type=Path), help="Write it here [default: print it].")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def edit(
    file: Path,
    scale_compute: float | None,
    scale_sizes: float | None,
    layers: str,
    add: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Change a trace: compute times, sizes, more layers.

    \b
    Example
        simulation trace edit inception3.trace --layers Mixed_6e/ --add 25 --output deeper.trace
    """
    edited = read(file)
    for what, factor in (("--scale-compute", scale_compute), ("--scale-sizes", scale_sizes)):
        if factor is not None and not 0 < factor < float("inf"):
            raise SimulationError(f"{what} must be above 0, not {factor}")
    if add is not None and add < 1:
        raise SimulationError(f"--add must be at least 1, not {add}")
    if scale_compute is not None:
        edited = edited.scale_compute(scale_compute, layers)
    if scale_sizes is not None:
        edited = edited.scale_sizes(scale_sizes, layers)
    if add is not None:
        edited = edited.add_layers(layers, add)
    _put(edited, output, as_json)


@trace.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(file: Path, as_json: bool) -> None:
    """Say what is in a trace."""
    told = read(file)
    if as_json:
        _put(told, None, as_json)
        return
    table = Table("layer", title=f"{file}: {told.bytes / 1e6:.2f} MB of gradients", title_justify="left")
    for heading in ("forward", "backward", "bytes"):
        table.add_column(heading, justify="right")
    for layer in told.layers:
        held = sum(p.bytes for p in told.parameters if p.layer == layer.name and p.trained)
        table.add_row(layer.name, f"{layer.forward_ns / 1e6:.3f} ms", f"{layer.backward_ns / 1e6:.3f} ms", f"{held:,}")
    _console().print(table)


def _put(made: Trace, output: Path | None, as_json: bool) -> None:
    if output is not None:
        try:
            write(made, output)
        except OSError as wrong:
            raise SimulationError(f"{output} cannot be written: {wrong.strerror}") from None
    if as_json:
        click.echo(json.dumps({each.name: [asdict(row) for row in getattr(made, each.name)] for each in fields(made)}))
    elif output is None:
        click.echo(as_text(made), nl=False)


# ---- papers --------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV.")
@click.option("--markdown", "as_markdown", is_flag=True, help="As the tables of docs/paper.md.")
def paper(tables: tuple[str, ...], as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Simulate published tables again: 1, 4, 6, 7, 8, 9, 10, figure2 to figure12, ralp2, ralp3, poseidon1,
    poseidon8, cgdp2, or all.

    \b
    Examples
        simulation paper 4
        simulation paper all --json
    """
    names = list(TABLES) if tables == ("all",) else [find_table(name)[0] for name in tables]
    played = {name: list(TABLES[name]()) for name in names}
    cells = [cell for each in played.values() for cell in each]
    if as_json:
        click.echo(json.dumps([asdict(cell) for cell in cells], indent=2))
    elif as_csv:
        rows = csv.writer(sys.stdout)
        rows.writerow([each.name for each in fields(Cell)])
        rows.writerows([getattr(cell, each.name) for each in fields(Cell)] for cell in cells)
    elif as_markdown:
        click.echo("\n\n".join(_markdown(name, each) for name, each in played.items()))
    else:
        for name, each in played.items():
            _print_cells(name, each)


def _told(cell: Cell) -> tuple[str, str, str, str, str, str]:
    number = "-" if cell.published is None else f"{cell.published:,.6g}"
    error = "-" if cell.error is None else f"{100 * cell.error:+.1f} %"
    return (
        cell.row,
        cell.column,
        number,
        f"{cell.simulated:,.4g}" if cell.simulated < 1e6 else f"{cell.simulated:,.0f}",
        error,
        cell.kind,
    )


def _print_cells(name: str, cells: list[Cell]) -> None:
    table = Table(
        "row", "column", title=title_of(name), title_justify="left", caption=NOTES.get(name), caption_justify="left"
    )
    for heading in ("published", "simulated", "error", "kind"):
        table.add_column(heading, justify="right")
    for cell in cells:
        table.add_row(*_told(cell))
    _console().print(table)


def _markdown(name: str, cells: list[Cell]) -> str:
    lines = [
        f"### {title_of(name)}",
        "",
        "| row | column | published | simulated | error | kind |",
        "|---|---|---:|---:|---:|---|",
    ]
    return "\n".join(lines + ["| " + " | ".join(_told(cell)) + " |" for cell in cells])


# ---- sweeps --------------------------------------------------------------------------------------------------------


@main.command()
@click.option("--models", default="resnet50", show_default=True, help="Models or trace files, separated by commas.")
@click.option("--mechanisms", help="Or STRATEGY/MECHANISM, separated by commas [default: all that have a schedule].")
@click.option("--bandwidths", default="25gbit", show_default=True, help="Separated by commas.")
@click.option("--workers", default="8", show_default=True, help="Separated by commas.")
@model_options
@network_options
@job_options
@click.option(
    "--output", type=click.Path(path_type=Path), help="Results, a JSON line each; what is there is not run again."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the results here (.png, .svg, .pdf).")
@click.option(
    "--plot-value", default="iteration_s", show_default=True, help="What to draw: also wall_s, events_per_s, memory_mb."
)
@click.option("--processes", type=int, help="How many at a time [default: all cores].")
@click.option("--cluster", metavar="ADDRESS", help="Run on a Dask cluster instead: its scheduler's address.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV.")
def sweep(**given: Any) -> None:
    """Play models x mechanisms x bandwidths x workers, on all cores or a cluster.

    \b
    Example
        simulation sweep --models vgg16,resnet50 --bandwidths 10gbit,100gbit --workers 8,64,512 --plot sweep.png
    """
    from simulation.sweep import Grid, Point, draw, run_sweep

    as_json, as_csv = given.pop("as_json"), given.pop("as_csv")
    output, plot, value = given.pop("output"), given.pop("plot"), given.pop("plot_value")
    processes, cluster = given.pop("processes"), given.pop("cluster")

    def listed(name: str) -> list[str]:
        return [each.strip() for each in given.pop(name).split(",") if each.strip()]

    given["mechanisms"] = given["mechanisms"] or ",".join(n for n, m in registered().items() if m.build is not None)
    grid = Grid(listed("models"), listed("mechanisms"), listed("bandwidths"), listed("workers"), given)
    rows = run_sweep(grid, play_point, output, processes, cluster, Console(stderr=True))
    if plot is not None:
        draw(rows, value, plot)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    columns = [each.name for each in fields(Point) if each.name != "options"]
    measured = ["iteration_s", "events", "wall_s", "events_per_s", "memory_mb"]
    if as_csv:
        out = csv.writer(sys.stdout)
        out.writerow(columns + measured)
        out.writerows([row[name] for name in columns + measured] for row in rows)
        return
    table = Table(*columns)
    for name in measured:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(str(row[name]) for name in columns), *(f"{row[name]:,.4g}" for name in measured))
    _console().print(table)


def play_point(point: Any) -> dict[str, Any]:
    """One point of a sweep, in whatever process or on whatever machine it is to be played."""
    given = dict(point.options)
    network = _network(point.bandwidth, given)
    is_file = point.model not in BUILDERS and Path(point.model).exists()
    subject, _ = _subject(None if is_file else point.model, Path(point.model) if is_file else None, None, given)
    played = play(network, [_job(subject, point.mechanism, point.workers, given)])
    return {
        "iteration_s": played.outcomes[0].iteration_s,
        "events": played.events,
        "kernel_s": played.kernel_s,
        "wall_s": played.wall_s,
    }


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


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
