"""A worker of a cell with real training: `hostlib train`'s loop, whose steps are the experiment's iterations.

Needs torch; started like emulation/experiments/replay_worker.py.
"""

from __future__ import annotations

import os
import resource
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from emulation.experiments.packet_counts import PacketCounts
from emulation.experiments.replay_worker import Barrier, WorkerReport, leave
from emulation.experiments.worker_options import DONE, MEASURED, WARM_UP, TrainingOptions
from hostlib.errors import RunError
from hostlib.launch.launcher import OPTIONS_VARIABLE
from hostlib.strategies.strategy import choose
from hostlib.train.loop import train
from hostlib.train.options import TrainOptions
from hostlib.transport.launch_environment import LaunchEnvironment


def train_measured(training: TrainingOptions, here: LaunchEnvironment) -> WorkerReport | None:
    """Run a worker, which returns its report, or a server, which returns None.

    Raises:
        HostlibError: a rank or the fabric is missing, or ranks ended with different weights.
    """
    options = TrainOptions(**training.train)
    workers = here.world_size - choose(options.mechanism).servers
    if here.rank >= workers:
        train(options, here, lambda event: None)
        return None
    patience = timedelta(seconds=options.deadline_s)
    store = dist.TCPStore(here.host, here.port, is_master=False, timeout=patience, wait_for_workers=False)
    barrier = Barrier(store, here.rank, None if training.result else workers)
    report = WorkerReport(here.rank)
    begun = done = PacketCounts()

    def saw(event: dict[str, Any]) -> None:
        nonlocal begun, done
        if event["event"] == "step" and event["step"] == training.warm_up:
            begun = PacketCounts.of(None, here.port)
            report.start_ns = barrier.at(MEASURED)
        elif event["event"] == "step" and event["step"] > training.warm_up:
            report.ends_ns.append(time.monotonic_ns())
            done = PacketCounts.of(None, here.port)

    barrier.at(WARM_UP)
    result = train(options, here, saw)
    report.peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # An engine's counters are of the whole run, warm-up included.
    engine = report.engine = result["engine"][here.rank]
    multicasts = choose(options.mechanism).multicasts
    packets = done - begun if engine is None else PacketCounts.of(engine, here.port)
    report.packets, report.retransmits = packets.busier(multicasts), packets.again
    report.marked = (done - begun).marked
    barrier.at(DONE)
    if len(set(result["weights_sha256"])) != 1:
        raise RunError("ranks ended with different weights")
    return report


def main() -> None:
    """Run in a process forked by the fork_server, or under torchrun."""
    here = LaunchEnvironment.from_environment()
    options = TrainingOptions.from_json(os.environ.pop(OPTIONS_VARIABLE))
    leave(here, options.result, lambda: train_measured(options, here))


if __name__ == "__main__":
    main()
