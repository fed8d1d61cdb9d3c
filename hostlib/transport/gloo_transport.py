"""Messages by torch's Gloo, over TCP: for processes that torchrun or `hostlib train` started. Loads torch when it connects."""

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
    """What torchrun, or the launcher, says. Raises RunError when started by hand."""
    yield LaunchEnvironment.from_environment()


class GlooTransport:
    """Over process groups with point-to-point messages.

    Args:
        group: torch.distributed.ProcessGroupGloo, or NCCL's, whose rank i is host i.
        downwards: of the same hosts, for messages to those of a lower number. A message leaves when its receiver has asked
            for it, by the same connection: where much goes both ways, what is asked for would wait behind what is sent.
    """

    name = "gloo"
    channels = 4
    shares_link = True
    carried = None

    def __init__(self, group: Any, downwards: Any = None) -> None:
        self._upwards, self._downwards = group, downwards or group

    def send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        group = self._upwards if host > self._upwards.rank() else self._downwards
        sent: Pending = group.send([tensor], host, tag)
        return sent

    def receive(self, tensor: Tensor, host: int, tag: int) -> Pending:
        group = self._upwards if host < self._upwards.rank() else self._downwards
        received: Pending = group.recv([tensor], host, tag)
        return received


class GlooConnector:
    """See Connector. With servers, hosts send much to each other, both ways: each way has connections of its own."""

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
