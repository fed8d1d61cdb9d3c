"""Messages between the hosts of a schedule: what every transport does, whatever it goes by.

Messages of one sender with one tag come in the order in which they were sent. hostlib/transport/transport_registry.py says which
transports there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hostlib.system.tcp_counters import ByteCounts

if TYPE_CHECKING:
    from torch import Tensor


class Pending(Protocol):
    """A message under way."""

    def wait(self) -> Any:
        """Until it has left, or is here.

        Raises:
            RunError, RuntimeError: it does not come within the deadline.
        """
        ...


def settle(messages: Iterable[Pending]) -> None:
    """Wait for all of them."""
    for message in messages:
        message.wait()


class Transport(Protocol):
    """This host's end. Hosts are numbered: workers by rank, then the servers.

    Attributes:
        name: of the transport, as `--transport` has it.
        channels: how many threads may be at it at a time, each with tensors of its own.
        shares_link: messages that are under way at a time slow each other down.
        carried: bytes of this process's messages so far, whichever Transport they went by; None where they go by TCP,
            and the kernel counts them.
    """

    @property
    def name(self) -> str: ...

    @property
    def channels(self) -> int: ...

    @property
    def shares_link(self) -> bool: ...

    @property
    def carried(self) -> ByteCounts | None: ...

    def send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        """Nothing may change the tensor, which is contiguous, until the message has left."""
        ...

    def receive(self, tensor: Tensor, host: int, tag: int) -> Pending: ...


class ReducingTransport(Transport, Protocol):
    """One whose library has an all-reduce of its own."""

    def allreduce(self, tensor: Tensor) -> Pending:
        """Sum a contiguous tensor over all hosts, in place."""
        ...


class Connector(Protocol):
    """What a process makes transports with; it has been started as the transport needs it."""

    def connect(
        self, store: Any, name: str, members: Sequence[int], rank: int, deadline_s: float | None, gloo: Any = None
    ) -> Transport:
        """Messages between some of the run's processes, all of which call this in the same order.

        Args:
            store: torch.distributed.Store of the run.
            name: of these messages, in the store.
            members: the processes by rank; host i is members[i].
            rank: this process's.
            deadline_s: how long a message may take; None for ever, as a server may be idle.
            gloo: torch.distributed.ProcessGroupGloo between just these, which may be used; None where there is none.
        """
        ...


class MulticastTransport(Protocol):
    """A host's end of streams that a switch multicasts, one for each source. Messages of a stream come in order."""

    @property
    def failures(self) -> list[dict[str, Any]]:
        """What is known of each failure of the switch."""
        ...

    @property
    def stream(self) -> int:
        """The first whose source this host is."""
        ...

    def send(self, stream: int, values: Tensor) -> None:
        """Send a flat contiguous tensor; it may change at once."""
        ...

    def receive(self, stream: int, values: Tensor) -> Pending:
        """Let the stream's next message, as large as the tensor, come into it."""
        ...

    def complete(self) -> None:
        """What began together here has all been received: everybody counts the same."""
        ...

    def settle(self) -> None:
        """Stay until every worker has what this host sent."""
        ...

    def close(self) -> None: ...


def first_line(error: Exception) -> str:
    """What a library says went wrong, without the place in its sources."""
    lines = str(error).splitlines() or [repr(error)]
    return re.sub(r"^\[[^\]]*\] *", "", lines[0])
