"""Messages that leave one after the other, in the order in which they were asked for.

TCP's streams to several hosts share the link: while a message still leaves for a host that is late, the next one, for
another, takes half of the link from it, and hosts that exchange pieces drift ever further apart.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

from torch import Tensor

from hostlib.peers import Peers, Pending


@dataclass(slots=True)
class Queued:
    """A message that waits for its turn, or is under way."""

    tensor: Tensor
    host: int
    tag: int
    _left: threading.Event = field(default_factory=threading.Event)
    _wrong: Exception | None = None

    def wait(self) -> None:
        """Until it has left.

        Raises:
            RunError, RuntimeError: it does not come through within the deadline.
        """
        self._left.wait()
        if self._wrong is not None:
            raise self._wrong

    def go(self, peers: Peers) -> None:
        """Send it, and wait until it has left."""
        try:
            peers.send(self.tensor, self.host, self.tag).wait()
        except Exception as wrong:
            self._wrong = wrong
        self._left.set()


class Outbox:
    """A host's messages by one link. Whoever is to receive one must ask for it whatever else it waits for: the next ones
    do not leave before."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._queue: queue.SimpleQueue[Queued | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="outbox", daemon=True).start()

    def send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        """As Peers.send."""
        message = Queued(tensor, host, tag)
        self._queue.put(message)
        return message

    def close(self) -> None:
        """There will be no more."""
        self._queue.put(None)

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            message.go(self._peers)
