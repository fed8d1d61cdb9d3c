"""Messages over torch's Gloo (TCP), for processes started by torchrun or `hostlib train`. Loads torch on connecting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.transport import Pending

if TYPE_CHECKING:
    from torch import Tensor

SUMMARY = "torch's Gloo, over TCP"
STARTED_BY = None
IDLE = timedelta(days=365)  # how long a server may wait for work


@contextmanager
def environment() -> Iterator[LaunchEnvironment]:
    """Read torchrun's, or the launcher's, environment. Raises RunError if the process was started by hand."""
    yield LaunchEnvironment.from_environment()


class GlooTransport:
    """Messages over a process group with point-to-point operations.

    Args:
        group: torch.distributed.ProcessGroupGloo or ProcessGroupNCCL, whose rank i is host i.
        downwards: a group of the same hosts for messages to lower-numbered hosts. Gloo sends a message when its
            receiver has asked for it, over the same connection: with much traffic in both directions, requests would
            queue behind data.
    """

    name = "gloo"
    channels = 4
    shares_link = True
    carried = None

    def __init__(self, group: Any, downwards: Any = None) -> None:
        self._upwards, self._downwards = group, downwards or group

    @property
    def control(self) -> GlooTransport:
        """By the connections whose large messages go the other way."""
        return GlooTransport(self._downwards, self._upwards)

    def send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        group = self._upwards if host > self._upwards.rank() else self._downwards
        sent: Pending = group.send([tensor], host, tag)
        return sent

    def receive(self, tensor: Tensor, host: int, tag: int) -> Pending:
        group = self._upwards if host < self._upwards.rank() else self._downwards
        received: Pending = group.recv([tensor], host, tag)
        return received


class GlooConnector:
    """See Connector. With servers, traffic is heavy in both directions, so each direction has its own connections."""

    def connect(
        self, store: Any, name: str, members: Sequence[int], rank: int, deadline_s: float | None, gloo: Any = None
    ) -> GlooTransport:
        import torch.distributed as dist

        if gloo is not None:
            return GlooTransport(gloo)
        timeout = IDLE if deadline_s is None else timedelta(seconds=deadline_s)
        up, down = (
            dist.ProcessGroupGloo(dist.PrefixStore(f"{name}-{way}", store), members.index(rank), len(members), timeout)
            for way in ("up", "down")
        )
        return GlooTransport(up, down)
