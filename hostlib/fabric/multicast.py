"""Multicast a host's data through the switch to all other hosts: the packet engine's streams in a controller's job.

Nothing is summed or quantised, so tensors of any type arrive bit for bit. A stream has one source; a job has a stream
for each channel of its server, or one for each worker. If the switch fails, sources send to every receiver what it
lacks, and what follows, as ordinary messages with the same bits. Once all hosts have joined a new job on the fabric, they
return to it together: each stream from a message on that none of them has begun. Source: docs/failures.md.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hostlib._engine import Cancelled, Multicaster
from hostlib.errors import HostlibError, JoinError, RunError
from hostlib.fabric import engine_checks
from hostlib.fabric.common_return import CommonReturn
from hostlib.fabric.failover import (
    LOOK_S,
    Failure,
    Patience,
    Returning,
    announce_failure,
    failures_seen,
    wait_until_all_have,
    warn_once,
    with_goodput,
)
from hostlib.fabric.job_client import FabricSession, Place, Rejoin, join, require_controller
from hostlib.fabric.socket_errors import socket_errors
from hostlib.protocol.slots import SLOTS_PER_POOL, slots_of_stream
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import Pending, settle

AHEAD = 8  # messages past the switch that a source sends before it waits for the first of them
FIRST_TAG = 1 << 24  # tag of messages past the switch; those of schedules have lower tags


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of a job.

    Attributes:
        sources: of each stream, by number: hosts, numbered as peers are.
        pool: slots of a pool of sums; see slots_of_stream.
    """

    world_size: int
    sources: tuple[int, ...]
    pool: int = SLOTS_PER_POOL

    @classmethod
    def of_server(cls, world_size: int, channels: int, pool: int = SLOTS_PER_POOL) -> Streams:
        """Streams of the first server, one for each channel."""
        return cls(world_size, (world_size,) * channels, pool)

    @classmethod
    def of_workers(cls, world_size: int, pool: int = SLOTS_PER_POOL) -> Streams:
        """Streams of the workers, one for each."""
        return cls(world_size, tuple(range(world_size)), pool)

    @property
    def policy(self) -> str:
        """The controller's policy (docs/topology.md)."""
        return "chunk" if self.sources[0] == self.world_size else "peers"

    @property
    def slots(self) -> int:
        """Slots of each stream, a power of two."""
        return slots_of_stream(len(self.sources), self.pool)

    def receivers(self, stream: int) -> list[int]:
        """The ranks that receive a stream."""
        return [rank for rank in range(self.world_size) if rank != self.sources[stream]]


@dataclass(slots=True)
class StreamMessage:
    """A message of a stream, from or to this host.

    Attributes:
        number: in its stream, from 0.
        end: position in the job's stream after its last chunk; of no meaning for a message past the switch.
        ticket: the engine's; None for a message past the switch.
        past: the transport's message, if it goes past the switch.
    """

    number: int
    values: Tensor
    end: int = 0
    ticket: int | None = None
    past: Pending | None = None


@dataclass(slots=True)
class StreamState:
    """State of one stream.

    Attributes:
        count: messages so far.
        first: number of the first message that goes through the switch, in the present job.
        end: chunks so far in the present job.
        messages: through the switch; at the source: those that some receiver may lack; at a receiver: those that it
            lacks.
        leaving: the latest messages past the switch, one for each receiver.
    """

    source: int
    count: int = 0
    first: int = 0
    end: int = 0
    messages: deque[StreamMessage] = field(default_factory=deque)
    leaving: deque[list[Pending]] = field(default_factory=deque)

    def begin(self, values: Tensor) -> StreamMessage:
        message = StreamMessage(self.count, values)
        self.count += 1
        return message

    def put(self, message: StreamMessage, chunk_bytes: int) -> None:
        """Note a message that goes through the switch."""
        self.end += -(-message.values.nbytes // chunk_bytes)
        message.end = self.end
        self.messages.append(message)

    def restart(self, first: int) -> None:
        """Start in a new job with message number `first`."""
        self.first, self.end = first, 0


class EmptyMessage:
    """A message without values, complete at once."""

    def wait(self) -> None:
        """Return at once."""


@dataclass(frozen=True, slots=True)
class Coming:
    """The handle that `receive` returns."""

    multicast: SwitchMulticast
    stream: int
    message: StreamMessage

    def wait(self) -> None:
        """See SwitchMulticast._wait."""
        self.multicast._wait(self.stream, self.message)


class SwitchMulticast:
    """This host's end of a job's streams. Messages of a stream arrive in the order in which they are sent.

    Attributes:
        failures: one record for each failure of the switch.

    Raises:
        JoinError: see hostlib.fabric.job_client.
    """

    def __init__(
        self,
        context: RankContext,
        controller: str,
        job: str,
        address: str,
        streams: Streams,
    ) -> None:
        self._context, self._streams, self._patience = context, streams, Patience(context.patience_s)
        with socket_errors():
            self._multicaster = Multicaster(address)
        self._lines = [StreamState(source) for source in streams.sources]
        self._lock = threading.Condition()  # notified when hosts return, or give up
        self._sent = self._completed = 0
        self._stalled_s = 0.0
        self._by_hosts = False
        self._found = 0  # failures that this host has found
        self._ended, self._cancelled = threading.Event(), threading.Event()
        self._broken: HostlibError | None = None
        self._failures: list[Failure] = []
        self._hosts = sorted({*range(context.world_size), *streams.sources})
        self._common = CommonReturn(context.detector, self._hosts)
        # The place is the session's, or after a failure the thread's that joins a new job, then the next session's
        # while no message may begin. It changes hands with this lock held, and no more once this end is closed.
        self._place = threading.Lock()
        self._returning: Returning | None = None
        self._next: FabricSession | None = None
        self._still_since = 0.0
        self._controller, self._job, self._address = controller, job, address
        require_controller(controller, context.admitted)  # At once; but a switch that starts is waited for.
        # Heartbeats may belong to an earlier job; no host completes its join before all have started theirs.
        context.detector.publish(submitted=0, completed=0, failures=0, ready=0, begun=())
        context.detector.exchange()
        self.session = self._join(job)
        context.detector.exchange()  # What the others said of an earlier job is no news.
        self._configure(self.session.place)
        self._thread = threading.Thread(target=self._follow, name="multicast", daemon=True)
        self._thread.start()

    def _join(self, job: str, again: Rejoin | None = None) -> FabricSession:
        context, streams = self._context, self._streams
        return join(
            self._controller,
            job,
            context.rank if context.rank < context.world_size else None,
            context.world_size,
            self._address,
            [self._multicaster.port] * len(streams.sources),
            context.deadline_s,
            lambda: self._multicaster.position,
            slots=streams.slots,
            policy=streams.policy,
            again=again,
            patient=True,
            sockets=[self._multicaster.echo] * len(streams.sources),
            admitted=context.admitted if again is None else None,
        )

    @socket_errors()
    def _configure(self, place: Place) -> None:
        self._multicaster.configure(
            place.fabric_address,
            place.fabric_port,
            place.job_id,
            place.epoch,
            place.rank,
            place.rank,
            [self._stream(place, stream) for stream in range(len(place.pools))],
            place.elements,
            engine_checks.of_chunks(place),
        )

    def _stream(self, place: Place, stream: int) -> tuple[int, int, list[int], list[tuple[str, int]]]:
        """One of the engine's: its slots, its receivers if this is the source, and where those are, or the source is."""
        pool, source = place.pools[stream], self._streams.sources[stream]
        if self._is_mine(stream):
            receivers = self._streams.receivers(stream)
            return pool.first_slot, pool.slots, receivers, [place.workers[rank].end(stream) for rank in receivers]
        other = place.server if source == self._context.world_size else place.workers[source]
        if other is None:
            raise JoinError("the controller did not say where the job's server is")
        return pool.first_slot, pool.slots, [], [other.end(stream)]

    @property
    def stream(self) -> int:
        """The first stream whose source is this host."""
        return self._streams.sources.index(self._context.rank)

    def _is_mine(self, stream: int) -> bool:
        return self._streams.sources[stream] == self._context.rank

    @property
    def _chunk_bytes(self) -> int:
        return 4 * self.session.place.elements

    # ---- messages ------------------------------------------------------------------------------------------------

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Hold the lock on the streams, once a message may begin.

        Raises:
            HostlibError: they are broken.
            Cancelled: see `cancel`.
        """
        with self._lock:
            while self._next is not None and self._broken is None and not self._cancelled.is_set():
                self._lock.wait(LOOK_S)
            if self._broken is not None:
                raise self._broken
            if self._next is not None:
                raise Cancelled("cancelled")
            yield

    def _goes_past(self, line: StreamState, message: StreamMessage) -> bool:
        return self._by_hosts or message.number < line.first

    def send(self, stream: int, values: Tensor) -> None:
        """Send a flat contiguous tensor; it is copied, so it may change at once."""
        if values.numel() == 0:
            return
        line = self._lines[stream]
        while len(line.leaving) > AHEAD:
            settle(line.leaving.popleft())
        with self._usable():
            self._sent += 1
            self._context.detector.publish(submitted=self._sent)
            message = line.begin(values.detach().clone().view(torch.uint8))
            if self._goes_past(line, message):
                self._send_past(stream, message, self._streams.receivers(stream))
                return
            granted = self._multicaster.granted(stream)
            while line.messages and line.messages[0].end <= granted:
                line.messages.popleft()
            line.put(message, self._chunk_bytes)
            message.ticket = self._multicaster.send(stream, message.values)

    def receive(self, stream: int, values: Tensor) -> Pending:
        """Receive the stream's next message, which has the tensor's size, into the tensor."""
        if values.numel() == 0:
            return EmptyMessage()
        line = self._lines[stream]
        with self._usable():
            self._complete(line)
            message = line.begin(values.detach().view(torch.uint8))
            if self._goes_past(line, message):
                self._receive_past(stream, message)
            else:
                line.put(message, self._chunk_bytes)
                message.ticket = self._multicaster.receive(stream, message.values)
            return Coming(self, stream, message)

    def _wait(self, stream: int, message: StreamMessage) -> None:
        """Wait until a message has arrived.

        Raises:
            MissingRankError, RunError: a rank is gone, or does not send.
            Cancelled: see `cancel`.
        """
        position, moved = self._multicaster.position, time.monotonic()
        while message.past is None and not self._is_here(message, LOOK_S):
            if self._cancelled.is_set():
                raise Cancelled("cancelled")
            if self._broken is not None:
                raise self._broken
            if self._multicaster.position != position:
                position, moved = self._multicaster.position, time.monotonic()
            self._look(stream, time.monotonic() - moved)
        if message.past is not None:
            message.past.wait()

    def _is_here(self, message: StreamMessage, within_s: float = 0.0) -> bool:
        return message.ticket is not None and self._multicaster.wait(message.ticket, within_s)

    def complete(self) -> None:
        """Count what began together as received; all hosts count alike."""
        with self._lock:
            self._completed += 1
            self._context.detector.publish(completed=self._completed)

    # ---- failure -------------------------------------------------------------------------------------------------

    def _look(self, stream: int, stalled_s: float) -> None:
        failures = len(self._failures)  # Before all else: what is seen below may be of this switch or of the next.
        if self._by_hosts or self._found > failures:
            return
        self._stalled_s = stalled_s
        stats, source = self._multicaster.stats(), self._streams.sources[stream]
        gone = self._patience.refused(stalled_s, stats)
        lacking = self._patience.is_over(stalled_s, stats) and self._has_sent_more(source)
        if (gone or lacking or self._patience.is_spoiled(stats)) and not self._context.detector.silent():
            self._found = failures + 1
        elif stalled_s > self._context.deadline_s:
            raise self._context.detector.explain(stalled_s, lambda: self._nobody_missing(source, stalled_s))

    def _has_sent_more(self, source: int) -> bool:
        """Whether the source has sent more than has arrived here."""
        sign = self._context.detector.heartbeats()[source]
        with self._lock:
            here = sum(self._complete(line) for line in self._lines if line.source == source)
        return sign is not None and sign.submitted > here

    def _complete(self, line: StreamState) -> int:
        """Number of messages of a stream that have arrived."""
        while line.messages and self._is_here(line.messages[0]):
            line.messages.popleft()
        return line.count - len(line.messages)

    def _nobody_missing(self, source: int, stalled_s: float) -> HostlibError:
        ranks = self._context.world_size
        who = f"rank {self._context.number(source)}" if source < ranks else f"server {source - ranks}"
        return RunError(
            f"{who} is alive but sent nothing through the switch for {stalled_s:.0f} s "
            "(does every rank reduce the same tensors?)"
        )

    def _follow(self) -> None:
        """Leave the switch once this host or another one has found it dead, and return to it once all hosts can."""
        while not self._ended.wait(LOOK_S):
            since = time.monotonic()
            try:
                self._step()
            except Exception as error:
                self._broken = error if isinstance(error, HostlibError) else self._context.explain(since, error)
                return

    def _step(self) -> None:
        if self._next is not None:
            self._return_or_not(self._next)
        elif self._by_hosts:
            self._stand_still_if_all_are_ready()
        else:
            seen = failures_seen(self._context, self._hosts)
            if max(self._found, seen) > len(self._failures):
                self._fail_over()

    def _fail_over(self) -> None:
        began = time.monotonic()
        with self._lock:
            self._by_hosts = True  # Before the failure counts: `_look` looks no more.
            self._multicaster.halt()
            announce_failure(self._context, len(self._failures) + 1)
            lacking = self._tell_sources()
            self._common.start()
            self._failures.append(Failure.seen(self._completed, self._stalled_s, began))
            warn_once(self._context, "the switch does not answer: hosts send ordinary messages until it is back")
            for stream, line in enumerate(self._lines):
                while line.messages:
                    message = line.messages.popleft()
                    if self._is_mine(stream):
                        self._send_past(stream, message, lacking(stream, message))
                    else:
                        self._receive_past(stream, message)
            self._begin_returning(self.session)

    def _tell_sources(self) -> Callable[[int, StreamMessage], list[int]]:
        """Exchange how many messages of each stream have arrived; returns which ranks lack a message of this host."""
        transport = self._context.transport
        under_way: list[Pending] = []
        counts: dict[tuple[int, int], Tensor] = {}
        for stream, line in enumerate(self._lines):
            if self._is_mine(stream):
                for rank in self._streams.receivers(stream):
                    counts[stream, rank] = torch.zeros(1, dtype=torch.int64)
                    under_way.append(transport.receive(counts[stream, rank], rank, _tag(stream)))
            elif self._context.rank < self._context.world_size:
                have = torch.tensor([self._complete(line)])
                under_way.append(transport.send(have, line.source, _tag(stream)))
        settle(under_way)

        def lacking(stream: int, message: StreamMessage) -> list[int]:
            return [rank for rank in self._streams.receivers(stream) if int(counts[stream, rank]) <= message.number]

        return lacking

    def _send_past(self, stream: int, message: StreamMessage, ranks: list[int]) -> None:
        self._failures[-1] = self._failures[-1].carried(message.values.nbytes)
        leaving = [self._context.transport.send(message.values, rank, _tag(stream) + 1) for rank in ranks]
        self._lines[stream].leaving.append(leaving)

    def _receive_past(self, stream: int, message: StreamMessage) -> None:
        self._failures[-1] = self._failures[-1].carried(message.values.nbytes)
        message.past = self._context.transport.receive(message.values, self._lines[stream].source, _tag(stream) + 1)

    # ---- return ----------------------------------------------------------------------------------------------------

    def _begin_returning(self, left: FabricSession) -> None:
        """Leave a job, and join the next."""
        job = f"{self._job}.{len(self._failures)}"
        with self._place:
            if not self._ended.is_set():
                self._returning, self._next = Returning(left, lambda again: self._join(job, again)), None

    def _stand_still_if_all_are_ready(self) -> None:
        """Begin no more messages, and tell the others how many there are, once all hosts are in the same new job."""
        returning = self._returning
        session = returning.session if returning is not None else None
        if not self._common.be_ready(session.place.epoch if session is not None else 0):
            return
        assert returning is not None
        with self._lock:
            with self._place:
                if self._ended.is_set():
                    return
                session = returning.adopted()
                is_it = session is not None and session.place.epoch == self._common.epoch
                if is_it:
                    self._returning, self._next, self._still_since = None, session, time.monotonic()
            begun = [line.count for line in self._lines]
        if is_it:
            self._common.tell(begun)
        else:  # It was lost at the last moment.
            self._begin_returning(session or self.session)

    def _return_or_not(self, session: FabricSession) -> None:
        """Return if all hosts have told which messages they have begun, or give up if that will never be."""
        first = self._common.first_messages()
        if first is not None:
            self._return(session, first)
        elif self._common.is_off:
            self._common.be_ready(0)
            with self._lock:
                self._begin_returning(session)
                self._lock.notify_all()
        elif (still_s := time.monotonic() - self._still_since) > self._context.deadline_s:
            raise self._context.detector.explain(
                still_s, lambda: RunError(f"not all hosts have returned to the switch within {still_s:.0f} s")
            )

    def _return(self, session: FabricSession, first: list[int]) -> None:
        with self._lock:
            with self._place:
                if self._ended.is_set():
                    return
                self._configure(session.place)
                self.session, self._next = session, None
            for line, number in zip(self._lines, first, strict=True):
                line.restart(number)
            self._patience.begin_again(self._multicaster.stats())
            self._stalled_s = 0.0
            self._failures[-1] = replace(self._failures[-1], returned=True)
            self._by_hosts = False
            self._lock.notify_all()
        warn_once(self._context, "the switch is back: it multicasts again")

    # ---- the end -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until every worker has what this host sent: no other host can repeat it."""
        wait_until_all_have(self._context, self._completed, self.tend)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the switch; see hostlib.fabric.failover.Failure."""
        return [failure.as_json() for failure in self._failures]

    def cancel(self) -> None:
        """Make all waiting calls raise Cancelled."""
        self._cancelled.set()

    def tend(self) -> None:
        """Do nothing: an idle host has nothing to tend."""

    def stats(self) -> dict[str, int]:
        """The engine's counters, and bits per second of messages while some were in progress."""
        return with_goodput(self._multicaster.stats(), 8 * self._chunk_bytes)

    def close(self) -> None:
        """Give up the place in the fabric."""
        self._cancelled.set()
        with self._place:
            self._ended.set()
        self._common.close()
        self._thread.join(LOOK_S * 10)
        self._multicaster.halt()
        if self._returning is not None:
            self._returning.close()
        else:
            (self._next or self.session).leave()


def _tag(stream: int) -> int:
    return FIRST_TAG + 2 * stream
