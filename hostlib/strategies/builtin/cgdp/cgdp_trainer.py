"""CPU-GPU data-parallel training: chunks of layers are accumulated during the backward pass.

All gradients are in one flat tensor, in the order of the backward pass, so a chunk of any size is a slice of it,
without copies.

Source: "Involving CPUs into Multi-GPU Deep Learning", sections 3.1, 4.1 and 4.2.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hostlib.pytorch.step_times import Span, StepTimes
from hostlib.strategies.builtin.cgdp.cgdp_options import Options
from hostlib.strategies.builtin.cgdp.cost_model import Search, partition
from hostlib.strategies.common.gradient_hooks import when_complete
from hostlib.strategies.trainer import DataParallel, TrainerContext

NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm)
NS_PER_S = 1e9


def trained_layers(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters of each layer, in the model's order.

    A normalisation belongs to the layer before it, a shared parameter to the first module that has it.
    """
    layers: list[list[nn.Parameter]] = []
    known: set[nn.Parameter] = set()
    for module in model.modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad and p not in known]
        known.update(own)
        if own and layers and isinstance(module, NORMALISATIONS):
            layers[-1] += own
        elif own:
            layers.append(own)
    return layers


@dataclass(slots=True)
class ChunkBuffer:
    """A chunk: a slice of the flat tensor.

    Attributes:
        left: number of its parameters without a gradient in this backward pass.
    """

    values: Tensor
    parameters: int
    left: int = 0


@dataclass(slots=True)
class Backward:
    """A backward pass in progress: chunks leave in order, each as soon as its gradients are ready."""

    parts: list[ChunkBuffer]
    send: Callable[[int, Tensor], Any]
    sent: list[Any] = field(default_factory=list)

    def ready(self, part: int) -> None:
        """Note that one more gradient of the chunk is ready."""
        self.parts[part].left -= 1
        while len(self.sent) < len(self.parts) and self.parts[len(self.sent)].left == 0:
            self._send()

    def end(self) -> list[Any]:
        """End the pass; returns all futures. Parameters that the loss does not depend on get zero gradients."""
        while len(self.sent) < len(self.parts):
            self._send()
        return self.sent

    def _send(self) -> None:
        self.sent.append(self.send(len(self.sent), self.parts[len(self.sent)].values))


class HostAccumulating(DataParallel):
    """A rank's training steps under cgdp.

    Attributes:
        search: for a chunk size; None if it is given.
        gradients: all of them, flat.
        parts: the chunks, in backward order.
    """

    def __init__(self, context: TrainerContext, options: Options) -> None:
        super().__init__(context)
        layers = trained_layers(context.model)
        self._layers = layers[::-1]
        self.gradients, self._ends = _flattened(self._layers)
        self._backward: Backward | None = None
        self.parts: list[ChunkBuffer] = []
        self._part_of: dict[nn.Parameter, int] = {}
        self._parameters = list(self._part_of_each(1))
        for number, parameter in enumerate(self._parameters):
            when_complete(parameter, self._ready, number)
        self.search = Search(options.step, options.range, options.interval, len(layers)) if not options.chunk else None
        self.cut(options.chunk or 1)
        self._steps, self._since_ns = 0, 0

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        self.gradients.zero_()
        loss = self.context.loss(self.model(inputs), labels)
        self.state.step = times = StepTimes(time.perf_counter_ns())
        for part in self.parts:
            part.left = part.parameters
        self._backward = Backward(self.parts, self._send)
        loss.backward()
        times.backward_ended()
        for future, span in zip(self._backward.end(), times.spans, strict=True):
            future.wait()
            span.done_ns = span.done_ns or time.perf_counter_ns()  # Callbacks run after waiters wake up.
        self.optimiser.step()
        self._seek()
        return float(loss.detach())

    @property
    def notes(self) -> dict[str, Any]:
        size = self._size if self.search is None or self.search.over else None
        tried = {} if self.search is None else {"chunk_sizes_tried": [trial.chunk for trial in self.search.trials]}
        return {"chunk_size": size or "the search for it was not over", **tried}

    def _ready(self, number: int) -> None:
        assert self._backward is not None
        self._backward.ready(self._part_of[self._parameters[number]])

    def _send(self, number: int, values: Tensor) -> Any:
        self.state.buckets.append(values.numel())
        span = self.state.step.begin(number, values.nbytes)
        future = self.context.sums.allreduce(values, average=True)
        future.add_done_callback(partial(_done, span))
        return future

    # ---- chunk size -------------------------------------------------------------------------------------------------

    def _part_of_each(self, size: int) -> dict[nn.Parameter, int]:
        """Parameter -> its chunk's index, in backward order."""
        made, last = partition(len(self._layers), size), len(self._layers)
        return {p: n for n, chunk in enumerate(made) for layer in chunk for p in self._layers[last - layer]}

    def cut(self, size: int) -> None:
        """Use chunks of `size` layers, from the next step on."""
        self._size = size
        made, last = partition(len(self._layers), size), len(self._layers)
        self._part_of = self._part_of_each(size)
        self.parts = []
        begin = 0
        for chunk in made:
            end = self._ends[last - chunk[-1]]
            members = sum(len(self._layers[last - layer]) for layer in chunk)
            self.parts.append(ChunkBuffer(self.gradients[begin:end], members))
            begin = end

    def _seek(self) -> None:
        """Continue the search every `interval` steps; the first step, which is atypical, is not timed."""
        search = self.search
        if search is None or search.over:
            return
        self._steps += 1
        now_ns = time.perf_counter_ns()
        if self._steps == 1:
            self._since_ns = now_ns
        elif (self._steps - 1) % search.interval == 0:
            # All ranks use rank 0's clock, and hence the same sizes.
            lapse = torch.tensor([(now_ns - self._since_ns) / NS_PER_S], dtype=torch.float64)
            dist.broadcast(lapse, 0)
            search.measured(float(lapse))
            self.cut(search.chunk)
            self._since_ns = time.perf_counter_ns()


def _flattened(layers: list[list[nn.Parameter]]) -> tuple[Tensor, list[int]]:
    """One tensor for all gradients, and where each layer's end."""
    parameters = [p for layer in layers for p in layer]
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    ends, end = [], 0
    for layer in layers:
        end += sum(p.numel() for p in layer)
        ends.append(end)
    return flat, ends


def _done(span: Span, _: Any) -> None:
    span.done_ns = time.perf_counter_ns()
