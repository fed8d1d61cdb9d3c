"""`torch.distributed` backend "netfold": all-reduce by a mechanism, everything else by Gloo.

Importing this module registers it. Environment: NETFOLD_MECHANISM (default inagg+mcast), NETFOLD_CONTROLLER (URL),
NETFOLD_DEADLINE_S, NETFOLD_ADDRESS (this host's address towards the switch), MASTER_ADDR and MASTER_PORT as usual.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hostlib.collective import Group, create_collective
from hostlib.errors import HostlibError
from hostlib.join import DEFAULT_CONTROLLER
from hostlib.liveness import Liveness
from hostlib.registry import choose

NAME = "netfold"


class Reduction(dist.Work):
    """An all-reduce under way. Unlike torch's own work over a future, waiting for it raises what went wrong."""

    def __init__(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._future


class NetfoldProcessGroup(dist.ProcessGroup):
    """A process group whose all-reduce goes through a mechanism.

    Raises:
        HostlibError: unknown mechanism, or the controller cannot be joined.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> None:
        super().__init__(rank, world_size)
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, world_size, timeout)
        deadline_s = float(os.environ.get("NETFOLD_DEADLINE_S", "30"))
        choice = choose(os.environ.get("NETFOLD_MECHANISM", "inagg+mcast"))
        if rank == 0:
            store.set("netfold/job", f"torch-{uuid.uuid4().hex[:12]}")
        job = store.get("netfold/job").decode()
        liveness = Liveness(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), job, rank, world_size)
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
        operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp.op
        if operation not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise HostlibError(f"backend netfold sums and averages; {operation} is neither (legal: SUM, AVG)")
        if len(tensors) != 1:
            raise HostlibError("backend netfold reduces one tensor per call")
        done = self._collective.allreduce(tensors[0], operation == dist.ReduceOp.AVG)
        return Reduction(done.then(lambda f: [f.value()]))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        for tensor in tensors[:-1]:
            self.allreduce([tensor], opts)
        return self.allreduce(tensors[-1:], opts)  # One thread, in order: the last one is done last.

    def shutdown(self) -> None:
        """Leave the controller's job."""
        self._collective.close()
        self._liveness.close()


# What the fabric cannot do goes to Gloo.
PASSED_ON = (
    "broadcast",
    "allgather",
    "_allgather_base",
    "allgather_into_tensor_coalesced",
    "gather",
    "scatter",
    "reduce",
    "reduce_scatter",
    "alltoall",
    "alltoall_base",
    "barrier",
    "send",
    "recv",
)


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: NetfoldProcessGroup, *arguments: Any, **options: Any) -> Any:
        return getattr(self._gloo, name)(*arguments, **options)

    return method


for _name in PASSED_ON:
    setattr(NetfoldProcessGroup, _name, _passed_on(_name))


def _create(store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> NetfoldProcessGroup:
    return NetfoldProcessGroup(store, rank, world_size, timeout)


if NAME.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
