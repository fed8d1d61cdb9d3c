"""A rank that trains until it is killed: forked by the campaign of jobs that come and go (comings.py).

It prints its token once it has joined, then a line after each step.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
import torch

from hostlib.collectives.bootstrap import join_group
from hostlib.errors import RunError
from hostlib.fabric.aggregation import SwitchAggregation
from hostlib.launch.rank_main import Tell, run_part
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.rank_context import RankContext

DEADLINE_S = 4.0
TRAINS_S = 600.0  # who is not killed within this is forgotten


@dataclass(frozen=True, slots=True)
class Membership:
    """Which job a rank joins, and what it trains there."""

    controller: str
    job: str
    slots: int
    elements: int
    seed: int

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    run_part("python -m tests.chaos.comings", _part)


def _part(options: str, here: LaunchEnvironment, tell: Tell) -> dict[str, Any]:
    wanted = Membership(**json.loads(options))
    with join_group(here, "comings", DEADLINE_S, slots=wanted.slots) as (context, _):

        def by_hosts(tensor: torch.Tensor) -> None:
            context.gloo.allreduce([tensor]).wait()

        fabric = SwitchAggregation(context, wanted.controller, wanted.job, "127.0.0.1", by_hosts)
        try:
            click.echo(json.dumps({"token": fabric.session.token}))
            _train(fabric, context, wanted)
        finally:
            fabric.close()
    raise RunError(f"nobody has killed rank {here.rank} within {TRAINS_S:.0f} s")


def _train(fabric: SwitchAggregation, context: RankContext, wanted: Membership) -> None:
    weights = np.random.default_rng(wanted.seed).standard_normal(wanted.elements).astype(np.float32)
    give_up, step = time.monotonic() + TRAINS_S, 0
    while time.monotonic() < give_up:
        gradient = torch.from_numpy(np.tanh(weights * np.float32(context.rank + 1) + np.float32(step)))
        fabric.finish(fabric.begin(gradient, True))
        weights -= np.float32(0.1) * gradient.numpy()
        step += 1
        click.echo(json.dumps({"step": step}))
