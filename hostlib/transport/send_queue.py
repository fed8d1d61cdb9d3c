"""Send messages to one host after the other, in the order in which they were requested.

TCP streams to several hosts share the link. While a message to a late host is still leaving, the next one, to another
host, would take half of the link, and hosts that exchange pieces would drift further apart.
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
    """A message that is queued or being sent."""

    tensor: Tensor
    host: int
    tag: int
    _under_way: Pending | None = None
    _left: threading.Event = field(default_factory=threading.Event)
    _error: Exception | None = None

    def wait(self) -> None:
        """Wait until it has been sent.

        Raises:
            RunError, RuntimeError: it did not come through within the deadline.
        """
        self._left.wait()
        if self._error is not None:
            raise self._error

    def begin(self, transport: Transport) -> None:
        """Start to send it, unless that has been tried."""
        if self._under_way is None and self._error is None:
            try:
                self._under_way = transport.send(self.tensor, self.host, self.tag)
            except Exception as error:
                self._error = error

    def finish(self) -> None:
        """Wait until the messages that were started have been sent."""
        try:
            if self._under_way is not None:
                self._under_way.wait()
        except Exception as error:
            self._error = error
        self._left.set()


class SendQueue:
    """A host's outgoing messages on one link.

    Receivers must request their message whatever else they wait for: messages to other hosts wait until it has left.
    Messages to the same host do not wait for each other, since they form one stream.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._line: deque[Queued] = deque()  # unsent messages; those up to the first for another host are being sent
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
        """End the queue after sending what it holds."""
        with self._changed:
            self._open = False
            self._changed.notify()
        # If a thread drops the last reference to torch's group at interpreter exit, the process crashes.
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
