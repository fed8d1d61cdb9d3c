"""`emulation run`: an experiment with real packets."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import click
from rich.console import Console

from emulation.commands.run_options import real_hosts_of, require_dilation, run_options
from hostlib.system.command import Command, json_option
from hostlib.system.extras import CONTROLLER, require_installed
from hostlib.system.interrupts import interrupt_on
from hostlib.text import option_types as types


@click.command("run", cls=Command)
@click.argument("experiment", required=False)
@click.option("--output", type=types.FOLDER, help="Folder for the results [default: build/EXPERIMENT; a folder's own].")
@click.option("--only", type=types.TEXT, default="", help="Run only cells with this in their name.")
@click.option(
    "--on",
    "how",
    type=click.Choice(["loopback", "netns", "mininet"]),
    default="netns",
    show_default=True,
    help="Where hosts are: processes on loopback, a network namespace each, or Mininet's nodes.",
)
@click.option(
    "--switch",
    type=click.Choice(["embedded", "bmv2", "tofino-model"]),
    default="embedded",
    show_default=True,
    help="Switch that runs the P4 program.",
)
@click.option(
    "--miniature",
    is_flag=True,
    help="Try every cell once with tiny tensors; the times mean nothing.",
)
@run_options
@click.option("--list", "only_list", is_flag=True, help="List what would be run, or the ready experiments.")
@json_option
def run_experiment(
    experiment: str | None,
    output: Path | None,
    only: str,
    how: str,
    switch: str,
    dilation: float | None,
    auto_dilate: bool,
    miniature: bool,
    hostfile: Path | None,
    launcher: str,
    controller: str,
    switch_at: str,
    predictor: str,
    real_time: bool,
    only_list: bool,
    as_json: bool,
) -> None:
    """Run every cell of an experiment with real packets.

    EXPERIMENT is a file, the name of a ready experiment, or a folder of files (`emulation sample` writes one), whose
    cells are compared together. Results go to a folder. Run again, the experiment continues where it was interrupted.

    \b
    Examples
        emulation run --list
        emulation run fabric-vs-host
        emulation run fabric-vs-host --miniature
        emulation run fabric-vs-host --only vgg16 --switch bmv2 --output build/on-bmv2
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # that a namespace's addresses have no names
    from emulation.experiments.experiment_folder import FolderRun, comparison, read_folder
    from emulation.experiments.progress import (
        RunProgress,
        listed_cells,
        print_cells,
        print_comparison,
        print_ready,
        print_rows,
    )
    from emulation.experiments.regret import regret_sentence
    from emulation.experiments.runner import ExperimentRun, RunOptions, find_experiment, go_first, ready_experiments
    from emulation.networks.realise import NetworkKind, SwitchKind
    from simulation.experiments.experiment_file import read_experiment

    interrupt_on(signal.SIGTERM)
    if experiment is None:
        if not only_list:
            raise click.UsageError(f"name an experiment: a file, or one of {', '.join(ready_experiments())}")
        ready = {name: read_experiment(path) for name, path in ready_experiments().items()}
        if as_json:
            described = [{"name": n, "cells": len(e.cells), "title": e.title} for n, e in ready.items()]
            click.echo(json.dumps(described, indent=2))
        else:
            print_ready(ready)
        return
    folder = Path(experiment) if experiment not in ready_experiments() and Path(experiment).is_dir() else None
    chosen = [read_experiment(find_experiment(experiment))] if folder is None else read_folder(folder)
    require_dilation(dilation)
    if miniature:
        if dilation or auto_dilate:
            raise click.UsageError("--miniature has a pace of its own: leave out --dilation and --auto-dilate")
        chosen = [each.miniature() for each in chosen]
    real = real_hosts_of(hostfile, launcher, controller, switch_at, real_time)
    output = output or folder or Path("build") / chosen[0].folder
    options = RunOptions(output, NetworkKind(how), SwitchKind(switch), dilation, auto_dilate, only, real, predictor)
    progress = RunProgress(Console(stderr=True, highlight=False), times=not miniature, predictor=predictor)
    run: ExperimentRun | FolderRun
    if folder is None:
        run = ExperimentRun(chosen[0], options, progress.report)
    else:
        run = FolderRun(chosen, options, progress.report)
    if only_list:
        if as_json:
            click.echo(json.dumps(listed_cells(run), indent=2))
        else:
            print_cells(run)
        return
    require_installed("torch", *(() if real is not None and not switch_at else CONTROLLER))
    if real_time:
        go_first()
    with progress.of(run):
        rows = run.go()
    found = run.regrets if isinstance(run, FolderRun) else []
    if as_json:
        click.echo(json.dumps(rows if folder is None else comparison(rows, found), indent=2))
        return
    if miniature:
        click.echo(f"{len(rows)} cells ran to their end; in miniature: their times mean nothing")
        return
    if folder is None:
        print_rows(chosen[0], rows, predictor)
    else:
        print_comparison(rows, predictor)
        if found:
            click.echo(regret_sentence(found))
    if real is None and any(row["enough_dilation"] is not None for row in rows):
        click.echo("cells that are not valid: the same command with --auto-dilate measures them again, more slowly")
    if folder is None:
        click.echo(f"results: {output}; `emulation report {output}` makes a page of them")
    else:
        click.echo(f"results: in folders of {output}; `emulation report` makes a page of each")


PLACE = 10
COMMANDS = (run_experiment,)
