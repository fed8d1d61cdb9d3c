"""Resource-aware layer placement: every worker trains the model's head, the server trains its tail.

Source: "RALP", section 4.2.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hostlib.errors import HostlibError, RunError
from hostlib.models.inspection import layers_of
from hostlib.strategies.builtin.ralp.model_split import Halves, cut, require_tensors
from hostlib.strategies.builtin.ralp.placement import Placement, SplitPoint, place
from hostlib.strategies.builtin.ralp.ralp_options import Options, chosen
from hostlib.strategies.builtin.wfbp.wfbp_trainer import WaitFree
from hostlib.strategies.common.tensor_channel import Purpose, TensorChannel
from hostlib.strategies.trainer import Trainer, TrainerContext

NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Decision:
    """How a model is placed, the same on every rank and on the server.

    Attributes:
        split: where it is split; None for not at all.
    """

    placement: Placement
    split: SplitPoint | None

    @property
    def sentence(self) -> str:
        if self.split is None or (self.placement.partition and self.split is self.placement.split):
            return self.placement.verdict
        return f"Split after {self.split.layer.name}, as requested."

    def halves(self, context: TrainerContext) -> Halves:
        assert self.split is not None
        whole = [cut.layer.name for cut in self.placement.cuts if cut.layer.kind != "other"]
        return cut(context.model, self.split.layer, whole, context.example())


def decide(context: TrainerContext, options: Options) -> Decision:
    """The profiler's decision for the context's model, unless the options override it.

    Raises:
        HostlibError: the model cannot be split where the options say.
    """
    layers = layers_of(context.model, context.example())
    placement = place(layers, context.batch_size, options.threshold)
    return Decision(placement, chosen(placement, options))


# ---- workers --------------------------------------------------------------------------------------------------------


def trainer(context: TrainerContext, options: Options) -> Trainer:
    """Make a rank's trainer."""
    decision = decide(context, options)
    halves = None if decision.split is None else decision.halves(context)
    line = TensorChannel(context.rank_context, context.another_transport(), context.rank_context.world_size)
    if halves is None:
        return Unpartitioned(context, decision, line)
    return Partitioned(context, decision, line, halves)


class Unpartitioned(WaitFree):
    """A rank's training steps with an unsplit model: data-parallel. The server waits for the end."""

    def __init__(self, context: TrainerContext, decision: Decision, line: TensorChannel) -> None:
        super().__init__(context)
        self._line = line
        self._decision = decision

    @property
    def notes(self) -> dict[str, Any]:
        split = self._decision.split
        return {
            "placement": self._decision.sentence,
            "skewness": round(self._decision.placement.skewness, 4),
            "split_after": None if split is None else split.layer.name,
        }

    def close(self, graceful: bool = True) -> None:
        if graceful:
            self._line.ask(Purpose.END)
            self._line.settle()
        super().close(graceful)


class Partitioned(Unpartitioned):
    """A rank's training steps with the head: the server has the tail, and the loss."""

    def __init__(self, context: TrainerContext, decision: Decision, line: TensorChannel, halves: Halves) -> None:
        super().__init__(replace(context, model=halves.head), decision, line)
        self._model, self._tail = context.model, halves.tail
        self._waits_ns: list[int] = []

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        self.optimiser.zero_grad(set_to_none=False)
        handed = require_tensors(self._parallel(inputs))
        gradients, loss = self._beyond(handed, labels)
        trained = [(each, gradient) for each, gradient in zip(handed, gradients, strict=True) if each.requires_grad]
        begin_ns = time.perf_counter_ns()
        torch.autograd.backward([each for each, _ in trained], [gradient for _, gradient in trained])
        self.state.step.backward_begin_ns = begin_ns
        self.optimiser.step()
        return loss

    def _beyond(self, handed: Sequence[Tensor], labels: Tensor) -> tuple[list[Tensor], float]:
        """Send the head's outputs to the server; returns their gradients, and the loss."""
        begin_ns = time.perf_counter_ns()
        self._line.ask(Purpose.STEP, [*handed, labels])
        self._line.expect([torch.empty(1), *(torch.empty(each.shape, dtype=each.dtype) for each in handed)])
        loss, *gradients = self._line.received()
        self._line.settle()
        self._waits_ns.append(time.perf_counter_ns() - begin_ns)
        return gradients, float(loss)

    def whole(self) -> nn.Module:
        self._line.ask(Purpose.FETCH)
        state = self._tail.state_dict()
        rooms = [torch.empty_like(value, memory_format=torch.contiguous_format) for value in state.values()]
        self._line.expect(rooms)
        for value, fetched in zip(state.values(), self._line.received(), strict=True):
            value.copy_(fetched)
        self._line.settle()
        return self._model

    @property
    def notes(self) -> dict[str, Any]:
        waits_ms = round(statistics.median(self._waits_ns) / NS_PER_MS, 3) if self._waits_ns else 0.0
        return {**super().notes, "server_ms_median": waits_ms}


# ---- the server -----------------------------------------------------------------------------------------------------


def serve(context: TrainerContext, options: Options) -> None:
    """Serve the tail's steps, one after the other, until all workers have ended."""
    decision = decide(context, options)
    tail = None if decision.split is None else Tail(context, decision.halves(context).tail)
    transport = context.another_transport()
    lines = [TensorChannel(context.rank_context, transport, rank) for rank in range(context.rank_context.world_size)]
    while (asked := _asked(lines)) is not Purpose.END:
        assert tail is not None, "an unsplit model has no tail to serve"
        if asked is Purpose.STEP:
            tail.step(lines, together=options.all)
        else:
            tail.fetch(lines)
        for line in lines:
            line.settle()


def _asked(lines: Sequence[TensorChannel]) -> Purpose:
    """Receive all workers' requests, which must agree.

    Raises:
        RunError: they differ.
    """
    asked = [line.asked() for line in lines]
    for rank, purpose in enumerate(asked):
        if purpose != asked[0]:
            raise RunError(f"rank 0 asks for {asked[0].name.lower()}, rank {rank} for {purpose.name.lower()}")
    return asked[0]


class Tail:
    """The layers after the split, their gradients and their optimiser."""

    def __init__(self, context: TrainerContext, tail: nn.Module) -> None:
        self._tail, self._loss = tail, context.loss
        self._optimiser = context.optimiser(tail.parameters())

    def step(self, lines: Sequence[TensorChannel], together: bool) -> None:
        """Do one step of all workers: return their activations' gradients and losses, then update the weights.

        Workers are processed in rank order, not in order of arrival: floating-point sums depend on the order, and a
        rerun must give the same weights.
        """
        self._optimiser.zero_grad(set_to_none=False)
        if together:
            self._together(lines)
        else:
            for line in lines:
                *handed, labels = line.received()
                line.send(self._pass(handed, labels))
            for parameter in self._tail.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(len(lines))
        self._optimiser.step()

    def _together(self, lines: Sequence[TensorChannel]) -> None:
        received = [line.received() for line in lines]
        counts = [len(labels) for *_, labels in received]
        if any(len(each) != count for each_of, count in zip(received, counts, strict=True) for each in each_of):
            raise HostlibError("ralp:all cannot join activations whose first dimension is not the batch's")
        *handed, labels = [torch.cat(parts) for parts in zip(*received, strict=True)]
        loss, *gradients = self._pass(handed, labels)
        # The head's gradients are averaged over the workers, so each needs that of its own examples' mean.
        shares = zip(*(gradient.mul_(len(lines)).split(counts) for gradient in gradients), strict=True)
        for line, share in zip(lines, shares, strict=True):
            line.send([loss, *share])

    def _pass(self, handed: Sequence[Tensor], labels: Tensor) -> list[Tensor]:
        """Forward and backward pass; returns the loss, and the gradients of the head's outputs (zeros if there are
        none).
        """
        leaves = [each.requires_grad_(each.is_floating_point()) for each in handed]
        # Copies, because autograd forbids the tail to change its leaves in place.
        loss = self._loss(self._tail(*(leaf.clone() for leaf in leaves)), labels)
        loss.backward()
        gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        return [loss.detach().float().view(1), *gradients]

    def fetch(self, lines: Sequence[TensorChannel]) -> None:
        """Send the weights to every worker."""
        for line in lines:
            line.send(list(self._tail.state_dict().values()))
