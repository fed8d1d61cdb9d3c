"""Messages that leave for one host after the other, in the order in which they were asked for.

TCP's streams to several hosts share the link: while a message still leaves for a host that is late, the next one, for
another, takes half of the link from it, and hosts that exchange pieces drift ever further apart.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from torch import Tensor

from hostlib.transport.transport import Pending, Transport

CLOSE_S = 5.0


@dataclass(slots=True)
class Queued:
    """A message that waits for its turn, or is under way."""

    tensor: Tensor
    host: int
    tag: int
    _under_way: Pending | None = None
    _left: threading.Event = field(default_factory=threading.Event)
    _error: Exception | None = None

    def wait(self) -> None:
        """Until it has left.

        Raises:
            RunError, RuntimeError: it does not come through within the deadline.
        """
        self._left.wait()
        if self._error is not None:
            raise self._error

    def begin(self, transport: Transport) -> None:
        """Send it, if that has not been tried yet."""
        if self._under_way is None and self._error is None:
            try:
                self._under_way = transport.send(self.tensor, self.host, self.tag)
            except Exception as error:
                self._error = error

    def finish(self) -> None:
        """Wait until what has begun has left."""
        try:
            if self._under_way is not None:
                self._under_way.wait()
        except Exception as error:
            self._error = error
        self._left.set()


class SendQueue:
    """A host's messages by one link. Whoever is to receive one must ask for it whatever else it waits for: those to other
    hosts do not leave before. Those to the same host need not wait: they follow each other in one stream."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._line: deque[Queued] = deque()  # what has not left; those up to the first for another host are under way
        self._open = True
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        """As Transport.send."""
        message = Queued(tensor, host, tag)
        with self._changed:
            self._line.append(message)
            self._begin()
            self._changed.notify()
        return message

    def close(self) -> None:
        """There will be no more. What was sent leaves first."""
        with self._changed:
            self._open = False
            self._changed.notify()
        # A thread that lets go of the last hold on torch's group while the interpreter ends takes the process down with it.
        self._thread.join(timeout=CLOSE_S)

    def _begin(self) -> None:
        for message in self._line:
            if message.host != self._line[0].host:
                break
            message.begin(self._transport)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._line or not self._open)
                if not self._line:
                    return
                first = self._line[0]
            first.finish()
            with self._changed:
                self._line.popleft()
                self._begin()
