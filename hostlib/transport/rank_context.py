"""This rank among the others: what a collective needs of its surroundings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hostlib.errors import HostlibError, RunError
from hostlib.transport.failure_detector import FailureDetector
from hostlib.transport.refusals import remember
from hostlib.transport.transport import MulticastTransport, Transport, first_line


@dataclass(frozen=True, slots=True)
class RankContext:
    """This rank among the others.

    Attributes:
        gloo: torch.distributed.ProcessGroupGloo over the same ranks, the collective's alone: it is used by another
            thread than the caller's, and two threads would mix up the order of operations. None on a server.
        deadline_s: how long an operation may make no progress.
        another_gloo: makes one more like `gloo`, for one more thread; every rank must make as many.
        nccl: makes torch.distributed.ProcessGroupNCCL over the same ranks.
        transport: what schedules' messages between ranks, and servers, go by.
        servers: how many processes serve beside the ranks.
        another_transport: makes a strategy's own messages, for one thread, between workers, numbered by rank, and the
            strategy's servers, numbered from world_size; every one of these must make as many. None where no strategy is.
        another_multicast: likewise, of workers alone, through the switch, for strategies without servers: of the
            controller's URL and this host's address. Raises JoinError.
    """

    rank: int
    world_size: int
    gloo: Any
    detector: FailureDetector
    deadline_s: float
    another_gloo: Callable[[], Any]
    nccl: Callable[[], Any]
    transport: Transport
    servers: int = 0
    another_transport: Callable[[], Transport] | None = None
    another_multicast: Callable[[str, str], MulticastTransport] | None = None

    def explain(self, since: float, error: Exception) -> HostlibError:
        """Libraries say only that a connection broke; who is missing, the heartbeats tell.

        Args:
            since: when it was begun, as time.monotonic() has it.
        """
        reason = first_line(error)
        explained = self.detector.explain(
            time.monotonic() - since, lambda: RunError(f"a message between ranks failed: {reason}")
        )
        remember(explained)
        return explained
