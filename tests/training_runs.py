"""Training runs where the command line is not what is tested: `hostlib train`'s options, launched from this process.

The ranks of all of them are forked from one process that has loaded torch: that takes milliseconds instead of seconds.
"""

from __future__ import annotations

import atexit
import functools
from contextlib import ExitStack
from typing import Any

from hostlib.commands.train import train
from hostlib.launch.fork_server import ForkServer, fork_server
from hostlib.train.local import TRAINING, launch
from hostlib.train.options import TrainOptions
from tests.conftest import ROOT


@functools.cache
def forks() -> ForkServer:
    """This process's fork server, which ends with it."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(fork_server(*TRAINING, folder=ROOT))


def trained(*words: str) -> dict[str, Any]:
    """The result of a run with these words behind `hostlib train`.

    Raises:
        RunError: it failed.
    """
    options = train.make_context("train", [*words]).params
    for of_the_command in ("result", "as_json", "progress"):
        assert not options.pop(of_the_command), f"{of_the_command} is for the command itself"
    return launch(TrainOptions(**options), lambda event: None, forks())
