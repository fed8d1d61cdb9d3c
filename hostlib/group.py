"""This rank among the others: what a collective needs of its surroundings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostlib.errors import HostlibError, RunError
from hostlib.liveness import Liveness
from hostlib.peers import GlooPeers, Peers, gloo_reason

if TYPE_CHECKING:
    from hostlib.multicast import SwitchMulticast


@dataclass(frozen=True, slots=True)
class Group:
    """This rank among the others.

    Attributes:
        gloo: torch.distributed.ProcessGroupGloo over the same ranks, the collective's alone: it is used by another
            thread than the caller's, and two threads would mix up the order of operations.
        deadline_s: how long an operation may make no progress.
        another_gloo: makes one more like `gloo`, for one more thread; every rank must make as many.
        nccl: makes torch.distributed.ProcessGroupNCCL over the same ranks.
        hosts: what schedules' messages between ranks, and servers, go by; None for `gloo`.
        another_peers: makes a strategy's own messages, for one thread, between workers, numbered by rank, and the
            strategy's servers, numbered from world_size; every one of these must make as many. None where no strategy is.
        another_multicast: likewise, of workers alone, through the switch, for strategies without servers: given the
            controller's URL and this host's address. Raises JoinError.
    """

    rank: int
    world_size: int
    gloo: Any
    liveness: Liveness
    deadline_s: float
    another_gloo: Callable[[], Any]
    nccl: Callable[[], Any]
    hosts: Peers | None = None
    another_peers: Callable[[], Peers] | None = None
    another_multicast: Callable[[str, str], SwitchMulticast] | None = None

    @property
    def peers(self) -> Peers:
        return self.hosts or GlooPeers(self.gloo)

    def explain(self, since: float, wrong: Exception) -> HostlibError:
        """Libraries say only that a connection broke; who is missing, the signs of life tell.

        Args:
            since: when it was begun, as time.monotonic() has it.
        """
        reason = gloo_reason(wrong)
        return self.liveness.explain(
            time.monotonic() - since, lambda: RunError(f"a message between ranks failed: {reason}")
        )
