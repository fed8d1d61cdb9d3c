"""Messages between the hosts of a schedule: over torch.distributed (Gloo) or MPI.

Messages of one sender with one tag come in the order in which they were sent.
"""

from __future__ import annotations

import re
import time
from typing import Any, Protocol

import torch
from torch import Tensor

from hostlib.errors import RunError
from hostlib.link import LinkBytes

SHORT_S, LONG_S = 20e-6, 1e-3  # between looks at an MPI message: MPI itself would wait at full speed


class Pending(Protocol):
    """A message under way."""

    def wait(self) -> Any:
        """Until it has left, or is here.

        Raises:
            RunError, RuntimeError: it does not come within the deadline.
        """
        ...


def settle(messages: list[Pending]) -> None:
    """Wait for all of them."""
    for message in messages:
        message.wait()


class Peers(Protocol):
    """This host's end. Hosts are numbered: workers by rank, then the servers.

    Attributes:
        channels: how many threads may be at it at a time, each with tensors of its own.
        shares_link: messages that are under way at a time slow each other down.
    """

    @property
    def channels(self) -> int: ...

    @property
    def shares_link(self) -> bool: ...

    def send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        """Nothing may change the tensor, which is contiguous, until the message has left."""
        ...

    def receive(self, tensor: Tensor, host: int, tag: int) -> Pending: ...


class GlooPeers:
    """Over process groups with point-to-point messages.

    Args:
        group: torch.distributed.ProcessGroupGloo, or NCCL's, whose rank i is host i.
        downwards: of the same hosts, for messages to those of a lower number. A message leaves when its receiver has asked
            for it, by the same connection: where much goes both ways, what is asked for would wait behind what is sent.
    """

    channels = 4
    shares_link = True

    def __init__(self, group: Any, downwards: Any = None) -> None:
        self._upwards, self._downwards = group, downwards or group

    def send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        group = self._upwards if host > self._upwards.rank() else self._downwards
        return group.send([tensor], host, tag)  # type: ignore[no-any-return]

    def receive(self, tensor: Tensor, host: int, tag: int) -> Pending:
        group = self._upwards if host < self._upwards.rank() else self._downwards
        return group.recv([tensor], host, tag)  # type: ignore[no-any-return]


class MpiPeers:
    """Over an MPI communicator.

    Args:
        communicator: mpi4py.MPI.Comm whose rank i is host i; nobody else may use it.
        deadline_s: how long a message may take; None for ever, as a server may be idle.
        counting: this host's other messages, which count these, too.

    Attributes:
        carried: bytes of the messages so far. Between processes of one machine they go by shared memory, where the
            kernel does not count them.
    """

    channels = 1  # MPI libraries' own locks make more of them slower
    shares_link = False  # the library sees to that

    def __init__(self, communicator: Any, deadline_s: float | None, counting: MpiPeers | None = None) -> None:
        self._communicator, self._deadline_s = communicator, deadline_s
        self.carried = LinkBytes()
        self._counting = (self,) if counting is None else (self, counting)

    def send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        self._count(LinkBytes(sent=tensor.nbytes))
        return MpiPending(self._communicator.Isend(_bytes(tensor), host, tag), self._deadline_s)

    def receive(self, tensor: Tensor, host: int, tag: int) -> Pending:
        self._count(LinkBytes(received=tensor.nbytes))
        return MpiPending(self._communicator.Irecv(_bytes(tensor), host, tag), self._deadline_s)

    def _count(self, carried: LinkBytes) -> None:
        for each in self._counting:
            each.carried += carried

    def allreduce(self, tensor: Tensor) -> Pending:
        """The library's own, in place. How it does that, and what it sends, it does not tell: it is not in `carried`."""
        from mpi4py import MPI

        request = self._communicator.Iallreduce(MPI.IN_PLACE, tensor.numpy(), MPI.SUM)
        return MpiPending(request, self._deadline_s, alone=False)


class MpiPending:
    """An MPI request that gives the core away while it waits.

    Args:
        alone: it is nobody else's, and can be taken back when the deadline has passed.
    """

    def __init__(self, request: Any, deadline_s: float | None, alone: bool = True) -> None:
        self._request, self._deadline_s, self._alone = request, deadline_s, alone

    def wait(self) -> None:
        begin, pause = time.monotonic(), SHORT_S
        while not self._request.Test():
            if self._deadline_s is not None and time.monotonic() - begin > self._deadline_s:
                if self._alone:
                    self._request.Cancel()
                raise RunError(f"an MPI message did not come through within {self._deadline_s:g} s")
            time.sleep(pause)
            pause = min(2 * pause, LONG_S)


def gloo_reason(wrong: Exception) -> str:
    """What Gloo says went wrong, without the place in its sources."""
    lines = str(wrong).splitlines() or [repr(wrong)]
    return re.sub(r"^\[[^\]]*\] *", "", lines[0])


def _bytes(tensor: Tensor) -> Any:
    return tensor.view(torch.uint8).numpy()
