"""Request messages before they are needed: with Gloo and MPI, a long message leaves when its receiver has asked for it.

Requests are limited, and those for the oldest tensor go first, over all threads of a server. If it took its tensors in
turns, their sums would be complete at about the same time: it would have nothing to send while messages come in, and
then the other way round.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field

from torch import Tensor

from hostlib.transport.transport import Pending

Request = Callable[[], tuple[Pending, Tensor]]  # makes a request; gives the message, and the buffer that it comes into


@dataclass(slots=True)
class FromSender:
    """A tensor's messages from one sender, in the order in which they are needed.

    Attributes:
        coming: those that have been requested and not taken.
        under_way: number of those that have been requested, and are not known to be here.
    """

    unasked: deque[Request] = field(default_factory=deque)
    coming: deque[tuple[Pending, Tensor]] = field(default_factory=deque)
    under_way: int = 0


@dataclass(slots=True, eq=False)
class Expected:
    """The messages of one tensor that this host receives.

    Attributes:
        number: of the tensor. Older ones have lower numbers.
        most: maximum number of requested messages of one sender.
        messages: their senders and requests, in the order in which they are needed.
    """

    number: int
    most: int
    messages: InitVar[Iterable[tuple[str, Request]]]
    senders: defaultdict[str, FromSender] = field(init=False, default_factory=lambda: defaultdict(FromSender))

    def __post_init__(self, messages: Iterable[tuple[str, Request]]) -> None:
        for sender, request in messages:
            self.senders[sender].unasked.append(request)


class MessageRequests:
    """The requests of a host. Threads may share it, each for its own tensors.

    A tensor's requests depend on older tensors' alone, so that none wait for each other in a circle.
    """

    def __init__(self) -> None:
        self._tensors: list[Expected] = []
        self._changed = threading.Condition()

    def begin(self, expected: Expected) -> None:
        """Request as many messages of a tensor as may be."""
        with self._changed:
            self._tensors = sorted([*self._tensors, expected], key=lambda each: each.number)
            for sender in expected.senders:
                self._ask(sender)

    def take(self, expected: Expected, sender: str) -> tuple[Pending, Tensor]:
        """The sender's next message of a tensor, once it has been requested."""
        its = expected.senders[sender]
        with self._changed:
            self._changed.wait_for(lambda: its.coming)
            return its.coming.popleft()

    def arrived(self, expected: Expected, sender: str) -> None:
        """A message is here: the next ones may be requested."""
        with self._changed:
            expected.senders[sender].under_way -= 1
            self._ask(sender)

    def end(self, expected: Expected) -> None:
        """No more messages of a tensor are needed."""
        with self._changed:
            self._tensors.remove(expected)
            for sender in expected.senders:
                self._ask(sender)

    def _ask(self, sender: str) -> None:
        under_way = 0
        for each in self._tensors:
            its = each.senders[sender]
            under_way += its.under_way
            while its.unasked and under_way < each.most:
                its.coming.append(its.unasked.popleft()())
                its.under_way += 1
                under_way += 1
                self._changed.notify_all()
