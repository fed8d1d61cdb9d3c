"""A strategy's own messages, replayed: this host's part of each exchange (hostlib.plan), with real bytes.

Nothing is summed: a piece holds its number everywhere, which is what is looked at in the end. Torch-facing.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Sequence

import torch

from emulation.orders import Part, Step
from hostlib.multicast import SwitchMulticast
from hostlib.peers import Peers, Pending

TAGS = 1 << 12  # of one exchange: at most so many pieces
LEAVES, COMES = ("send", "multicast"), ("receive", "hear")


class Processor:
    """A virtual GPU that several threads share: it works on one thing at a time, by waiting."""

    def __init__(self) -> None:
        self._lock, self._free_ns = threading.Lock(), 0

    def work(self, duration_ns: int) -> None:
        with self._lock:
            self._free_ns = until_ns = max(self._free_ns, time.monotonic_ns()) + duration_ns
        time.sleep(max(0, until_ns - time.monotonic_ns()) / 1e9)


class Player:
    """This host's part of one exchange, again and again."""

    def __init__(
        self, part: Part, peers: Peers, processor: Processor, multicast: SwitchMulticast | None = None
    ) -> None:
        self.part, self._peers, self._processor, self._multicast = part, peers, processor, multicast
        wanted = {step.piece for step in part.steps}
        begins = {piece for piece in wanted if self._first(piece) in LEAVES}
        # What this host receives is not there before it came.
        self._sent = {p: torch.full((part.elements[p],), float(p + 1)) for p in begins}
        self._got = {step.piece: torch.zeros(part.elements[step.piece]) for step in part.steps if step.what in COMES}
        self._pending: list[Pending] = []
        self._coming: list[Pending] = []
        self._rest: tuple[Step, ...] = ()

    def _first(self, piece: int) -> str:
        return next(step.what for step in self.part.steps if step.piece == piece)

    def begin(self) -> None:
        """Ask for all that is to come, and send what does not wait for it."""
        self._coming = [self._ask(step) for step in self.part.steps if step.what in COMES]
        self._pending = []
        first = next((n for n, step in enumerate(self.part.steps) if step.what not in LEAVES), len(self.part.steps))
        for step in self.part.steps[:first]:
            self._send(step)
        self._rest = self.part.steps[first:]

    def finish(self) -> None:
        """The rest; all has been sent, and all is here.

        Raises:
            RunError, RuntimeError: a message did not come through.
        """
        coming = iter(self._coming)
        for step in self._rest:
            if step.what in COMES:
                next(coming).wait()
            elif step.what == "compute":
                self._processor.work(step.duration_ns)
            else:
                self._send(step)
        for message in self._pending:
            message.wait()
        if self._multicast is not None:
            self._multicast.complete()

    def _ask(self, step: Step) -> Pending:
        if self._multicast is not None and step.what == "hear":
            return self._multicast.receive(step.peer, self._got[step.piece])
        return self._peers.receive(self._got[step.piece], step.peer, self._tag(step))

    def _send(self, step: Step) -> None:
        # A piece that came is sent on as it is.
        values = self._sent[step.piece] if step.piece in self._sent else self._got[step.piece]
        if self._multicast is not None and step.what == "multicast":
            self._multicast.send(self._multicast.stream, values)
        else:
            self._pending.append(self._peers.send(values, step.peer, self._tag(step)))

    def _tag(self, step: Step) -> int:
        return self.part.number * TAGS + step.piece

    @property
    def got(self) -> Iterable[torch.Tensor]:
        """What this host receives."""
        return self._got.values()

    @property
    def wrong(self) -> int:
        """Received elements that are not what was sent."""
        return sum(int((values != piece + 1).sum()) for piece, values in self._got.items())


class Exchanges:
    """A worker's: begun by the caller, finished by a thread, in the order of their beginning.

    Args:
        multicast: where the switch has a part in them; it is closed with them.
    """

    def __init__(self, parts: Sequence[Part], peers: Peers, multicast: SwitchMulticast | None = None) -> None:
        processor = Processor()
        self._multicast = multicast
        self._players = {part.number: Player(part, peers, processor, multicast) for part in parts}
        self._begun: queue.SimpleQueue[tuple[Player, torch.futures.Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="exchanges", daemon=True)
        self._thread.start()

    def __contains__(self, number: int) -> bool:
        return number in self._players

    def size(self, number: int) -> int:
        """Bytes that one of them brings."""
        return sum(values.nbytes for values in self._players[number].got)

    def begin(self, number: int) -> torch.futures.Future[None]:
        """One of them; the future is done when this host's part is."""
        future: torch.futures.Future[None] = torch.futures.Future()
        self._players[number].begin()
        self._begun.put((self._players[number], future))
        return future

    def _run(self) -> None:
        while (begun := self._begun.get()) is not None:
            player, future = begun
            try:
                player.finish()
                future.set_result(None)
            except Exception as wrong:
                future.set_exception(wrong)  # type: ignore[no-untyped-call]

    @property
    def received(self) -> Iterable[torch.Tensor]:
        """What has come."""
        return (values for player in self._players.values() for values in player.got)

    @property
    def wrong(self) -> int:
        """Received elements that are not what was sent."""
        return sum(player.wrong for player in self._players.values())

    def close(self, graceful: bool = True) -> None:
        """There will be no more. Not `graceful`: something failed, and nobody is to be waited for."""
        self._begun.put(None)
        if self._multicast is None:
            return
        if graceful:
            self._thread.join()
            self._multicast.settle()
        self._multicast.close()


def serve_exchanges(parts: Sequence[Part], peers: Peers, times: int) -> None:
    """A server's: each is answered as it comes, so many times.

    Raises:
        RunError, RuntimeError: a message did not come through.
    """
    processor = Processor()
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def run(player: Player) -> None:
        try:
            for _ in range(times):
                player.begin()
                player.finish()
            ended.put(None)
        except Exception as wrong:
            ended.put(wrong)

    players = [Player(part, peers, processor) for part in parts]
    threads = [threading.Thread(target=run, args=[player], daemon=True) for player in players]
    for thread in threads:
        thread.start()
    for _ in threads:
        # Those that are left when one failed wait for what may never come.
        if (wrong := ended.get()) is not None:
            raise wrong
