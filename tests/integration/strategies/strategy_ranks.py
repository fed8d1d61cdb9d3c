"""One of the processes that train with one pair of strategy and mechanism after the other: hostlib.launch.launcher starts them.

The first WORKERS are workers; of the others, servers, each pair takes as many as it needs. Rank 0 tells what came of each
pair: {"event": "pair", "pair": name, "weights_sha256": [...]}; its weights are in a file.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from hostlib.launch.launcher import OPTIONS_VARIABLE
from hostlib.strategies.strategy import choose
from hostlib.train.loop import train
from hostlib.train.options import TrainOptions
from hostlib.transport.launch_environment import LaunchEnvironment

WORKERS, STEPS, BATCH_SIZE = 4, 20, 4
MODEL, SEED, LR, BUCKET_MB = "tests.integration.strategies.strategy_ranks:network", 1, 0.1, 0.01
PATIENCE = timedelta(seconds=600)  # of servers, too, which most pairs do not need


def network() -> nn.Module:
    """A convolution and two fully connected layers for the digits, 4,850 parameters: skewed, and of several buckets. Smooth,
    so that what rounding does to weights is about as large as rounding.
    """
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 10),
    )


@dataclass(frozen=True, slots=True)
class PairOptions:
    """What every process is told.

    Attributes:
        folder: where the weights go, a file for each pair.
        controller: URL.
    """

    pairs: list[str]
    folder: str
    controller: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def file_name(pair: str) -> str:
    return pair.replace("/", ",") + ".pt"


def options(pair: str, common: PairOptions) -> TrainOptions:
    """Of a pair's training run."""
    return TrainOptions(
        mechanism=pair,
        model=MODEL,
        world_size=WORKERS,
        batch_size=BATCH_SIZE,
        lr=LR,
        seed=SEED,
        bucket_mb=BUCKET_MB,
        controller=common.controller,
        deadline_s=20.0,
        steps=STEPS,
        save=str(Path(common.folder) / file_name(pair)),
    )


def play(asked: TrainOptions, here: LaunchEnvironment, store: dist.Store, number: int) -> dict[str, Any]:
    """This process's part in a pair; what came of it, empty where it is no worker's."""
    processes = WORKERS + choose(asked.mechanism).servers
    if here.rank >= processes:
        return {}
    # A store for each: signs of life of several groups do not mix.
    own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if here.rank == 0 else None
    if own is not None:
        store.set(f"port/{number}", str(own.port))
    port = int(store.get(f"port/{number}"))
    result = train(asked, LaunchEnvironment(here.rank, processes, "127.0.0.1", port), lambda event: None)
    store.set(f"done/{number}/{here.rank}", "")
    store.wait([f"done/{number}/{rank}" for rank in range(processes)], PATIENCE)
    if here.rank < WORKERS:
        dist.destroy_process_group()
    return result


def main() -> None:
    here = LaunchEnvironment.from_environment()
    common = PairOptions(**json.loads(os.environ[OPTIONS_VARIABLE]))
    store = dist.TCPStore(here.host, here.port, is_master=False, timeout=PATIENCE, wait_for_workers=False)

    def tell(event: dict[str, Any]) -> None:
        if here.rank == 0:
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()

    for number, pair in enumerate(common.pairs):
        result = play(options(pair, common), here, store, number)
        tell({"event": "pair", "pair": pair, "weights_sha256": result.get("weights_sha256")})
    tell({"event": "result", "result": {}})
    os._exit(0)


if __name__ == "__main__":
    main()
