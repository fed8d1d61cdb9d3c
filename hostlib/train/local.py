"""A training run on this machine: its ranks as processes, watched over."""

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
)  # an optimiser's first step loads torch's compiler


def launch(options: TrainOptions, report: Callable[[Event], None], forks: ForkServer | None = None) -> dict[str, Any]:
    """Run all ranks of a training run as processes on this machine; the result that rank 0 reports.

    Args:
        report: called with rank 0's events ({"event": "step", ...}) as they come.
        forks: whoever forks them, where several runs share one: fork_server(*TRAINING).

    Raises:
        RunError: a rank died; the others have been stopped.
        HostlibError: a rank failed with it, as MissingRankError; likewise.
        JoinError: the mechanism needs a controller and none answers.
    """
    world_size = options.world_size or 4
    options = replace(options, world_size=world_size)
    if (starter := find_transport(options.transport).STARTED_BY) is not None:
        raise RunError(
            f"--transport {options.transport} is for {starter}: {start_line(options.transport, world_size)} ..."
        )
    choice = choose(options.mechanism)
    if choice.needs_fabric:
        require_controller(options.controller)
    with nullcontext(forks) if forks is not None else fork_server(*TRAINING) as forks:
        text = options.to_json()
        return run_ranks(TRAIN, lambda rank: text, world_size, LocalHosts(), report, choice.servers, forks)
