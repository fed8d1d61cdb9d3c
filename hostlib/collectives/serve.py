"""Run a server of a mechanism."""

from __future__ import annotations

import queue
import threading
from contextlib import closing, nullcontext

from hostlib.collectives.channels import channels, join_multicast
from hostlib.collectives.mechanism_executor import MechanismExecutor
from hostlib.fabric.aggregation_server import FabricServer
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import MulticastTransport


def serve(mechanism: Mechanism, context: RankContext, controller: str, job: str, address: str, lanes: int = 1) -> None:
    """Serve until all workers have closed their collectives.

    Args:
        controller, job, address, lanes: as for the workers' collectives; for traffic through the switch.

    Raises:
        JoinError: see hostlib.fabric.job_client.
        RunError, RuntimeError: a message did not come through.
    """
    multicast = join_multicast(mechanism, context, controller, job, address)
    if multicast is not None:
        with closing(multicast):
            _serve_channels(mechanism, context, multicast)
        return
    use = mechanism.fabric_use
    with nullcontext() if use is None else closing(FabricServer(use, context, controller, job, address, lanes)):
        _serve_channels(mechanism, context)


def _serve_channels(mechanism: Mechanism, context: RankContext, multicast: MulticastTransport | None = None) -> None:
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def run(runtime: MechanismExecutor) -> None:
        try:
            runtime.serve()
            ended.put(None)
        except Exception as error:
            ended.put(error)

    runtimes = channels(mechanism, context, multicast=multicast)
    threads = [threading.Thread(target=run, args=[runtime], daemon=True) for runtime in runtimes]
    for thread in threads:
        thread.start()
    for _ in threads:
        # After a failure, the other executors may wait for messages that never come.
        if (error := ended.get()) is not None:
            raise error
