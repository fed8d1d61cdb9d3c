"""The `torch.distributed` backend "netfold": sums and averages with a mechanism, everything else with Gloo.

Importing this module registers it; docs/torch.md describes its behaviour and setup. Environment: NETFOLD_MECHANISM
(default inagg+mcast), NETFOLD_FALLBACK (ring), NETFOLD_LANES (1), NETFOLD_CONTROLLER (URL), NETFOLD_DEADLINE_S (30),
NETFOLD_PATIENCE_S (2), NETFOLD_SILENCE_S (1.5), NETFOLD_ADDRESS (this host's address towards the switch).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import uuid
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.collectives.arguments import require_deadline, require_lanes, require_own_address, require_silence
from hostlib.collectives.bootstrap import gloo_maker, nccl_maker
from hostlib.collectives.create import create_collective
from hostlib.collectives.scheduled_collective import DEFAULT_FALLBACK
from hostlib.collectives.vendor import require_library
from hostlib.errors import HostlibError, RunError
from hostlib.fabric.job_client import DEFAULT_CONTROLLER
from hostlib.mechanisms.mechanism import DEFAULT_MECHANISM, Mechanism
from hostlib.pytorch.reduction import Reduction, require_summable
from hostlib.staging.staged_gloo import RECEIVED, staged
from hostlib.strategies.strategy import choose, parts_of, registered_strategies
from hostlib.transport.failure_detector import FailureDetector
from hostlib.transport.gloo_transport import GlooTransport
from hostlib.transport.rank_context import RankContext
from hostlib.transport.waits import PATIENCE_S, SILENCE_S

NAME = "netfold"
DEVICES = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]

Future = torch.futures.Future
Number = TypeVar("Number", int, float)


def _mechanism(text: str) -> Mechanism:
    """Parse NETFOLD_MECHANISM: a mechanism, alone or after a strategy that leaves gradients to the caller.

    Raises:
        RunError: another strategy; the message lists the legal ones.
        HostlibError: see choose.
    """
    strategy, _ = parts_of(text)
    if not strategy.spec.only_timing:
        legal = ", ".join(sorted(name for name, each in registered_strategies().items() if each.spec.only_timing))
        raise RunError(
            f"{strategy.name} needs `hostlib train`: a backend only sums the tensors it is given; "
            f"legal here are {legal}"
        )
    return choose(text).mechanism


class NetfoldProcessGroup(dist.ProcessGroup):
    """A process group whose all-reduce and reduce-scatter use a mechanism.

    Raises:
        HostlibError: an unknown mechanism or fallback, a missing library, an illegal number or address in the environment, a store
            other than torch's TCP store, or a job that cannot be joined.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> None:
        super().__init__(rank, world_size)  # type: ignore[call-arg]
        deadline_s = _number("NETFOLD_DEADLINE_S", 30.0)
        require_deadline("NETFOLD_DEADLINE_S", deadline_s)
        patience_s = _number("NETFOLD_PATIENCE_S", PATIENCE_S)
        require_deadline("NETFOLD_PATIENCE_S", patience_s)
        silence_s = _number("NETFOLD_SILENCE_S", SILENCE_S)
        require_silence("NETFOLD_SILENCE_S", silence_s)
        lanes = _number("NETFOLD_LANES", 1)
        require_lanes("NETFOLD_LANES", lanes)
        address = os.environ.get("NETFOLD_ADDRESS", "127.0.0.1")
        require_own_address("NETFOLD_ADDRESS", address)
        mechanism = _mechanism(os.environ.get("NETFOLD_MECHANISM", DEFAULT_MECHANISM))
        require_library(mechanism, "gloo")
        host, port = _endpoint(store)
        # Everything not defined below goes to Gloo: as this group's backend, and (see PASSED_ON) as a group of its own.
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, world_size, timeout)
        self._gloo = dist.ProcessGroup(store, rank, world_size)
        for group in (self, self._gloo):
            for device in DEVICES:
                group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        # The collective's thread sends in its own order, so it has a Gloo group of its own.
        another_gloo = gloo_maker(store, rank, world_size, deadline_s)
        # The store belongs to this group alone, so its keys are unique, and this group's name is, too.
        if rank == 0:
            store.set("netfold/job", f"torch-{uuid.uuid4().hex[:12]}")
        job = store.get("netfold/job").decode()
        self._last: Future[Tensor] | None = None
        self._detector = FailureDetector(host, port, job, rank, world_size, silence_s=silence_s)
        own_gloo = another_gloo()
        try:
            self._collective = create_collective(
                mechanism,
                RankContext(
                    rank,
                    world_size,
                    own_gloo,
                    self._detector,
                    deadline_s,
                    another_gloo,
                    nccl_maker(store, rank, world_size, deadline_s),
                    GlooTransport(own_gloo),
                    patience_s=patience_s,
                ),
                os.environ.get("NETFOLD_CONTROLLER", DEFAULT_CONTROLLER),
                job,
                address,
                fallback=os.environ.get("NETFOLD_FALLBACK", DEFAULT_FALLBACK),
                lanes=lanes,
            )
        except BaseException:
            self._detector.close()
            raise
        _open.add(self)

    def getBackendName(self) -> str:
        return NAME

    # ---- collectives of the mechanism -------------------------------------------------------------------------------

    def allreduce(  # type: ignore[override]
        self, tensors: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Sum or average one tensor (SUM, AVG)."""
        if len(tensors) != 1:
            raise HostlibError(f"all-reduce takes one tensor per call, not {len(tensors)}")
        return self.allreduce_coalesced(tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Sum or average several tensors, each by itself (SUM, AVG), with one work handle."""
        average = _averages("all-reduce", opts)
        return self._work([self._sum("all-reduce", tensor, average) for tensor in tensors], lambda: tensors)

    def reduce_scatter(  # type: ignore[override]
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> dist.Work:
        """Sum or average a list of tensors, one for each rank; each rank keeps its own (SUM, AVG). Sizes may differ."""
        if len(outputs) != 1 or len(inputs) != 1 or len(inputs[0]) != self.size():
            raise HostlibError(f"reduce-scatter takes one output, and as many inputs as ranks ({self.size()})")
        average = _averages("reduce-scatter", opts)
        parts = [part.detach().reshape(-1) for part in inputs[0]]
        sizes = [part.numel() for part in parts]
        first = sum(sizes[: self.rank()])
        total, keep = self._share(outputs[0], torch.cat(parts), first, sizes[self.rank()], average)
        return self._work([total], lambda: [keep()])

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Sum or average a tensor of equal shares, one for each rank; each rank keeps its own (SUM, AVG)."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """As reduce_scatter_single for several tensors, with one work handle."""
        average = _averages("reduce-scatter", opts)
        sums, keeps = [], []
        for output, whole in zip(outputs, inputs, strict=True):
            size = whole.numel() // self.size()
            if size * self.size() != whole.numel():
                raise HostlibError(f"reduce-scatter: {whole.numel()} elements are not {self.size()} equal shares")
            total, keep = self._share(output, whole.detach().reshape(-1).clone(), self.rank() * size, size, average)
            sums.append(total)
            keeps.append(keep)
        return self._work(sums, lambda: [keep() for keep in keeps])

    # The names of these methods before torch 2.13.
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def _share(
        self, output: Tensor, whole: Tensor, first: int, size: int, average: bool
    ) -> tuple[Future[Tensor], Callable[[], Tensor]]:
        """Sum a copy of which this rank keeps its share: the fabric has no reduce-scatter."""
        require_summable("reduce-scatter", output)
        if output.numel() != size or output.dtype != whole.dtype:
            raise HostlibError(
                f"reduce-scatter: the output has {output.numel()} elements of {output.dtype}; "
                f"legal: {size} of {whole.dtype}, this rank's share"
            )

        def keep() -> Tensor:
            if output.is_cuda:  # Here the current stream is the future's own.
                output.record_stream(torch.cuda.current_stream(output.device))
            with torch.no_grad():
                return output.copy_(whole[first : first + size].view(output.shape))

        return self._sum("reduce-scatter", whole, average), keep

    def _sum(self, what: str, tensor: Tensor, average: bool) -> Future[Tensor]:
        require_summable(what, tensor)
        self._last = self._collective.allreduce(tensor, average)
        return self._last

    @staticmethod
    def _work(sums: list[Future[Tensor]], finish: Callable[[], list[Tensor]]) -> dist.Work:
        if not sums:
            nothing: Future[Tensor] = Future()
            nothing.set_result(torch.empty(0))
            sums = [nothing]
        return Reduction(sums, finish)

    # ---- shutdown ---------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the controller's job once the other ranks have the results they asked for."""
        self._leave(graceful=True)

    def abort(self) -> None:
        """Leave at once."""
        self._leave(graceful=False)

    def _leave(self, graceful: bool) -> None:
        if self in _open:
            _open.discard(self)
            self._collective.close(graceful)
            self._detector.close()


# torch 2.13 calls methods that a Python class does not override with the interpreter's lock held. Gloo, whose threads
# need that lock to release a tensor, then blocks forever. So these are passed on here, without the lock.
PASSED_ON = (
    "allgather",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "all_to_all_single",
    "alltoall_base",
    "barrier",
    "broadcast",
    "recv",
    "recv_anysource",
    "send",
)


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: NetfoldProcessGroup, *arguments: Any, **options: Any) -> Any:
        call = partial(getattr(self._gloo, name), **options)
        return staged(name, call, arguments) if name in RECEIVED else call(*arguments)

    return method


for _name in PASSED_ON:
    setattr(NetfoldProcessGroup, _name, _passed_on(_name))


_open: weakref.WeakSet[NetfoldProcessGroup] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Leave the controller's jobs at exit, for scripts that end without `destroy_process_group`."""
    for group in list(_open):
        # Nobody waits any more for operations in progress.
        over = group._last is None or group._last.done()
        with contextlib.suppress(HostlibError):
            group._leave(graceful=over)


def _averages(what: str, opts: Any) -> bool:
    operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp.op
    if operation not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        name = str(operation).rpartition(".")[2]
        raise HostlibError(f"{what}: backend netfold does not support {name} (legal: SUM, AVG)")
    return bool(operation == dist.ReduceOp.AVG)


def _number(name: str, default: Number) -> Number:
    text = os.environ.get(name, str(default))
    try:
        value = type(default)(text)
    except ValueError:
        value = type(default)(0)
    if not value > 0:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise HostlibError(f"{name} must be {kind} above 0, not {text!r}")
    return value


def _endpoint(store: dist.Store) -> tuple[str, int]:
    """Host and port of the torch store, which also holds the ranks' heartbeats."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        raise HostlibError(
            f"backend netfold needs torch's TCP store, not {type(store).__name__} "
            "(legal: init_method env://, as torchrun has it, or tcp://HOST:PORT)"
        )
    return store.host, store.port


def _create(store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> NetfoldProcessGroup:
    return NetfoldProcessGroup(store, rank, world_size, timeout)


if NAME.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(NAME, _create, devices=DEVICES)
