"""`torch.distributed` backend "netfold": all-reduce by a mechanism, everything else by Gloo.

Importing this module registers it. Environment: NETFOLD_MECHANISM (default inagg+mcast), NETFOLD_CONTROLLER (URL),
NETFOLD_DEADLINE_S, NETFOLD_ADDRESS (this host's address towards the switch), MASTER_ADDR and MASTER_PORT as usual.
"""

from __future__ import annotations

import os
import uuid
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

from hostlib.collective import Group, create_collective
from hostlib.errors import HostlibError
from hostlib.join import DEFAULT_CONTROLLER
from hostlib.liveness import Liveness
from hostlib.registry import choose

NAME = "netfold"


class NetfoldProcessGroup(dist.ProcessGroup):
    """A process group whose all-reduce goes through a mechanism.

    Raises:
        HostlibError: unknown mechanism, or the controller cannot be joined.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> None:
        super().__init__(rank, world_size)
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, world_size, timeout)
        deadline_s = float(os.environ.get("NETFOLD_DEADLINE_S", "30"))
        liveness = Liveness(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), rank, world_size)
        choice = choose(os.environ.get("NETFOLD_MECHANISM", "inagg+mcast"))
        if rank == 0:
            store.set("netfold/job", f"torch-{uuid.uuid4().hex[:12]}")
        job = store.get("netfold/job").decode()
        self._gloo, self._liveness = gloo, liveness
        self._collective = create_collective(
            choice.mechanism,
            Group(rank, world_size, gloo, liveness, deadline_s),
            os.environ.get("NETFOLD_CONTROLLER", DEFAULT_CONTROLLER),
            job,
            os.environ.get("NETFOLD_ADDRESS", "127.0.0.1"),
        )

    def getBackendName(self) -> str:
        return NAME

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """SUM and AVG of one tensor through the mechanism."""
        operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        if operation not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise HostlibError(f"backend netfold sums and averages; {operation} is neither (legal: SUM, AVG)")
        if len(tensors) != 1:
            raise HostlibError("backend netfold reduces one tensor per call")
        done = self._collective.allreduce(tensors[0], operation == dist.ReduceOp.AVG)
        return _create_work_from_future(done.then(lambda f: [f.value()]))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        for tensor in tensors[:-1]:
            self.allreduce([tensor], opts)
        return self.allreduce(tensors[-1:], opts)  # One thread, in order: the last one is done last.

    # What the fabric cannot do goes to Gloo.
    def broadcast(self, *arguments: Any) -> Any:
        return self._gloo.broadcast(*arguments)

    def allgather(self, *arguments: Any) -> Any:
        return self._gloo.allgather(*arguments)

    def _allgather_base(self, *arguments: Any) -> Any:
        return self._gloo._allgather_base(*arguments)

    def allgather_into_tensor_coalesced(self, *arguments: Any) -> Any:
        return self._gloo.allgather_into_tensor_coalesced(*arguments)

    def gather(self, *arguments: Any) -> Any:
        return self._gloo.gather(*arguments)

    def scatter(self, *arguments: Any) -> Any:
        return self._gloo.scatter(*arguments)

    def reduce(self, *arguments: Any) -> Any:
        return self._gloo.reduce(*arguments)

    def reduce_scatter(self, *arguments: Any) -> Any:
        return self._gloo.reduce_scatter(*arguments)

    def alltoall(self, *arguments: Any) -> Any:
        return self._gloo.alltoall(*arguments)

    def alltoall_base(self, *arguments: Any) -> Any:
        return self._gloo.alltoall_base(*arguments)

    def barrier(self, *arguments: Any) -> Any:
        return self._gloo.barrier(*arguments)

    def send(self, *arguments: Any) -> Any:
        return self._gloo.send(*arguments)

    def recv(self, *arguments: Any) -> Any:
        return self._gloo.recv(*arguments)

    def shutdown(self) -> None:
        """Leave the controller's job."""
        self._collective.close()
        self._liveness.close()


def _create(store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> NetfoldProcessGroup:
    return NetfoldProcessGroup(store, rank, world_size, timeout)


if NAME.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
