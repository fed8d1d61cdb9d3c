"""The interface of transports: messages between the hosts of a schedule.

Messages of one sender with one tag arrive in the order in which they were sent. hostlib/transport/transport_registry.py
lists the transports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hostlib.system.tcp_counters import ByteCounts

if TYPE_CHECKING:
    from torch import Tensor


class Pending(Protocol):
    """A message in flight."""

    def wait(self) -> Any:
        """Wait until it has been sent or received.

        Raises:
            RunError, RuntimeError: it did not come through within the deadline.
        """
        ...


def settle(messages: Iterable[Pending]) -> None:
    """Wait for all of them."""
    for message in messages:
        message.wait()


class Transport(Protocol):
    """A host's endpoint. Hosts are numbered: workers by rank, then the servers.

    Attributes:
        name: of the transport, as `--transport` takes it.
        channels: how many threads may use it at a time, each for its own tensors.
        shares_link: concurrent messages slow each other down.
        carried: bytes of this process's messages so far, over all Transports; None if they use TCP, which the kernel
            counts.
    """

    @property
    def name(self) -> str: ...

    @property
    def channels(self) -> int: ...

    @property
    def shares_link(self) -> bool: ...

    @property
    def carried(self) -> ByteCounts | None: ...

    @property
    def control(self) -> Transport:
        """Between the same hosts, for small messages that must not wait behind large ones in the same direction."""
        ...

    def send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        """Send a contiguous tensor, which must not change until the message has been sent."""
        ...

    def receive(self, tensor: Tensor, host: int, tag: int) -> Pending: ...


class ReducingTransport(Transport, Protocol):
    """A transport whose library has an all-reduce of its own."""

    def allreduce(self, tensor: Tensor) -> Pending:
        """Sum a contiguous tensor over all hosts, in place."""
        ...


class Connector(Protocol):
    """Makes a process's transports; the process was started as the transport requires."""

    def connect(
        self, store: Any, name: str, members: Sequence[int], rank: int, deadline_s: float | None, gloo: Any = None
    ) -> Transport:
        """Connect some of the run's processes, all of which make this call in the same order.

        Args:
            store: torch.distributed.Store of the run.
            name: of the connection, unique in the store.
            members: the processes by rank; host i is members[i].
            rank: this process's.
            deadline_s: how long a message may take; None for no limit, since a server may be idle.
            gloo: torch.distributed.ProcessGroupGloo of exactly these processes that may be used; None if there is none.
        """
        ...


class FabricEnd(Protocol):
    """A host's end of a job on the fabric."""

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the switch."""
        ...

    def settle(self) -> None:
        """Wait until every worker has what only this host can give it."""
        ...

    def stats(self) -> dict[str, int]:
        """The packet engine's counters."""
        ...

    def close(self) -> None: ...


class ReduceScatterTransport(FabricEnd, Protocol):
    """A host's end of reduce-scatters in which a switch sums."""

    def execute(self, tensor: Tensor, average: bool = False, root: int = 0) -> None:
        """Sum or average a flat contiguous tensor, a shard for each worker; this one's shard gets the result."""
        ...


class MulticastTransport(FabricEnd, Protocol):
    """A host's end of streams that a switch multicasts, one for each source. Messages of a stream arrive in order."""

    @property
    def stream(self) -> int:
        """The first stream whose source is this host."""
        ...

    def send(self, stream: int, values: Tensor) -> None:
        """Send a flat contiguous tensor; it is copied, so it may change at once."""
        ...

    def receive(self, stream: int, values: Tensor) -> Pending:
        """Receive the stream's next message, which has the tensor's size, into the tensor."""
        ...

    def complete(self) -> None:
        """Count what began together as received; all hosts count alike."""
        ...


def first_line(error: Exception) -> str:
    """The first line of a library's error, without source locations."""
    lines = str(error).splitlines() or [repr(error)]
    return re.sub(r"^\[[^\]]*\] *", "", lines[0])
