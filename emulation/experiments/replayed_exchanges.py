"""Replay a strategy's own messages: this host's role in each exchange (hostlib.strategies.plan), with real bytes.

Nothing is summed: every element of a piece is the piece's number, which is verified at the end. Needs torch.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

import torch

from emulation.experiments.worker_options import ExchangeRole
from hostlib.collectives.schedule_executor import Playing, ScheduleExecutor
from hostlib.schedules.schedule import Compute, Operation, Receive, Send
from hostlib.transport.refusals import refuse
from hostlib.transport.transport import MulticastTransport, Transport

TAGS = 1 << 12  # tags per exchange: the maximum number of pieces


class Processor:
    """A virtual GPU shared by several threads: it does one job at a time, by waiting.

    Attributes:
        late_ns: how late it woke up after each job.
    """

    def __init__(self) -> None:
        self._lock, self._free_ns = threading.Lock(), 0
        self.late_ns: list[int] = []

    def work(self, duration_ns: int) -> None:
        with self._lock:
            self._free_ns = until_ns = max(self._free_ns, time.monotonic_ns()) + duration_ns
        time.sleep(max(0, until_ns - time.monotonic_ns()) / 1e9)
        self.late_ns.append(max(0, time.monotonic_ns() - until_ns))


class ExchangeRunner:
    """This host's role in one exchange, for any number of iterations.

    Args:
        hosts: node -> number.
    """

    def __init__(
        self,
        role: ExchangeRole,
        hosts: Mapping[str, int],
        transport: Transport,
        processor: Processor,
        multicast: MulticastTransport | None = None,
    ) -> None:
        self.role = role
        messages = [each for each in role.operations if not isinstance(each, Compute)]
        first_of = {operation.piece: operation for operation in reversed(messages)}
        self._pieces = [_piece(p, size, first_of.get(p)) for p, size in enumerate(role.elements)]
        self._received = {each.piece for each in role.operations if isinstance(each, Receive)}
        self._streams = {piece: hosts[source] for piece, source in role.sources.items()}
        tag = role.number * TAGS
        name = f"exchange {role.number}"
        self._executor = ScheduleExecutor(name, hosts, transport, tag, multicast=multicast, compute=processor.work)

    def begin(self) -> Playing:
        """Request all expected messages, and send those that do not depend on them."""
        return self._executor.begin(self.role.operations, self._pieces, streams=self._streams, ahead=True)

    def finish(self, playing: Playing) -> None:
        """Do the rest, until everything has been sent and received.

        Raises:
            RunError, RuntimeError: a message did not come through.
        """
        self._executor.finish(playing)

    @property
    def received(self) -> Iterable[torch.Tensor]:
        """The pieces that this host receives."""
        return (self._pieces[piece] for piece in sorted(self._received))

    @property
    def mismatches(self) -> int:
        """Number of received elements that differ from what was sent."""
        return sum(int((self._pieces[piece] != piece + 1).sum()) for piece in self._received)


def _piece(number: int, elements: int, first: Operation | None) -> torch.Tensor:
    """A piece's values; pieces to be received start with other values, and unused ones are empty."""
    if first is None:
        return torch.empty(0)
    return torch.full((elements,), float(number + 1) if isinstance(first, Send) else 0.0)


class Exchanges:
    """A worker's exchanges: begun by the caller, finished by a thread in the order in which they were begun.

    Args:
        multicast: the switch's part, closed together with this object; None if it has none.
    """

    def __init__(
        self,
        roles: Sequence[ExchangeRole],
        hosts: Mapping[str, int],
        transport: Transport,
        multicast: MulticastTransport | None = None,
    ) -> None:
        self._processor, self._multicast = Processor(), multicast
        self._runners = {
            role.number: ExchangeRunner(role, hosts, transport, self._processor, multicast) for role in roles
        }
        self._begun: queue.SimpleQueue[tuple[ExchangeRunner, Playing, torch.futures.Future[None]] | None]
        self._begun = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="exchanges", daemon=True)
        self._thread.start()

    def __contains__(self, number: int) -> bool:
        return number in self._runners

    def size(self, number: int) -> int:
        """Bytes that an exchange delivers."""
        return sum(values.nbytes for values in self._runners[number].received)

    def begin(self, number: int) -> torch.futures.Future[None]:
        """Start an exchange; the future is done when this host's part is."""
        future: torch.futures.Future[None] = torch.futures.Future()
        runner = self._runners[number]
        self._begun.put((runner, runner.begin(), future))
        return future

    def _run(self) -> None:
        while (begun := self._begun.get()) is not None:
            runner, playing, future = begun
            try:
                runner.finish(playing)
                future.set_result(None)
            except Exception as error:
                refuse(future, error)

    def take_late_ns(self) -> list[int]:
        """How late this host woke up after each job, since it was last asked."""
        late_ns, self._processor.late_ns = self._processor.late_ns, []
        return late_ns

    @property
    def received(self) -> Iterable[torch.Tensor]:
        """All received pieces."""
        return (values for runner in self._runners.values() for values in runner.received)

    @property
    def mismatches(self) -> int:
        """Number of received elements that differ from what was sent."""
        return sum(runner.mismatches for runner in self._runners.values())

    def close(self, graceful: bool = True) -> None:
        """End after the last exchange. Not `graceful`: after a failure, without waiting for other hosts."""
        self._begun.put(None)
        if self._multicast is None:
            return
        if graceful:
            self._thread.join()
            self._multicast.settle()
        self._multicast.close()


def serve_exchanges(roles: Sequence[ExchangeRole], hosts: Mapping[str, int], transport: Transport, times: int) -> None:
    """Run a server: each exchange is answered `times` times.

    Raises:
        RunError, RuntimeError: a message did not come through.
    """
    processor = Processor()
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def run(runner: ExchangeRunner) -> None:
        try:
            for _ in range(times):
                runner.finish(runner.begin())
            ended.put(None)
        except Exception as error:
            ended.put(error)

    runners = [ExchangeRunner(role, hosts, transport, processor) for role in roles]
    threads = [threading.Thread(target=run, args=[runner], daemon=True) for runner in runners]
    for thread in threads:
        thread.start()
    for _ in threads:
        # After a failure, the other threads may wait for messages that never come.
        if (error := ended.get()) is not None:
            raise error
