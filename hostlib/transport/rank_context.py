"""The context of a rank: what a collective needs to know and use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hostlib.errors import HostlibError, JoinError, RunError
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.transport.failure_detector import FailureDetector
from hostlib.transport.refusals import remember
from hostlib.transport.segment_length import SEGMENT_BYTES
from hostlib.transport.transport import MulticastTransport, ReduceScatterTransport, Transport, first_line
from hostlib.transport.waits import PATIENCE_S


@dataclass(frozen=True, slots=True)
class RankContext:
    """Identity, process groups and transports of a rank.

    Attributes:
        gloo: torch.distributed.ProcessGroupGloo over the same ranks, for the collective only: it is used by another
            thread than the caller's, and two threads would mix up the order of operations. None on a server.
        deadline_s: how long an operation may make no progress.
        another_gloo: makes one more group like `gloo`, for one more thread; all ranks must make equally many.
        nccl: makes torch.distributed.ProcessGroupNCCL over the same ranks.
        transport: carries schedules' messages between ranks and servers.
        servers: number of processes that serve beside the ranks.
        another_transport: makes a transport for a strategy's own messages, for one thread, between workers (numbered by
            rank) and the strategy's servers (numbered from world_size). All of them must make equally many. None
            without a strategy.
        another_multicast: likewise for workers only, through the switch, for strategies without servers; takes the
            controller's URL and this host's address. Raises JoinError.
        another_scatter: likewise an endpoint of reduce-scatters through the switch.
        slots: of each pool of sums that the ranks ask the controller for, a power of two; streams of chunks share
            twice as many.
        segment_bytes: of the messages between hosts; all have the same.
        patience_s: how long the switch may be silent, while every rank waits for it, before the ranks leave it.
        numbers: of this group's ranks among all ranks of the run, for messages; None if it is all of them.
        among: makes the context and the job name of a part of the ranks, given their numbers in ascending order; every
            rank calls it equally often. Returns None on a rank that is not one of them.
        admitted: called once a rank has its first place on a switch, or with the error that refused it; raises the same
            JoinError on all ranks if any was refused. None if each rank is on its own.
        in_script: whether a user's script sums, and not a command: hosts' mechanisms confirm before each sum that all
            ranks' tensors are alike, and failures of the switch are logged.
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
    another_scatter: Callable[[str, str], ReduceScatterTransport] | None = None
    slots: int = SLOTS_PER_POOL
    segment_bytes: int = SEGMENT_BYTES
    numbers: Sequence[int] | None = None
    patience_s: float = PATIENCE_S
    among: Callable[[Sequence[int]], tuple[RankContext, str] | None] | None = None
    admitted: Callable[[JoinError | None], None] | None = None
    in_script: bool = False

    def own_part(self, ranks: Sequence[int]) -> tuple[RankContext, str]:
        """The context and the job name of a part of the ranks that this rank is one of; see `among`."""
        assert self.among is not None, "this group forms parts"
        part = self.among(ranks)
        assert part is not None, "this rank is one of them"
        return part

    def number(self, rank: int) -> int:
        """A rank's number among all ranks of the run."""
        return rank if self.numbers is None else self.numbers[rank]

    def explain(self, since: float, error: Exception) -> HostlibError:
        """Explain a library's error, which only says that a connection broke, with the ranks that the heartbeats show
        missing.

        Args:
            since: when the operation began, as time.monotonic().
        """
        reason = first_line(error)
        explained = self.detector.explain(
            time.monotonic() - since, lambda: RunError(f"a message between ranks failed: {reason}")
        )
        remember(explained)
        return explained
