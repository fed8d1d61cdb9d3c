"""The `hostlib` command, and the command line of one rank (`python -m hostlib.train`)."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hostlib.checker import check
from hostlib.commands.cgdp import cgdp
from hostlib.commands.converge import converge
from hostlib.commands.models import models
from hostlib.commands.overlap import overlap
from hostlib.commands.poseidon import poseidon
from hostlib.commands.ralp import ralp
from hostlib.drawing import picture
from hostlib.drawing import table as table_of
from hostlib.errors import HostlibError, RunError
from hostlib.options import TRANSPORTS, TrainOptions
from hostlib.progress import TrainingProgress
from hostlib.registry import Mechanism, describe_option, find, registered
from hostlib.schedule import describe, link_elements
from hostlib.strategy import describe_options, registered_strategies

DEFAULTS = {f.name: f.default for f in fields(TrainOptions)}
BYTES_PER_ELEMENT = 4
PATIENCE_S = 15.0  # three heartbeats
KERNELS_S = 2.0
PLAIN_WIDTH = 110  # of tables that go to a file


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Train with a collective mechanism, and look at what it does.

    \b
    hostlib train         train a model on several workers of this machine
    hostlib mechanisms    which mechanisms there are
    hostlib schedule      what one of them does, operation by operation
    hostlib bench         how fast mechanisms sum, here or between network namespaces with links of a given rate
    hostlib models        which networks there are, and the layers of any model
    hostlib profile       how long a model's layers compute and when its gradients are ready: a trace for `simulation`
    hostlib converge      train the same by several mechanisms and compare how fast it learns
    hostlib poseidon      which layers of a model go by parameter servers, which by sufficient factors
    hostlib ralp          whether a model's last layers had better live at a server, and from which on
    hostlib cgdp          chunks of layers that are accumulated on the host together: which, and what they cost
    hostlib overlap       how much of the communication strategies hide behind the backward pass, side by side
    hostlib doctor        whether this host, a fabric and its jobs are as they should be

    On several machines, or under your own launcher: torchrun ... -m hostlib.train --mechanism inagg+mcast
    """


def train_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that `hostlib train` and `python -m hostlib.train` share."""
    for option in reversed(
        [
            click.option(
                "--mechanism",
                default=DEFAULTS["mechanism"],
                show_default=True,
                metavar="[STRATEGY/]NAME",
                help="What is summed when, and how; see `hostlib mechanisms`. STRATEGY is wfbp by default; alone, it takes its "
                "paper's mechanism.",
            ),
            click.option(
                "--model",
                default=DEFAULTS["model"],
                show_default=True,
                metavar="NAME",
                help="See `hostlib models`; of lenet, resnet18 and vgg there are versions for the digits. Or MODULE:FACTORY.",
            ),
            click.option(
                "--data",
                default=DEFAULTS["data"],
                show_default=True,
                help="digits, mnist:FOLDER, cifar10:FOLDER, or synthetic[:examples=N] of what the model takes.",
            ),
            click.option(
                "--world-size", type=int, help="Number of workers [default: 4; under torchrun, what it started]."
            ),
            click.option("--epochs", default=DEFAULTS["epochs"], show_default=True),
            click.option("--steps", type=int, help="No more steps than these [default: all of the epochs']."),
            click.option("--batch-size", default=DEFAULTS["batch_size"], show_default=True, help="Per worker."),
            click.option("--lr", default=DEFAULTS["lr"], show_default=True, help="Learning rate (SGD, momentum 0.9)."),
            click.option("--seed", default=DEFAULTS["seed"], show_default=True, help="Of weights, split and batches."),
            click.option(
                "--bucket-mb", default=DEFAULTS["bucket_mb"], show_default=True, help="DDP's bucket size in MiB."
            ),
            click.option(
                "--controller",
                default=DEFAULTS["controller"],
                show_default=True,
                metavar="URL",
                help="Where ranks join, for mechanisms that need the fabric.",
            ),
            click.option(
                "--deadline",
                "deadline_s",
                default=DEFAULTS["deadline_s"],
                show_default=True,
                metavar="SECONDS",
                help="How long a rank waits without progress before it says who is missing.",
            ),
            click.option(
                "--address",
                default=DEFAULTS["address"],
                show_default=True,
                help="This host's IPv4 address towards the switch.",
            ),
            click.option(
                "--fallback",
                default=DEFAULTS["fallback"],
                show_default=True,
                metavar="NAME",
                help="The mechanism that goes on when the switch fails.",
            ),
            click.option(
                "--lanes",
                default=DEFAULTS["lanes"],
                show_default=True,
                help="Sockets and threads per worker towards the switch.",
            ),
            click.option(
                "--transport",
                type=click.Choice(TRANSPORTS),
                default=DEFAULTS["transport"],
                show_default=True,
                help="What messages between hosts go by; mpi under mpirun.",
            ),
            click.option(
                "--profile",
                type=click.Path(file_okay=False),
                metavar="FOLDER",
                help="Write a Chrome trace per worker of the steps after the warm-up.",
            ),
            click.option(
                "--save",
                type=click.Path(dir_okay=False),
                metavar="FILE",
                help="Write the weights that the run ends with here (torch.save's form).",
            ),
            click.option(
                "--result", type=click.Path(dir_okay=False, path_type=Path), help="Write the result (JSON) here."
            ),
        ]
    ):
        command = option(command)
    return command


@main.command()
@train_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--progress/--no-progress", default=None, help="A progress bar [default: when on a terminal].")
def train(result: Path | None, as_json: bool, progress: bool | None, **options: Any) -> None:
    """Train a model with several workers on this machine.

    \b
    Examples
        hostlib train --mechanism ring
        hostlib train --mechanism ring --model cifar10_quick --data cifar10:/data/cifar --steps 200
        controller start && hostlib train --mechanism inagg+mcast --model vgg --world-size 8
    """
    from hostlib.launch import launch

    signal.signal(signal.SIGTERM, _interrupt)
    if result is not None and not os.access(result.absolute().parent, os.W_OK):
        raise RunError(f"cannot write {result}: its folder does not exist or is not writable")
    console = Console(stderr=True)
    shown = console.is_terminal if progress is None else progress
    with TrainingProgress(console, options["mechanism"], shown) as report:
        done = launch(TrainOptions(**options), report)
    _write(result, done)
    if as_json:
        click.echo(json.dumps(done, indent=2))
    else:
        _print_result(done)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _write(path: Path | None, result: dict[str, Any]) -> None:
    if path is None:
        return
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(result, indent=2) + "\n")
        os.replace(partial, path)
    except OSError as wrong:
        raise RunError(f"cannot write {path}: {wrong.strerror}") from wrong


def _print_result(result: dict[str, Any]) -> None:
    table = Table(
        title=f"{result['model']} over {result['mechanism']}, {result['world_size']} workers",
        title_justify="left",
        show_header=False,
    )
    sent = max(link["sent"] for link in result["link_bytes"].values())
    table.add_row("steps", f"{result['steps']}")
    table.add_row("iteration (median)", f"{result['iteration_ms_median']:.1f} ms")
    table.add_row("communication (median)", f"{result['communication_ms_median']:.1f} ms")
    table.add_row(
        "exposed (median)", f"{result['exposed_ms_median']:.1f} ms, {100 * result['overlap']:.0f} % overlapped"
    )
    for what, told in result["strategy"].items():
        table.add_row(what.replace("_", " "), str(told))
    table.add_row("test accuracy", f"{result['test_accuracy']:.4f}")
    table.add_row("sent per worker", f"{sent / 1e6:.2f} MB")
    table.add_row(
        "weights", "identical on all ranks" if len(set(result["weights_sha256"])) == 1 else "[red]DIFFER[/red]"
    )
    Console().print(table)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def mechanisms(as_json: bool) -> None:
    """Which mechanisms and strategies `--mechanism` takes."""
    known = registered()
    options = {name: [describe_option(option) for option in m.options.values()] for name, m in known.items()}
    if as_json:
        told = {
            name: {
                "summary": m.summary,
                "needs_fabric": m.needs_fabric,
                "runs_on_hosts": m.runs_on_hosts,
                "transport": m.transport,
                "device": m.device,
                "one_host": m.one_host,
                "options": options[name],
            }
            for name, m in known.items()
        }
        strategies = {name: strategy.summary for name, strategy in registered_strategies().items()}
        click.echo(json.dumps({"mechanisms": told, "strategies": strategies}, indent=2))
        return
    table = Table("mechanism", "options", "runs on", "what it does")
    for name, mechanism in known.items():
        table.add_row(name, "\n".join(f":{option}" for option in options[name]), _where(mechanism), mechanism.summary)
    how = Table("strategy", "options", "what it does")
    for name, strategy in registered_strategies().items():
        how.add_row(name, "\n".join(f":{option}" for option in describe_options(strategy)), strategy.summary)
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table, how)


def _where(mechanism: Mechanism) -> str:
    if not mechanism.runs_on_hosts:
        return "simulator"
    needed = ["fabric"] * mechanism.needs_fabric + [each for each in (mechanism.transport, mechanism.device) if each]
    return ", ".join(["one host" if mechanism.one_host else "hosts", *needed])


@main.command()
@click.argument("mechanism")
@click.option("-n", "world_size", default=4, show_default=True, help="Workers.")
@click.option("--size", default=1 << 20, show_default=True, help="Tensor size in bytes (float32).")
@click.option("--turn", default=0, show_default=True, help="The tensor's number, where tensors are dealt out.")
@click.option("--draw", is_flag=True, help="As a timeline: who sends what to whom in which step.")
@click.option(
    "--draw-to",
    "picture_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The timeline as a picture: FILE.svg, .png or .pdf.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def schedule(
    mechanism: str, world_size: int, size: int, turn: int, draw: bool, picture_path: Path | None, as_json: bool
) -> None:
    """What a mechanism does, operation by operation, after proving that it sums right and cannot deadlock.

    \b
    Examples
        hostlib schedule ring -n 4 --draw
        hostlib schedule ps:servers=2:assign=even -n 8 --json
    """
    if world_size < 1 or size < BYTES_PER_ELEMENT or turn < 0:
        raise RunError("-n must be at least 1, --size at least 4 bytes and --turn at least 0")
    made = find(mechanism).schedule(world_size, size, turn)
    check(made)
    if picture_path is not None:
        picture(made, picture_path)
    carried = {
        node: {"sent_bytes": BYTES_PER_ELEMENT * sent, "received_bytes": BYTES_PER_ELEMENT * received}
        for node, (sent, received) in link_elements(made, size // BYTES_PER_ELEMENT).items()
    }
    if as_json:
        told = {
            "mechanism": mechanism,
            "world_size": world_size,
            "pieces": made.pieces,
            "verified": True,
            "links": carried,
            "nodes": {node: [describe(op) for op in ops] for node, ops in made.nodes.items()},
        }
        click.echo(json.dumps(told, indent=2))
        return
    title = f"{mechanism}, {world_size} workers, {made.pieces} pieces: verified"
    if draw:
        drawn = table_of(made)
        drawn.title = title
        Console(width=None if sys.stdout.isatty() else 16 + 24 * len(made.nodes)).print(drawn)
        return
    table = Table("node", "operations", title=title, title_justify="left")
    for node, operations in made.nodes.items():
        table.add_row(node, "\n".join(f"{i + 1}. {describe(op)}" for i, op in enumerate(operations)))
    Console().print(table)


@main.command()
@click.option(
    "--mechanisms",
    metavar="A,B,...",
    help="What to measure; see `hostlib mechanisms` [default: all that these ranks can run].",
)
@click.option(
    "--sizes", metavar="SIZE,...", help="Of the tensor in bytes; K, M and G are 2^10, ... [default: 64K,1M,16M]."
)
@click.option("--from", "first", metavar="SIZE", help="With --to: sizes from here ...")
@click.option("--to", "last", metavar="SIZE", help="... to here.")
@click.option("--factor", default=4, show_default=True, help="With --from and --to: from one size to the next.")
@click.option("--dtype", "dtypes", default="float32", show_default=True, metavar="TYPE,...")
@click.option("--world-size", type=int, help="Number of ranks [default: 4; with --hosts netns:N, N].")
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
@click.option("--rate", metavar="RATE", help="netns: of each link in each direction, as 100mbit [default: no limit].")
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
        hostlib bench --mechanisms inagg+mcast,ring --world-size 2 --from 4K --to 16M
        hostlib bench --hosts netns:8 --rate 100mbit --sizes 16M
        hostlib bench --hosts netns:8 --rate 100mbit --mechanisms inagg+mcast --loss 0.01
        hostlib bench --kernels --device cuda
    """
    from hostlib.bench import (
        BenchOptions,
        BenchProgress,
        measurable,
        measurements,
        parse_sizes,
        print_rows,
        run_bench,
    )
    from hostlib.own_fabric import Faults

    if device == "cuda":
        _cuda_figures(kernels, as_json)
        return
    signal.signal(signal.SIGTERM, _interrupt)
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
        told = [asdict(row) for row in rows]
        click.echo(json.dumps({"rows": told, "kernels": [asdict(r) for r in rates]} if kernels else told, indent=2))
    else:
        console = Console()
        longest = max(map(len, asked.mechanisms))
        print_rows(asked, rows, console if console.is_terminal else Console(width=PLAIN_WIDTH + longest))
        if kernels:
            from hostlib.kernelbench import print_table

            print_table(rates, console)
    if any(row.wrong for row in rows):
        sys.exit(1)


@main.command()
@click.option("--model", default="lenet", show_default=True, help="See `hostlib models`; or MODULE:FACTORY.")
@click.option("--input", "shape", metavar="CxHxW", help="Shape of one sample [default: what the model takes].")
@click.option("--batch", default=32, show_default=True, help="Samples per iteration.")
@click.option("--iterations", default=5, show_default=True, help="Times are their medians.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("--method", type=click.Choice(["hooks", "profiler"]), default="hooks", show_default=True)
@click.option(
    "--import",
    "source",
    type=click.Path(path_type=Path),
    help="Read a profile of torch.profiler (Chrome's format) instead.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Write the trace here [default: print it].")
def profile(
    model: str,
    shape: str | None,
    batch: int,
    iterations: int,
    device: str,
    method: str,
    source: Path | None,
    output: Path | None,
) -> None:
    """Record a model's trace: what `simulation run --trace` plays on other networks.

    \b
    Examples
        hostlib profile --model resnet18 --batch 8 --output resnet18.trace
        hostlib profile --model torchvision.models:vit_b_16 --input 3x224x224 --device cuda --output vit.trace
        hostlib profile --import profile.json --output mine.trace
    """
    from hostlib.trace import as_text, write

    if source is not None:
        from hostlib.kineto import import_profile

        trace = import_profile(source)
    else:
        from hostlib.inspection import input_of
        from hostlib.loading import load_model, parse_shape
        from hostlib.profile import profile as record

        asked = None if shape is None else parse_shape(shape)
        made = load_model(model, asked)
        trace = record(made, asked or input_of(made), batch, iterations, device, kineto=method == "profiler")
    if output is None:
        click.echo(as_text(trace), nl=False)
        return
    try:
        write(trace, output)
    except OSError as wrong:
        raise RunError(f"{output} cannot be written: {wrong.strerror}") from None


@main.command()
@click.option(
    "--controller", default=DEFAULTS["controller"], show_default=True, metavar="URL", help="Of the fabric to look at."
)
@click.option(
    "--address", default=DEFAULTS["address"], show_default=True, help="This host's IPv4 address towards the switch."
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="A rank without a heartbeat for so long, or without progress while others made some, is stalled.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(controller: str, address: str, patience: float, as_json: bool) -> None:
    """Check this host, a fabric, and its jobs, and say what to change; exit code 1 if anything fails."""
    from hostlib.doctor import examine, print_checks

    checks = examine(controller, address, patience)
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        print_checks(checks, Console())
    if any(check.state == "fail" for check in checks):
        sys.exit(1)


def _cuda_figures(kernels: bool, as_json: bool) -> None:
    if not kernels:
        raise RunError("--device cuda measures kernels alone: add --kernels (ranks' tensors are on the CPU)")
    from hostlib.devicebench import measure_cuda, print_tables

    figures = measure_cuda(KERNELS_S)
    if as_json:
        click.echo(json.dumps(asdict(figures), indent=2))
    else:
        print_tables(figures, Console())


def _kernel_rates() -> list[Any]:
    from hostlib.kernelbench import run

    return run(KERNELS_S)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


main.add_command(cgdp)
main.add_command(converge)
main.add_command(models)
main.add_command(overlap)
main.add_command(poseidon)
main.add_command(ralp)


# ---- one rank ---------------------------------------------------------------------------------------------------


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@train_options
def rank_command(result: Path | None, **options: Any) -> None:
    """One rank of a training run, under torchrun or mpirun; with parameter servers, the last processes are those.

    \b
    Examples
        torchrun --nproc-per-node 4 -m hostlib.train --mechanism ring
        torchrun --nproc-per-node 5 -m hostlib.train --mechanism ps
        mpirun -n 4 python -m hostlib.train --transport mpi --mechanism ring
    """
    told = TrainOptions(**options)
    # What cannot be is refused before torch is loaded.
    from hostlib.rank import Surroundings, under_mpi
    from hostlib.train import train

    with under_mpi() if told.transport == "mpi" else nullcontext(Surroundings.from_environment()) as here:
        console = Console(stderr=True)
        with TrainingProgress(console, told.mechanism, here.rank == 0 and console.is_terminal) as report:
            done = train(told, here, report if here.rank == 0 else lambda event: None)
    if here.rank == 0:
        _write(result, done)
        _print_result(done)


def run_rank() -> None:
    """`python -m hostlib.train`: under `hostlib train` events go out as JSON lines, else as a person would read them."""
    told = os.environ.get("NETFOLD_RANK_OPTIONS")
    _exit(lambda: _child(told) if told else rank_command(standalone_mode=False))
    # Gloo's threads may still wait for a peer that is gone: nothing of this process is needed any more.
    sys.stdout.flush()
    os._exit(0)


def run_part(command: str, part: Callable[[str, Any, Callable[[dict[str, Any]], None]], dict[str, Any]]) -> None:
    """`python -m` of a module that only a command starts, once for each rank.

    Args:
        part: of the options' text, the surroundings and what events are told to; returns the result.
    """
    _exit(lambda: _part(command, part))
    sys.stdout.flush()
    os._exit(0)


def _part(command: str, part: Callable[[str, Any, Callable[[dict[str, Any]], None]], dict[str, Any]]) -> None:
    from hostlib.rank import Surroundings

    here = Surroundings.from_environment()
    told = os.environ.get("NETFOLD_RANK_OPTIONS")
    if told is None:
        raise RunError(f"this is one rank of `{command}`: run that")

    def tell(event: dict[str, Any]) -> None:
        if here.rank == 0:
            click.echo(json.dumps(event))

    tell({"event": "result", "result": part(told, here, tell)})


def _child(told: str) -> None:
    from hostlib.rank import Surroundings
    from hostlib.train import train

    here = Surroundings.from_environment()

    def tell(event: dict[str, Any]) -> None:
        if here.rank == 0:
            click.echo(json.dumps(event))

    tell({"event": "result", "result": train(TrainOptions.from_json(told), here, tell)})


def _exit(command: Callable[[], object]) -> None:
    """Run a command; errors of netfold become one line and exit code 1."""
    code = 0
    try:
        command()
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = 130
    except click.ClickException as wrong:
        wrong.show()
        code = wrong.exit_code
    except click.exceptions.Exit as done:
        code = done.exit_code
    except HostlibError as wrong:
        click.echo(f"error: {wrong}", err=True)
        code = 1
    if code:
        sys.stderr.flush()
        os._exit(code)


def run() -> None:
    """Entry point of `hostlib`."""
    _exit(lambda: main(standalone_mode=False))
