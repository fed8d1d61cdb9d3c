"""Run training on this machine, with ranks as supervised processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from hostlib.errors import RunError
from hostlib.fabric.job_client import require_controller
from hostlib.launch.fork_server import ForkServer, fork_server
from hostlib.launch.hosts import LocalHosts
from hostlib.launch.launcher import BESIDES, Event, run_ranks
from hostlib.strategies.strategy import choose
from hostlib.train.options import TrainOptions
from hostlib.transport.transport_registry import find_transport, start_line

TRAIN = "hostlib.train.__main__"
PRELOAD = "hostlib.train.preload"
TRAINING = (
    *BESIDES,
    PRELOAD,
    TRAIN,
    "hostlib.train.loop",
    "torch._dynamo",
)  # the modules of torch's compiler, which an optimiser's first step imports


def launch(options: TrainOptions, report: Callable[[Event], None], forks: ForkServer | None = None) -> dict[str, Any]:
    """Run all ranks of a training run as processes on this machine; returns the result that rank 0 reports.

    Args:
        report: called with each of rank 0's events ({"event": "step", ...}).
        forks: a fork server shared by several runs, fork_server(*TRAINING); None for a new one.

    Raises:
        RunError: a rank died; the others have been stopped.
        HostlibError: a rank's own error, as MissingRankError; the others have been stopped.
        JoinError: the mechanism needs a controller, and none answers.
    """
    world_size = options.world_size or 4
    options = replace(options, world_size=world_size)
    if (starter := find_transport(options.transport).STARTED_BY) is not None:
        raise RunError(
            f"--transport {options.transport} needs {starter}: {start_line(options.transport, world_size)} ..."
        )
    choice = choose(options.mechanism)
    choice.require_workers(world_size)
    if choice.needs_fabric:
        require_controller(options.controller)
    with nullcontext(forks) if forks is not None else fork_server(*TRAINING) as forks:
        text = options.to_json()
        return run_ranks(TRAIN, lambda rank: text, world_size, LocalHosts(), report, choice.servers, forks)
