"""Sum on one host in shared memory: ranks write their values, and each rank adds a share of them, in rank order.

hostlib/native/shared_memory/ has the sums; host_memory.py the memory, and how a rank that is gone is noticed.

Source: "Involving CPUs into Multi-GPU Deep Learning", section 3.1 (accumulation on the host is done in parallel).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hostlib.collectives.host_memory import HostMeetings, find_hosts, share_memory
from hostlib.collectives.request_thread import RequestThread
from hostlib.errors import HostlibError, RunError
from hostlib.staging.completion_threads import CompletionThreads
from hostlib.staging.request import ReduceRequest
from hostlib.transport.rank_context import RankContext

CLOSE_S = 2.0


class SharedMemoryCollective:
    """Sums the tensors of one host's ranks in shared memory. float16 and bfloat16 are added as float32.

    Raises:
        HostlibError: the ranks are not on one host, or it has no such memory.
    """

    tensor_cut = None

    def __init__(self, context: RankContext, job: str) -> None:
        self._context = context
        hosts = find_hosts(context)
        if len(hosts.ranks) > 1:
            raise RunError(
                f"shm is for ranks of one host (and one network namespace), but rank {hosts.leaders[1]} is not on that "
                "of rank 0; legal are the mechanisms that send messages, such as inagg+mcast:same_host=shm: see "
                "`hostlib mechanisms`"
            )
        memory = share_memory(context, hosts, HostMeetings.bytes_for(context.world_size))
        self._meetings = HostMeetings(context, hosts, memory)
        self._sums = self._meetings.sums
        self._adding = RequestThread("shm", context.world_size, self._add)
        self.completing = CompletionThreads(job)
        self._broken: Exception | None = None
        self.failures: list[dict[str, Any]] = []

    def allreduce(
        self, tensor: Tensor, average: bool, future: torch.futures.Future[Tensor] | None = None
    ) -> torch.futures.Future[Tensor]:
        return self._adding.allreduce(tensor, average, future)

    @property
    def accumulation_ns(self) -> int:
        """Total time from values to sums."""
        return self._sums.summing_ns

    @property
    def broadcast_ns(self) -> int:
        """Total time from sums back to tensors."""
        return self._sums.reading_ns

    def _add(self, request: ReduceRequest, since: float) -> None:
        try:
            if self._broken is None:
                self._sums.begin(request.values.view(-1), request.average)
                self._meetings.finish()
                request.deliver()
        except Exception as error:
            self._broken = error if isinstance(error, HostlibError) else self._context.explain(since, error)
            self._sums.leave()
        self.completing.put(partial(request.end, self._broken))

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        self._adding.close(self._context.deadline_s if graceful else CLOSE_S)
        self._sums.leave()
        self.completing.close(CLOSE_S)
