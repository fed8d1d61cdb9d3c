"""Sum on two levels: the ranks of each host in shared memory, then one rank of each host by a mechanism.

So one sum per host leaves it, however many ranks it has. Tensors go in pieces: while the hosts sum one, the ranks of a
host add the next, and read the one before.

Source: "Involving CPUs into Multi-GPU Deep Learning", section 3.1, for the level within a host.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hostlib.collectives.collective import Collective
from hostlib.collectives.host_memory import LOOKS_UP_S, HostMeetings, Hosts, share_memory
from hostlib.collectives.request_thread import RequestThread
from hostlib.errors import HostlibError, RunError, from_json
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.staging.completion_threads import CompletionThreads
from hostlib.staging.request import ReduceRequest
from hostlib.system.serial_executor import SerialExecutor
from hostlib.transport.rank_context import RankContext
from hostlib.transport.refusals import quoted

CLOSE_S = 2.0
PIECE_BYTES = 4 << 20  # of a tensor, which the hosts sum at a time

Future = torch.futures.Future[Tensor]
CreateCollective = Callable[[RankContext, str], Collective]


class HostLevelsCollective:
    """Sums tensors over the ranks of several hosts. A host's leader, its first rank, stands for it among the hosts.

    float16 and bfloat16 are added as float32. Within a host int32 wraps, as torch's sums do.

    Args:
        hosts: of which one has several ranks.
        create: makes the collective between hosts, given the leaders' context and the job.

    Raises:
        HostlibError: a host has no such memory, or `create` raises it.
    """

    tensor_cut = None

    def __init__(
        self, mechanism: Mechanism, context: RankContext, hosts: Hosts, job: str, create: CreateCollective
    ) -> None:
        self._context, self.hosts = context, hosts
        size = HostMeetings.bytes_for(context.world_size)  # which is mapped, and used as far as the host has ranks
        self._broken: Exception | None = None
        self._summing, self._spreading = (
            HostMeetings(context, hosts, share_memory(context, hosts, size), lambda: self._broken) for _ in range(2)
        )
        self._between = self._leaders_collective(mechanism, hosts, create)
        # Each rank does the same in the same order, on both levels.
        self._adding = RequestThread("host sums", context.world_size, self._add)
        self._giving = SerialExecutor("sums of hosts")
        self.completing = CompletionThreads(job)

    def _leaders_collective(self, mechanism: Mechanism, hosts: Hosts, create: CreateCollective) -> Collective | None:
        context = self._context
        if context.among is None:
            raise RunError(f"{mechanism.name}: the ranks of this group cannot form another one, of one rank per host")
        part = context.among(hosts.leaders)
        if part is None:
            if context.admitted is not None and mechanism.needs_fabric:
                context.admitted(None)  # This rank needs no place; whether its leader has one, all learn together.
            return None
        leaders, job = part
        return create(replace(leaders, admitted=context.admitted, in_script=context.in_script), job)

    def allreduce(self, tensor: Tensor, average: bool, future: Future | None = None) -> Future:
        return self._adding.allreduce(tensor, average, future)

    def _add(self, request: ReduceRequest, since: float) -> None:
        """Sum a tensor's pieces within the host, and have the leader pass each on to the other hosts."""
        flat, average = request.values.view(-1), request.average
        pieces = flat.split(PIECE_BYTES // flat.element_size()) if flat.numel() else (flat,)
        ended = _Ended()
        for piece in pieces:
            self._attempt(since, partial(self._add_piece, piece))
            sent = self._between.allreduce(piece, False) if self._between is not None and self._broken is None else None
            self._giving.put(partial(self._attempt, since, partial(self._give, piece, average, sent, since, ended)))
        self._giving.put(partial(self._end, request, ended))

    def _add_piece(self, piece: Tensor) -> None:
        self._summing.sums.begin_reduce(piece)
        self._summing.finish()

    def _give(self, piece: Tensor, average: bool, sent: Future | None, since: float, ended: _Ended) -> None:
        """Pass the hosts' sum of a piece on to the ranks of this host, or the error that all of them raise."""
        error: Exception | None = None
        if sent is not None:
            try:
                self._wait_for(sent)
                if average:
                    piece.div_(self._context.world_size)
            except (HostlibError, OverflowError) as raised:
                error = raised
            except Exception as raised:
                error = quoted(str(raised)) or self._context.explain(since, raised)
        sums, record = self._spreading.sums, b"" if error is None else _recorded(error)
        sums.begin_broadcast(piece, len(record))
        self._spreading.finish()
        if sums.note == 0:
            return
        words = torch.zeros(-(-sums.note // 4), dtype=torch.int32)
        length, text = sums.note, words.numpy().view(np.uint8)
        text[: len(record)] = np.frombuffer(record, np.uint8)
        sums.begin_broadcast(words)
        self._spreading.finish()
        error = _of_record(text[:length].tobytes())
        if isinstance(error, OverflowError):
            ended.refused = error
        else:
            self._broken = error  # As on this host's other ranks, which wait for nobody then.

    def _wait_for(self, sent: Future) -> None:
        """Wait for the hosts' sum, and tell this host's ranks meanwhile that it is waited for."""
        done = threading.Event()
        sent.add_done_callback(lambda _: done.set())
        while not done.wait(LOOKS_UP_S):
            self._spreading.sums.beat()
        sent.wait()

    def _end(self, request: ReduceRequest, ended: _Ended) -> None:
        error = self._broken or ended.refused
        if error is None:
            try:
                request.deliver()
            except Exception as raised:
                error = raised
        self.completing.put(partial(request.end, error))

    def _attempt(self, since: float, do: Callable[[], None]) -> None:
        """Do a step of a tensor, unless an earlier one has failed; a failure ends this rank's part for good."""
        if self._broken is not None:
            return
        try:
            do()
        except Exception as error:
            self._broken = error if isinstance(error, HostlibError) else self._context.explain(since, error)
            for meetings in (self._summing, self._spreading):
                meetings.sums.leave()

    def stats(self) -> dict[str, int] | None:
        return None if self._between is None else self._between.stats()

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the fabric that this host's leader has found."""
        return [] if self._between is None else self._between.failures

    def close(self, graceful: bool = True) -> None:
        patience_s = self._context.deadline_s if graceful else CLOSE_S
        if self._between is not None and not graceful:
            self._between.close(False)
        for thread in (self._adding, self._giving):
            thread.close(patience_s)
        for meetings in (self._summing, self._spreading):
            meetings.sums.leave()
        if self._between is not None and graceful:
            self._between.close(self._broken is None)
        self.completing.close(CLOSE_S)


@dataclass(slots=True)
class _Ended:
    """What a tensor's pieces came to.

    Attributes:
        refused: why all ranks refuse it alike, and go on.
    """

    refused: OverflowError | None = None


def _recorded(error: Exception) -> bytes:
    record = error.as_json() if isinstance(error, HostlibError) else {"overflow": str(error)}
    return json.dumps(record).encode()


def _of_record(text: bytes) -> Exception:
    record = json.loads(text)
    return OverflowError(record["overflow"]) if "overflow" in record else from_json(record)
