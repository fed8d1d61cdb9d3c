"""`netfold suite`: the benchmark suite of data sets, networks and frameworks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from emulation.commands.run_options import real_hosts_of, require_dilation, run_options
from hostlib.system.command import Command, json_option
from hostlib.system.command_group import Group
from hostlib.system.extras import CONTROLLER, require_installed
from hostlib.system.interrupts import interrupt_on
from hostlib.system.plot_file import require_drawable
from hostlib.text import option_types as types
from hostlib.text.progress_lines import PlainProgress

TIMES = {"simulate": "simulated", "replay": "replayed", "train": "trained"}  # the ways, and what their times are


@click.group(cls=Group)
def suite() -> None:
    """Benchmark data sets, networks and frameworks: seconds of an epoch, speed-up over one worker, memory.

    \b
    Examples
        netfold suite list
        netfold suite run --datasets cifar10 --networks resnet18,vgg11
        netfold suite report build/suite-simulate --plot speedups.svg
    """


@suite.command("run", cls=Command)
@click.option("--datasets", type=types.NAME.listed(), help="Data sets [default: all; see `netfold suite list`].")
@click.option("--networks", type=types.NAME.listed(), help="Networks, in the data set's variant [default: all].")
@click.option(
    "--frameworks",
    type=types.MECHANISM.listed(),
    help="Mechanisms, strategies, STRATEGY/MECHANISM, or `sequential` [default: all that are registered].",
)
@click.option("--workers", type=types.COUNTED, default="4", show_default=True, help="Numbers of workers.")
@click.option("--bandwidth", type=types.RATE.typed(), default="40gbit", show_default=True, help="Of every host's link.")
@click.option(
    "--way",
    type=click.Choice(list(TIMES)),
    default="simulate",
    show_default=True,
    help="Play cells in virtual time; replay them with real packets, in which workers compute by waiting; or train a few "
    "batches for real.",
)
@click.option("--batch", type=types.N, help="Examples per worker and iteration [default: the data set's].")
@click.option(
    "--tflops",
    type=types.NUMBER,
    default=10.0,
    show_default=True,
    help="Rate at which workers compute, if they do not train.",
)
@click.option("--iterations", type=types.N, default=3, show_default=True, help="Measured iterations of a cell.")
@click.option("--warm-up", type=types.N, default=1, show_default=True, help="Iterations before them.")
@click.option(
    "--shrink",
    type=types.FACTOR,
    default=32.0,
    show_default=True,
    help="How many times smaller replayed tensors are, and slower links.",
)
@click.option(
    "--data",
    type=types.DATASET.listed(),
    default="",
    help="Folders of data sets' files, DATASET:FOLDER [default: synthetic images].",
)
@click.option(
    "--seed", type=types.SEED, default=1, show_default=True, help="Seed of weights, synthetic images and batches."
)
@click.option(
    "--gpu-memory",
    type=types.SIZE.typed(),
    help="Memory of each GPU; simulated cells that do not fit fail [default: all fit].",
)
@click.option("--only", type=types.TEXT, default="", help="Run only cells with this in their name.")
@click.option("--output", type=types.FOLDER, help="Folder for the results [default: build/suite-WAY].")
@click.option(
    "--on",
    "how",
    type=click.Choice(["loopback", "netns", "mininet"]),
    help="Where hosts are [default: netns to replay, loopback to train].",
)
@run_options
@click.option("--list", "only_list", is_flag=True, help="List the cells that would be run, and those left out.")
@json_option
def run_suite(
    datasets: str | None,
    networks: str | None,
    frameworks: str | None,
    workers: str,
    way: str,
    data: str,
    only: str,
    output: Path | None,
    how: str | None,
    dilation: float | None,
    auto_dilate: bool,
    hostfile: Path | None,
    launcher: str,
    controller: str,
    switch_at: str,
    predictor: str,
    real_time: bool,
    only_list: bool,
    as_json: bool,
    **selected: Any,
) -> None:
    """Run the suite: simulated, replayed with real packets, or really trained for a few batches.

    Epoch seconds are an iteration's median times the data set's iterations. Results go to a folder, with an experiment
    file for each data set and network. Run again, the suite continues where it was interrupted.

    \b
    Examples
        netfold suite run --datasets cifar10 --networks resnet18,vgg11
        netfold suite run --datasets imagenet --networks resnet50,vgg16 --workers 4,8,16 --frameworks sequential,ring
        sudo netfold suite run --way replay --datasets mnist --networks resnet18 --frameworks ring,inagg+mcast
        netfold suite run --way train --datasets mnist --networks resnet18 --frameworks sequential,ring --workers 2 --batch 8
        netfold suite run --way train --hosts hostfile --frameworks sequential,ring --workers 2
        netfold suite run --way train --hosts hostfile --switch-at 10.0.0.9 --frameworks ring,inagg+mcast --workers 2
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from emulation.experiments.progress import RunProgress
    from emulation.experiments.runner import RunOptions, go_first
    from emulation.networks.realise import NetworkKind
    from emulation.suite import catalogue
    from emulation.suite.selection import Selection, Way
    from emulation.suite.suite_run import SuiteRun
    from emulation.suite.suite_tables import listed_cells, print_cells, print_results

    interrupt_on(signal.SIGTERM)
    real = real_hosts_of(hostfile, launcher, controller, switch_at, real_time)
    if hostfile is not None and way == "simulate":
        raise click.UsageError("--hosts needs --way replay or train")
    if (dilation or auto_dilate) and way != "replay":
        raise click.UsageError("--dilation and --auto-dilate need --way replay")
    if real_time and way == "simulate":
        raise click.UsageError("--real-time needs --way replay or train")
    require_dilation(dilation)
    selection = Selection(
        tuple(catalogue.DATASETS) if datasets is None else types.parts_of(datasets),
        catalogue.NETWORKS if networks is None else types.parts_of(networks),
        tuple(catalogue.frameworks()) if frameworks is None else types.parts_of(frameworks),
        tuple(types.N.convert(each, None, None) for each in types.parts_of(workers)),
        way=Way(way),
        data=types.parts_of(data),
        **selected,
    )
    kind = NetworkKind(how or ("loopback" if way == "train" else "netns"))
    options = RunOptions(
        output or Path("build") / f"suite-{way}",
        kind,
        dilation=dilation,
        auto_dilate=auto_dilate,
        only=only,
        real=real,
        predictor=predictor,
    )
    run = SuiteRun(selection, options)
    if only_list:
        if as_json:
            click.echo(json.dumps(listed_cells(run), indent=2))
        else:
            print_cells(run)
        return
    console = Console(stderr=True, highlight=False)
    for cell, why in run.left_out.items():
        console.print(f"left out: {cell}: {why}", soft_wrap=True)
    if way == "simulate":
        with PlainProgress("simulating", len(run.cells), len(run.cells) - len(run.left), console) as advance:
            rows = run.go(lambda event: advance())
    else:
        require_installed("torch", *(() if real is not None and not switch_at else CONTROLLER))
        if real_time:
            go_first()
        progress = RunProgress(console, predictor=predictor)
        with progress.of(run):
            rows = run.go(progress.report)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    print_results(rows)
    click.echo(f"results: {options.output}; `netfold suite report {options.output}` prints and draws them again")


@suite.command("report", cls=Command)
@click.argument("folder", type=types.ANY_FOLDER)
@click.option("--plot", type=types.ANY_FILE, help="Draw the speed-ups to this file (.svg, .png or .pdf).")
@json_option
def report_suite(folder: Path, plot: Path | None, as_json: bool) -> None:
    """Print a suite's results, and draw them.

    \b
    Examples
        netfold suite report build/suite-simulate
        netfold suite report build/suite-simulate --plot speedups.svg
    """
    from emulation.suite.suite_run import read_rows, read_suite
    from emulation.suite.suite_tables import draw, print_results

    require_drawable(plot)
    selection = read_suite(folder).selection
    rows = read_rows(folder)
    if plot is not None:
        draw(
            rows,
            f"The suite, {TIMES.get(str(selection.get('way')), '')}, hosts' links {selection.get('bandwidth')}",
            plot,
        )
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        print_results(rows)


@suite.command("compare", cls=Command)
@click.argument("folder", type=types.ANY_FOLDER)
@click.argument("predicted", metavar="PREDICTED...", nargs=-1, required=True, type=types.ANY_FOLDER)
@click.option("--frameworks", type=types.MECHANISM.listed(), help="Compare these only [default: all].")
@click.option("--plot", type=types.ANY_FILE, help="Draw the errors to this file (.svg, .png or .pdf).")
@click.option("--markdown", is_flag=True, help="Print tables in Markdown.")
@json_option
def compare_suites(
    folder: Path,
    predicted: tuple[Path, ...],
    frameworks: str | None,
    plot: Path | None,
    markdown: bool,
    as_json: bool,
) -> None:
    """Compare predictions with a suite's results: errors, and what would be recommended.

    FOLDER has the results that are taken as true: trained, replayed or simulated. PREDICTED are folders of other predictors; a
    cell's first prediction counts. The framework of the shortest predicted epoch is recommended; training on one worker is
    not among them.

    "Ways to recommend" are the predictors; a sequential epoch and a speed-up without communication; a few iterations of
    each framework; and the whole suite.

    \b
    Examples
        netfold suite compare build/suite-simulate build/suite-horovod build/suite-gpipe
        netfold suite compare build/suite-simulate build/suite-horovod --plot errors.svg
    """
    from emulation.suite.comparison_tables import as_json as described
    from emulation.suite.comparison_tables import as_markdown, draw_errors, print_comparison
    from emulation.suite.suite_comparison import compare

    if markdown and as_json:
        raise click.UsageError("--json and --markdown exclude each other")
    require_drawable(plot)
    found = compare(folder, predicted, types.parts_of(frameworks or ""))
    if plot is not None:
        draw_errors(found, plot)
    if as_json:
        click.echo(json.dumps(described(found), indent=2))
    elif markdown:
        click.echo(as_markdown(found), nl=False)
    else:
        print_comparison(found)


@suite.command("list", cls=Command)
@json_option
def list_suite(as_json: bool) -> None:
    """List the suite's data sets, networks and frameworks.

    \b
    Examples
        netfold suite list
        netfold suite list --json
    """
    from emulation.suite.suite_tables import catalogue_as_json, print_catalogue

    if as_json:
        click.echo(json.dumps(catalogue_as_json(), indent=2))
    else:
        print_catalogue()


PLACE = 3
COMMANDS = (suite,)
