"""Exchange parts of layers' gradients: between all ranks, or with the server that owns the layer."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from hostlib.errors import HostlibError
from hostlib.pytorch.step_times import StepTimes
from hostlib.strategies.common.linear_factors import Connected, Form, Shape, connected_layers
from hostlib.strategies.trainer import TrainerContext
from hostlib.system.serial_executor import SerialExecutor
from hostlib.transport.rank_context import RankContext
from hostlib.transport.refusals import refuse
from hostlib.transport.transport import MulticastTransport, Pending, Transport, settle

CLOSE_S = 2.0
HEADER_TAG = 0  # tag of control messages to servers; layers have higher tags
END = -1


class LayerExchange(Protocol):
    """The interface of an exchange, as trainers use it.

    Attributes:
        notes: about itself, for a run's result.
    """

    form: Form

    @property
    def notes(self) -> dict[str, Any]: ...

    def stats(self) -> dict[str, int] | None:
        """The counters of its packet engine; None without one."""
        ...

    def step(self, layers: list[Connected]) -> None:
        """Prepare for a backward pass.

        Args:
            layers: all of the model's; those that the forward pass did not use take no part.
        """
        ...

    def begin(self, number: int, layer: Connected, times: StepTimes, bucket: int) -> Future[Tensor]:
        """Start a layer after its backward pass; the future holds the gradient averaged over all ranks, flat."""
        ...

    def close(self, graceful: bool) -> None: ...


class Waiting:
    """One thread that waits for exchanges in the order in which they were begun."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._sequence = SerialExecutor("exchange")
        self._broken: Exception | None = None

    def put(self, finish: Callable[[], Tensor]) -> Future[Tensor]:
        future: Future[Tensor] = Future()
        since = time.monotonic()

        def job() -> None:
            try:
                if self._broken is None:
                    future.set_result(finish())
            except HostlibError as error:
                self._broken = error
            except Exception as error:
                self._broken = self._context.explain(since, error)
            if self._broken is not None:
                refuse(future, self._broken)

        self._sequence.put(job)
        return future

    def close(self, graceful: bool) -> None:
        self._sequence.close(self._context.deadline_s if graceful else CLOSE_S)


class Way(Protocol):
    """How parts get from every rank to every other."""

    @property
    def notes(self) -> dict[str, Any]: ...

    def stats(self) -> dict[str, int] | None: ...

    def begin(self, parts: list[Tensor], mine: int, number: int) -> list[Pending]:
        """Send this rank's part and receive the others into their places in `parts`; `number`: of the layer."""
        ...

    def finished(self) -> None:
        """Note that all parts have been sent and received."""
        ...

    def close(self, graceful: bool) -> None: ...


class ByPeers:
    """One message from each rank to each other rank."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def notes(self) -> dict[str, Any]:
        return {}

    def stats(self) -> dict[str, int] | None:
        return None

    def begin(self, parts: list[Tensor], mine: int, number: int) -> list[Pending]:
        tag, others = HEADER_TAG + 1 + number, [rank for rank in range(len(parts)) if rank != mine]
        messages = [self._transport.receive(parts[rank], rank, tag) for rank in others]
        return messages + [self._transport.send(parts[mine], rank, tag) for rank in others]

    def finished(self) -> None:
        """Do nothing: messages need no acknowledgement."""

    def close(self, graceful: bool) -> None:
        """Do nothing: the group's creator closes it."""


class BySwitch:
    """One message from each rank to the switch, which multicasts it."""

    def __init__(self, multicast: MulticastTransport) -> None:
        self._multicast = multicast

    @property
    def notes(self) -> dict[str, Any]:
        return {"fabric_failures": self._multicast.failures}

    def stats(self) -> dict[str, int] | None:
        return self._multicast.stats()

    def begin(self, parts: list[Tensor], mine: int, number: int) -> list[Pending]:
        messages = [self._multicast.receive(rank, part) for rank, part in enumerate(parts) if rank != mine]
        self._multicast.send(mine, parts[mine])
        return messages

    def finished(self) -> None:
        self._multicast.complete()

    def close(self, graceful: bool) -> None:
        if graceful:
            self._multicast.settle()
        self._multicast.close()


class Broadcast:
    """Every rank's part goes to every other rank; all sum them in rank order."""

    def __init__(self, context: RankContext, way: Way, form: Form) -> None:
        self.form = form
        self._context, self._way = context, way
        self._waiting = Waiting(context)

    @property
    def notes(self) -> dict[str, Any]:
        return self._way.notes

    def stats(self) -> dict[str, int] | None:
        return self._way.stats()

    def step(self, layers: list[Connected]) -> None:
        """Do nothing: no server needs to be told."""

    def begin(self, number: int, layer: Connected, times: StepTimes, bucket: int) -> Future[Tensor]:
        mine, shape = self.form.encode(layer), _shape(layer, self.form)
        parts = [torch.empty_like(mine) for _ in range(self._context.world_size)]
        parts[self._context.rank] = mine
        span = times.begin(bucket, mine.nbytes)
        messages = self._way.begin(parts, self._context.rank, number)

        def finish() -> Tensor:
            settle(messages)
            self._way.finished()
            made = self.form.average(shape, parts)
            span.done_ns = time.perf_counter_ns()
            return made

        return self._waiting.put(finish)

    def close(self, graceful: bool) -> None:
        self._waiting.close(graceful)
        self._way.close(graceful)


class Owners:
    """Every rank sends its part to the server that owns the layer, which returns the gradient."""

    def __init__(self, context: RankContext, transport: Transport, form: Form, servers: int) -> None:
        self.form = form
        self._context, self._transport, self._servers = context, transport, servers
        self._layers = 0
        self._waiting = Waiting(context)
        self._announced: list[Pending] = []

    @property
    def notes(self) -> dict[str, Any]:
        return {}

    def stats(self) -> dict[str, int] | None:
        return None

    def step(self, layers: list[Connected]) -> None:
        self._layers = len(layers)
        if self._context.rank == 0:
            self._tell([len(layers), *(layer.vectors for layer in layers)])

    def _tell(self, header: list[int]) -> None:
        settle(self._announced)
        announcement = torch.tensor(header)
        hosts = range(self._context.world_size, self._context.world_size + self._servers)
        self._announced = [self._transport.send(announcement, host, HEADER_TAG) for host in hosts]

    def begin(self, number: int, layer: Connected, times: StepTimes, bucket: int) -> Future[Tensor]:
        mine, shape = self.form.encode(layer), _shape(layer, self.form)
        made = torch.empty(shape.elements)
        span = times.begin(bucket, mine.nbytes + made.nbytes)
        owner, tag = self._context.world_size + number % self._servers, HEADER_TAG + 1 + number
        messages = [self._transport.receive(made, owner, tag), self._transport.send(mine, owner, tag)]

        def finish() -> Tensor:
            settle(messages)
            span.done_ns = time.perf_counter_ns()
            return made

        return self._waiting.put(finish)

    def close(self, graceful: bool) -> None:
        self._waiting.close(graceful)
        if graceful:
            self._tell([END] + [0] * self._layers)
            settle(self._announced)


def serve(context: TrainerContext, number: int, form: Form, servers: int) -> None:
    """Run a server for Owners until all workers have closed theirs.

    Raises:
        RunError, RuntimeError: a message did not come through.
    """
    rank_context, transport = context.rank_context, context.another_transport()
    shapes = [_shape(layer, form) for layer in connected_layers(context.model)]
    header = torch.empty(1 + len(shapes), dtype=torch.int64)
    sent: list[Pending] = []
    while True:
        transport.receive(header, 0, HEADER_TAG).wait()
        first, *vectors = header.tolist()
        if first == END:
            break
        passed = [(shape, count) for shape, count in zip(shapes, vectors, strict=True) if count]
        mine = [(layer, *each) for layer, each in enumerate(passed) if layer % servers == number]
        parts = {
            layer: [form.empty(shape, count) for _ in range(rank_context.world_size)] for layer, shape, count in mine
        }
        coming = {
            layer: [transport.receive(part, rank, HEADER_TAG + 1 + layer) for rank, part in enumerate(of_ranks)]
            for layer, of_ranks in parts.items()
        }
        for layer, shape, _ in mine:
            settle(coming[layer])
            made = form.average(shape, parts[layer])
            sent += [transport.send(made, rank, HEADER_TAG + 1 + layer) for rank in range(rank_context.world_size)]
        settle(sent)
        sent.clear()
    for rank in range(1, rank_context.world_size):
        transport.receive(header, rank, HEADER_TAG).wait()


def _shape(layer: Connected, form: Form) -> Shape:
    return replace(layer.shape, bias=layer.shape.bias and form.with_bias)
