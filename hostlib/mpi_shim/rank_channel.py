"""A communicator's channel between a rank of an MPI program and its sidecar, and the collectives that it asks for.

A channel is a socket, and memory that both have mapped. Requests and replies are lines of text:

- `hello` -> `ok`
- `store local|remote` -> `ok HOST PORT`: where the ranks meet; rank 0's
- `join RANK SIZE HOST PORT` -> `ok BYTES`: from how many bytes on gathers are multicast; 0 if none are
- `all_reduce DTYPE ELEMENTS` -> `ok` or `refused`: sums the words in place
- `reduce_scatter DTYPE ELEMENTS` -> `ok` or `refused`: likewise; the first words are then this rank's shard
- `all_gather BYTES` -> `ok` or `refused`: so many of each rank; its own are in their place
- `broadcast BYTES ROOT` -> `ok` or `refused`
- `leave` -> `ok`

`refused` is said on all ranks alike, which go on: MPI sums then. After `failed LINE` there is nothing left to do.

Source: docs/adr/0024-mpi-ranks-have-a-sidecar.md.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.constants import default_pg_timeout

from hostlib.errors import HostlibError
from hostlib.pytorch.backend import NetfoldProcessGroup
from hostlib.pytorch.group_collectives import LEAST_BYTES, GroupCollectives
from hostlib.pytorch.reduction import Reduction
from hostlib.schedules.contract import Collective
from hostlib.transport.transport import first_line

LINE = 2048  # bytes of a request or reply, with C's final zero
DTYPES = {"float32": torch.float32, "int32": torch.int32}


class SharedMemory:
    """Memory that the shim makes and enlarges.

    Args:
        descriptor: of the memory; becomes this object's.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None

    def tensor(self, dtype: torch.dtype, elements: int) -> Tensor:
        """Return a flat tensor of the memory's first elements."""
        if self._map is None or len(self._map) < elements * dtype.itemsize:
            self._map = mmap.mmap(self._descriptor, 0)
        return torch.frombuffer(self._map, dtype=dtype, count=elements)

    def close(self) -> None:
        """Give up the memory, once no tensor of it is left."""
        self._map = None
        os.close(self._descriptor)


class RankChannel:
    """A communicator's channel, served by a thread.

    Args:
        requests: the channel's socket.
        memory: its shared memory.
    """

    def __init__(self, requests: socket.socket, memory: SharedMemory) -> None:
        self._requests, self._memory = requests, memory
        self._store: dist.TCPStore | None = None
        self._group: NetfoldProcessGroup | None = None
        self._answers: dict[str, Callable[..., str]] = {
            "hello": lambda: "ok",
            "store": self._open_store,
            "join": self._join,
            "all_reduce": self._all_reduce,
            "reduce_scatter": self._reduce_scatter,
            "all_gather": self._all_gather,
            "broadcast": self._broadcast,
            "leave": self._leave,
        }

    def serve(self) -> None:
        """Answer requests until the shim closes the channel."""
        while request := self._requests.recv(LINE):
            what, *words = request.decode().split()
            try:
                reply = self._answers[what](*words)
            except OverflowError as error:
                reply = f"refused {error}"
            except HostlibError as error:
                reply = f"failed {error}"
            except Exception as error:  # of torch and the system: the rank must hear of it, whatever it is
                reply = f"failed {type(error).__name__}: {first_line(error)}"
            self._requests.send(reply.encode()[: LINE - 1])
        self._requests.close()
        self._memory.close()

    def _open_store(self, where: str) -> str:
        host = os.environ.get("NETFOLD_ADDRESS") or ("127.0.0.1" if where == "local" else socket.getfqdn())
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return f"ok {host} {self._store.port}"

    def _join(self, rank: str, size: str, host: str, port: str) -> str:
        store = self._store or dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
        self._group = NetfoldProcessGroup(store, int(rank), int(size), default_pg_timeout)
        multicasts = self._others.multicasts(Collective.ALL_GATHER)
        return f"ok {LEAST_BYTES if multicasts else 0}"

    @property
    def _joined(self) -> NetfoldProcessGroup:
        assert self._group is not None, "the shim has ranks join first"
        return self._group

    @property
    def _others(self) -> GroupCollectives:
        assert self._joined.collectives is not None, "the shim leaves communicators of one rank to MPI"
        return self._joined.collectives

    def _all_reduce(self, dtype: str, elements: str) -> str:
        self._joined.allreduce([self._memory.tensor(DTYPES[dtype], int(elements))]).wait()
        return "ok"

    def _reduce_scatter(self, dtype: str, elements: str) -> str:
        whole = self._memory.tensor(DTYPES[dtype], int(elements))
        shard = whole.new_empty(whole.numel() // self._joined.size())
        self._joined.reduce_scatter_single(shard, whole).wait()
        whole[: shard.numel()].copy_(shard)
        return "ok"

    def _all_gather(self, part: str) -> str:
        whole = self._memory.tensor(torch.uint8, int(part) * self._joined.size())
        mine = whole.chunk(self._joined.size())[self._joined.rank()]
        return _settled(self._others.all_gather(whole, mine), whole)

    def _broadcast(self, size: str, root: str) -> str:
        values = self._memory.tensor(torch.uint8, int(size))
        return _settled(self._others.broadcast(values, int(root), takes_place=True), values)

    def _leave(self) -> str:
        if self._group is not None:
            self._group.shutdown()
        return "ok"


def _settled(future: torch.futures.Future[Tensor] | None, tensor: Tensor) -> str:
    """Wait for what the mechanism does, if it does it. Raises HostlibError: a rank is missing."""
    if future is None:
        return "refused it has no place on the switch"
    Reduction([future], lambda: [tensor]).wait()
    return "ok"
