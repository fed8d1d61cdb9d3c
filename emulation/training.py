"""One worker of a cell that is trained in earnest: `hostlib train`'s loop, whose steps are an experiment's iterations.

Torch-facing; started as emulation/replay.py is.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from emulation.orders import DONE, MEASURED, WARM_UP, TrainingOptions
from emulation.replay import Meeting, Report, leave
from hostlib.errors import RunError
from hostlib.launch import OPTIONS_VARIABLE
from hostlib.options import TrainOptions
from hostlib.rank import Surroundings
from hostlib.strategy import choose
from hostlib.train import train


def train_measured(told: TrainingOptions, here: Surroundings) -> Report | None:
    """A worker's report, or a server's None.

    Raises:
        HostlibError: a rank or the fabric is missing, or ranks ended with different weights.
    """
    options = TrainOptions(**told.train)
    workers = here.world_size - choose(options.mechanism).servers
    if here.rank >= workers:
        train(options, here, lambda event: None)
        return None
    patience = timedelta(seconds=options.deadline_s)
    store = dist.TCPStore(here.host, here.port, is_master=False, timeout=patience, wait_for_workers=False)
    meeting = Meeting(store, here.rank, None if told.result else workers)
    report = Report(here.rank)

    def saw(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == told.warm_up:
            report.start_ns = meeting.at(MEASURED)
        elif event["event"] == "step" and event["step"] > told.warm_up:
            report.ends_ns.append(time.monotonic_ns())

    meeting.at(WARM_UP)
    result = train(options, here, saw)
    meeting.at(DONE)
    if len(set(result["weights_sha256"])) != 1:
        raise RunError("ranks ended with different weights")
    return report


def main() -> None:
    """In a process that the zygote forked, or under torchrun."""
    here = Surroundings.from_environment()
    told = TrainingOptions.from_json(os.environ[OPTIONS_VARIABLE])
    leave(here, told.result, lambda: train_measured(told, here))


if __name__ == "__main__":
    main()
