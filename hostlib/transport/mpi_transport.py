"""Messages over an MPI library, for processes started by mpirun. Loads torch and mpi4py on use."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostlib.errors import RunError
from hostlib.system.tcp_counters import ByteCounts
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.transport import Pending

if TYPE_CHECKING:
    from torch import Tensor

SUMMARY = "an MPI library"
STARTED_BY = "mpirun"
SHORT_S, LONG_S = 20e-6, 1e-3  # between polls of a message: MPI itself would busy-wait


@contextmanager
def environment() -> Iterator[LaunchEnvironment]:
    """Read mpirun's environment, and run a torch store for the duration of the block.

    Raises:
        RunError: mpi4py, or the MPI library that it needs, is missing; or torchrun started another number of processes.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RunError(
            f"--transport mpi needs mpi4py and an MPI library: pip install 'netfold[mpi]' ({error})"
        ) from error
    import torch.distributed as dist

    everybody = MPI.COMM_WORLD
    rank, size = everybody.Get_rank(), everybody.Get_size()
    if (told := os.environ.get("WORLD_SIZE", str(size))) != str(size):  # Each process would sum only its own values.
        raise RunError(f"WORLD_SIZE says {told} processes, MPI has {size}: start them with mpirun")
    alone = everybody.Split_type(MPI.COMM_TYPE_SHARED).Get_size() == size
    store, endpoint = None, None
    if rank == 0:
        host = "127.0.0.1" if alone else socket.getfqdn()
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        endpoint = (host, store.port)
    host, port = everybody.bcast(endpoint)
    yield LaunchEnvironment(rank, size, host, port, MpiConnector(everybody.Dup()))
    everybody.Barrier()  # The store is rank 0's.
    MPI.Finalize()  # Ranks exit without Python's cleanup.


@dataclass(slots=True)
class Traffic:
    """Bytes that a process's messages have carried so far.

    Between processes on one machine MPI uses shared memory, where the kernel counts nothing.
    """

    total: ByteCounts = field(default_factory=ByteCounts)


class MpiTransport:
    """Messages over an MPI communicator.

    Args:
        communicator: mpi4py.MPI.Comm whose rank i is host i; for this transport's exclusive use.
        deadline_s: how long a message may take; None for no limit, since a server may be idle.
        traffic: the process's counters, if it has other transports.
    """

    name = "mpi"
    channels = 1  # several threads would only contend for the MPI library's locks
    shares_link = False  # the MPI library takes care of sharing the link

    def __init__(self, communicator: Any, deadline_s: float | None, traffic: Traffic | None = None) -> None:
        self._communicator, self._deadline_s = communicator, deadline_s
        self._traffic = traffic or Traffic()

    @property
    def carried(self) -> ByteCounts:
        return self._traffic.total

    @property
    def control(self) -> MpiTransport:
        """The same: the MPI library takes care of small messages."""
        return self

    def send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        self._traffic.total += ByteCounts(sent=tensor.nbytes)
        return MpiPending(self._communicator.Isend(_bytes(tensor), host, tag), self._deadline_s)

    def receive(self, tensor: Tensor, host: int, tag: int) -> Pending:
        self._traffic.total += ByteCounts(received=tensor.nbytes)
        return MpiPending(self._communicator.Irecv(_bytes(tensor), host, tag), self._deadline_s)

    def allreduce(self, tensor: Tensor) -> Pending:
        """The library's own all-reduce, in place. Its messages are unknown and not counted in `carried`."""
        from mpi4py import MPI

        request = self._communicator.Iallreduce(MPI.IN_PLACE, tensor.numpy(), MPI.SUM)
        return MpiPending(request, self._deadline_s, alone=False)


class MpiConnector:
    """See Connector.

    Args:
        communicator: mpi4py.MPI.Comm of all processes.
    """

    def __init__(self, communicator: Any) -> None:
        self._communicator, self._traffic, self._calls = communicator, Traffic(), 0

    def connect(
        self, store: Any, name: str, members: Sequence[int], rank: int, deadline_s: float | None, gloo: Any = None
    ) -> MpiTransport:
        group = self._communicator.Get_group().Incl(list(members))
        among = self._communicator.Create_group(group, tag=self._calls)
        self._calls += 1
        return MpiTransport(among, deadline_s, self._traffic)


class MpiPending:
    """An MPI request that yields the core while it waits.

    Args:
        alone: no other host takes part, so the request can be cancelled when the deadline has passed.
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


def _bytes(tensor: Tensor) -> Any:
    import torch

    return tensor.view(torch.uint8).numpy()
