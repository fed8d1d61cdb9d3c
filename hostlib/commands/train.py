"""`hostlib train`: a training run on this machine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hostlib.errors import RunError
from hostlib.system.command import Command
from hostlib.system.interrupts import interrupt_on
from hostlib.train.command_line import (
    RENAMED,
    RESPELLED,
    print_result,
    train_options,
    write_result,
)
from hostlib.train.options import TrainOptions
from hostlib.train.progress import TrainingProgress


@click.command(cls=Command, renamed=RENAMED, respelled=RESPELLED)
@train_options
@click.option("--progress/--no-progress", default=None, help="Show progress on standard error [default: show it].")
def train(result: Path | None, as_json: bool, progress: bool | None, **options: Any) -> None:
    """Train a model with several workers on this machine.

    \b
    Examples
        hostlib train --mechanism ring
        hostlib train --mechanism ring --model cifar10_quick --data cifar10:/data/cifar --iterations 200
        controller start && hostlib train --mechanism inagg+mcast --model vgg --workers 8
    """
    from hostlib.train.local import launch

    interrupt_on(signal.SIGTERM)
    for file in (result, options["save"]):
        if file is not None and not os.access(Path(file).absolute().parent, os.W_OK):
            raise RunError(f"cannot write {file}: its folder does not exist or is not writable")
    asked = TrainOptions(**options)
    if asked.profile is not None:
        Path(asked.profile).mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    with TrainingProgress(console, options["mechanism"], progress is not False) as report:
        done = launch(asked, report)
    write_result(result, done)
    if as_json:
        click.echo(json.dumps(done, indent=2))
    else:
        print_result(done)


PLACE = 10
COMMANDS = (train,)
