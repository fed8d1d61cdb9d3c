"""The `torch.distributed` backend "netfold": sums and shards by a mechanism, everything else by Gloo.

Importing this module registers it; docs/torch.md describes its behaviour, its setup and the variables of its
environment.
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
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.errors import HostlibError, RunError
from hostlib.mechanisms.mechanism import DEFAULT_MECHANISM, Mechanism
from hostlib.pytorch.flight_recorder import flight_recorder
from hostlib.pytorch.group_collectives import GroupCollectives
from hostlib.pytorch.group_operation import begins
from hostlib.pytorch.group_settings import GroupSettings
from hostlib.pytorch.group_traffic import GLOO, GroupTraffic
from hostlib.pytorch.reduction import Reduction, require_dense, require_summable
from hostlib.pytorch.sum_streams import SumStreams
from hostlib.pytorch.torch_errors import torch_errors
from hostlib.schedules.contract import Collective
from hostlib.staging.request import DTYPES
from hostlib.staging.staged_gloo import RECEIVED, staged
from hostlib.strategies.strategy import choose, parts_of, registered_strategies

NAME = "netfold"
DEVICES = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
AVERAGES = {dist.ReduceOp.SUM: False, dist.ReduceOp.AVG: True}  # what mechanisms compute

Future = torch.futures.Future
Finish = Callable[[], Tensor]


class NetfoldProcessGroup(dist.ProcessGroup):
    """A process group whose sums, shards and broadcasts use a mechanism, each kind set up at its first use.

    Raises:
        HostlibError: an unknown mechanism or fallback, a missing library, an illegal number or address in the
            environment, or a store other than torch's TCP store. It is a torch.distributed.DistBackendError, too, as
            all errors of the group are.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> None:
        super().__init__(rank, world_size)  # type: ignore[call-arg]
        with torch_errors():
            mechanism = _mechanism(os.environ.get("NETFOLD_MECHANISM", DEFAULT_MECHANISM))
            settings = GroupSettings.of_environment(mechanism, timeout)
            host, port = _endpoint(store)
            self.recorder = flight_recorder()
        self._strict, self._mechanism, self.timeout_s = settings.strict, settings.mechanism, settings.deadline_s
        self._traffic = GroupTraffic(self)
        # Everything not defined below goes to Gloo: as this group's backend, and (see PASSED_ON) as a group of its own.
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, world_size, timeout)
        self._gloo = dist.ProcessGroup(store, rank, world_size)
        for group in (self, self._gloo):
            for device in DEVICES:
                group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._sums: SumStreams | None = None
        self._collectives: GroupCollectives | None = None
        if world_size == 1:
            return
        # The store belongs to this group alone, so its keys are unique, and this group's name is, too.
        if rank == 0:
            store.set("netfold/job", f"torch-{uuid.uuid4().hex[:12]}")
        job = store.get("netfold/job").decode()
        self._sums = SumStreams(settings, host, port, job, rank, world_size)
        self._collectives = GroupCollectives(settings, host, port, job, rank, world_size, self._sums.detector)
        if self.recorder is not None:
            another = dist.TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
            self._asked = dist.PrefixStore(job, another)
            self.recorder.watch(self._asked)
        _open.add(self)

    def getBackendName(self) -> str:
        return NAME

    def _set_group_name(self, name: str) -> None:  # torch calls it once the group is made
        super()._set_group_name(name)  # type: ignore[arg-type]
        self._traffic.name = name

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the fabric; see docs/failures.md."""
        return [failure for each in self._kinds for failure in each.failures]

    @property
    def traffic(self) -> dict[str, dict[str, dict[str, int]]]:
        """Calls and bytes of this rank so far, by operation, then by means: "fabric", "hosts" (the mechanism, past the
        fabric) or "gloo". What the hosts carried for a fabric that had failed is in `failures`.
        """
        return self._traffic.as_json()

    @property
    def collectives(self) -> GroupCollectives | None:
        """What the mechanism does beside sums; None in a group of one rank."""
        return self._collectives

    @property
    def _kinds(self) -> list[SumStreams | GroupCollectives]:
        """What the mechanism does; in the order in which all ranks close them. The sums have the group's heartbeats."""
        return [each for each in (self._collectives, self._sums) if each is not None]

    # ---- collectives of the mechanism -------------------------------------------------------------------------------

    @begins("all_reduce")
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Reduce one tensor: SUM and AVG with the mechanism; what it does not sum goes to Gloo."""
        if len(tensors) != 1:
            raise HostlibError(f"all-reduce takes one tensor per call, not {len(tensors)}")
        return self._allreduce(tensors, opts)

    @begins("allreduce_coalesced")
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """As allreduce for several tensors, each by itself, with one work handle."""
        return self._allreduce(tensors, opts)

    def _allreduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        operation = _operation(opts)
        return self._work([self._reduce("all-reduce", tensor, operation) for tensor in tensors])

    @begins("reduce_scatter")
    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> dist.Work:
        """Reduce a list of tensors, one for each rank; each rank keeps its own. Sizes may differ."""
        if len(outputs) != 1 or len(inputs) != 1 or len(inputs[0]) != self.size():
            raise HostlibError(f"reduce-scatter takes one output, and as many inputs as ranks ({self.size()})")
        parts = [part.detach().reshape(-1) for part in inputs[0]]
        sizes = [part.numel() for part in parts]
        whole, operation = torch.cat(parts), _operation(opts)
        if len(set(sizes)) == 1:
            return self._work([self._shard(outputs[0], whole, operation)])
        first = sum(sizes[: self.rank()])
        return self._work([self._share(outputs[0], whole, first, sizes[self.rank()], operation)])

    @begins("reduce_scatter")
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Reduce a tensor of equal shares, one for each rank; each rank keeps its own."""
        return self._shards([output], [input], opts)

    @begins("reduce_scatter_tensor_coalesced")
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """As reduce_scatter_single for several tensors, with one work handle."""
        return self._shards(outputs, inputs, opts)

    def _shards(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> dist.Work:
        operation = _operation(opts)
        return self._work(
            [self._shard(output, whole, operation) for output, whole in zip(outputs, inputs, strict=True)]
        )

    # The names of these methods before torch 2.13.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _shard(self, output: Tensor, whole: Tensor, operation: Any) -> tuple[Future[Any], Finish]:
        """Reduce a tensor of equal shares: by the mechanism's reduce-scatter, or of the sum each rank keeps its own."""
        size = whole.numel() // self.size()
        if size * self.size() != whole.numel():
            raise HostlibError(f"reduce-scatter: {whole.numel()} elements are not {self.size()} equal shares")
        if self._collectives is not None and operation.op in AVERAGES:
            require_summable("reduce-scatter", output)
            require_dense("reduce-scatter", whole)
            divides = AVERAGES[operation.op] and not whole.is_floating_point()
            future = self._collectives.reduce_scatter(output, whole, AVERAGES[operation.op] and not divides)
            if future is not None:
                self._traffic.count(self._mechanism, Collective.REDUCE_SCATTER, whole)
                return future, lambda: _quotient(output, self.size()) if divides else output
        copy = whole.detach().reshape(-1).clone()
        return self._share(output, copy, self.rank() * size, size, operation)

    def _share(
        self, output: Tensor, whole: Tensor, first: int, size: int, operation: Any
    ) -> tuple[Future[Any], Finish]:
        """Reduce a copy of which this rank keeps its share."""
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

        return self._reduce("reduce-scatter", whole, operation)[0], keep

    # ---- gathers and broadcasts, which the mechanism does if the switch multicasts for it ---------------------------

    @begins("all_gather")
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Gather the ranks' tensors, which have one size, in one tensor."""
        return self._gathered([output], [input]) or self._by_gloo("_allgather_base", output, input, opts)

    # The name of this method before torch 2.13.
    _allgather_base = all_gather_single

    @begins("all_gather_into_tensor_coalesced")
    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """As all_gather_single for several tensors, with one work handle."""
        return self._gathered(outputs, inputs) or self._by_gloo(
            "allgather_into_tensor_coalesced", outputs, inputs, opts
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @begins("all_gather")
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Gather the ranks' tensors, each in a tensor of its own."""
        alike = len(outputs) == len(inputs) == 1 and len(outputs[0]) == self.size()
        if alike and all(each.shape == inputs[0].shape and each.dtype == inputs[0].dtype for each in outputs[0]):
            whole = inputs[0].new_empty(self.size() * inputs[0].numel())
            future = None if self._collectives is None else self._collectives.all_gather(whole, inputs[0])
            if future is not None:
                self._traffic.count(self._mechanism, Collective.ALL_GATHER, whole)
                return self._work([(future, lambda: _dealt(whole, outputs[0]))])
        return self._by_gloo("allgather", outputs, inputs, opts)

    @begins("broadcast")
    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Give all ranks a rank's tensor."""
        if len(tensors) == 1 and opts.rootTensor == 0 and self._collectives is not None:
            future = self._collectives.broadcast(tensors[0], opts.rootRank)
            if future is not None:
                self._traffic.count(self._mechanism, Collective.BROADCAST, tensors[0])
                return self._work([(future, lambda: tensors[0])])
        return self._by_gloo("broadcast", tensors, opts)

    def _gathered(self, outputs: list[Tensor], inputs: list[Tensor]) -> dist.Work | None:
        """Gather some tensors at least by the mechanism; None if it gathers none of them."""
        if self._collectives is None:
            return None
        pairs = list(zip(outputs, inputs, strict=True))
        futures = [self._collectives.all_gather(output, tensor) for output, tensor in pairs]
        if not any(futures):
            return None
        parts: list[tuple[Future[Any], Finish]] = []
        for (output, tensor), future in zip(pairs, futures, strict=True):
            if future is not None:
                self._traffic.count(self._mechanism, Collective.ALL_GATHER, output)
            coming = future or self._by_gloo("_allgather_base", output, tensor).get_future()
            parts.append((coming, partial(_itself, output)))
        return self._work(parts)

    def _by_gloo(self, name: str, *arguments: Any) -> dist.Work:
        given = arguments if arguments[-1] is not None else arguments[:-1]
        self._traffic.add(GLOO_TOO[name], GLOO, arguments[0])
        call = getattr(self._gloo, name)
        work: dist.Work = staged(name, call, given) if name in RECEIVED else call(*given)
        return work

    def _reduce(self, what: str, tensor: Tensor, operation: Any) -> tuple[Future[Any], Finish]:
        """Begin to reduce a tensor: its future, and what computes the result once that is complete."""
        if operation.op == dist.ReduceOp.AVG and not (
            tensor.is_floating_point() or tensor.is_complex() or self._strict
        ):
            future, finish = self._reduce(what, tensor, dist.ReduceOp(dist.ReduceOp.SUM))
            return future, lambda: _quotient(finish(), self.size())
        summed = operation.op in AVERAGES and tensor.dtype in DTYPES and tensor.layout == torch.strided
        if self._strict and operation.op not in AVERAGES:
            name = str(operation.op).rpartition(".")[2]
            raise HostlibError(f"{what}: backend netfold does not support {name} (legal: SUM, AVG)")
        if summed or self._strict:
            require_summable(what, tensor)
            if self._sums is not None:
                future = self._sums.allreduce(tensor, AVERAGES[operation.op])
                self._traffic.count(self._mechanism, Collective.ALL_REDUCE, tensor)
                return future, lambda: tensor
        if tensor.layout == torch.strided:
            require_dense(what, tensor)
        self._traffic.add(what.replace("-", "_"), GLOO, tensor)
        return self._reduce_by_gloo(tensor, operation)

    def _reduce_by_gloo(self, tensor: Tensor, operation: Any) -> tuple[Future[Any], Finish]:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        if tensor.layout != torch.strided or tensor.is_contiguous():
            return self._gloo.allreduce([tensor], options).get_future(), lambda: tensor
        copy = tensor.detach().contiguous()
        return self._gloo.allreduce([copy], options).get_future(), lambda: tensor.detach().copy_(copy)

    @staticmethod
    def _work(parts: list[tuple[Future[Any], Finish]]) -> dist.Work:
        if not parts:
            nothing: Future[Any] = Future()
            nothing.set_result(None)
            return Reduction([nothing], lambda: [])
        return Reduction([future for future, _ in parts], lambda: [finish() for _, finish in parts])

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
            self._traffic.end(self.failures)
            if self.recorder is not None:
                self.recorder.unwatch(self._asked)
            with torch_errors():
                for each in self._kinds:
                    each.close(graceful)


# torch 2.13 calls methods that a Python class does not override with the interpreter's lock held. Gloo, whose threads
# need that lock to release a tensor, then blocks forever. So these are passed on here, without the lock.
PASSED_ON = {
    "all_to_all_single": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
    "gather": "gather",
    "recv": "recv",
    "recv_anysource": "recv",
    "reduce": "reduce",
    "scatter": "scatter",
    "send": "send",
}
# Gloo's names of what a mechanism does as well.
GLOO_TOO = {
    "_allgather_base": "all_gather",
    "allgather": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "broadcast": "broadcast",
}


def _passed_on(name: str) -> Callable[..., Any]:
    @begins(PASSED_ON[name])
    def method(self: NetfoldProcessGroup, *arguments: Any, **options: Any) -> Any:
        # The first argument has the tensors that a rank receives into, or sends. Only a root receives what is gathered.
        self._traffic.add(PASSED_ON[name], GLOO, *arguments[1:2] if name == "gather" else arguments[:1])
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
        over = all(each.done for each in group._kinds)
        with contextlib.suppress(HostlibError):
            group._leave(graceful=over)


def _quotient(total: Tensor, divisor: int) -> Tensor:
    """Divide integers in place as NCCL does: without a fraction."""
    with torch.no_grad():
        return total.div_(divisor, rounding_mode="trunc")


def _dealt(whole: Tensor, outputs: list[Tensor]) -> Tensor:
    with torch.no_grad():
        for output, part in zip(outputs, whole.chunk(len(outputs)), strict=True):
            output.copy_(part.view(output.shape))
    return whole


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _operation(opts: Any) -> Any:
    return dist.ReduceOp(dist.ReduceOp.SUM) if opts is None else opts.reduceOp


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
