"""How much memory each worker of a parallel plan needs: weights, gradients, optimiser, activations, buffers. Torch-free.

The peak is looked for over one iteration: at the end of the forward passes all activations are kept; backward, layer after
layer frees its own and adds its gradients; then the optimiser works on all parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil

from hostlib.errors import UnknownNameError
from hostlib.pipelines.pass_order import pass_order
from simulation.models.workload_source import WorkloadSource
from simulation.plans.layer_costs import LayerCosts, costs_of
from simulation.plans.parallel_plan import ParallelPlan, PipelineSchedule


@dataclass(frozen=True, slots=True)
class Optimiser:
    """An optimiser.

    Attributes:
        state: values that it keeps for each parameter.
        working: values for each element of a variable while it updates that alone.
        foreach: values for each parameter while it updates all together, as torch does on GPUs.
    """

    state: int
    working: int
    foreach: int


OPTIMISERS = {
    "sgd": Optimiser(0, 0, 0),
    "momentum": Optimiser(1, 0, 0),
    "adam": Optimiser(2, 2, 1),
    "adamw": Optimiser(2, 2, 1),
}
DEFAULT_OPTIMISER = "momentum"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one worker at its peak.

    Attributes:
        weights: of all variables, with moving averages.
        gradients: those that exist at the peak.
        optimiser: its state.
        activations: inputs, and what backward passes need.
        buffers: the mechanism's buckets; activations and their gradients between stages.
        working: what the layer, or the optimiser, at the peak needs for itself.
    """

    weights: int
    gradients: int
    optimiser: int
    activations: int
    buffers: int
    working: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimiser + self.activations + self.buffers + self.working


def memory_of(
    workload: WorkloadSource,
    plan: ParallelPlan,
    cuts: Sequence[Sequence[LayerCosts]] | None = None,
    optimiser: str = DEFAULT_OPTIMISER,
    foreach: bool = True,
) -> tuple[Memory, ...]:
    """What the worker of each stage needs; of a plan without a pipeline, what each worker needs.

    Args:
        cuts: of a pipeline, the layers of each of its parts: of `interleaved`, the first chunk of each stage, then the
            second of each, and so on.
        foreach: the optimiser updates all parameters together, as torch does on GPUs.

    Raises:
        UnknownNameError: there is no such optimiser.
        SimulationError: the layers' outputs are unknown.
    """
    if optimiser not in OPTIMISERS:
        raise UnknownNameError("optimiser", optimiser, OPTIMISERS)
    parts = [costs_of(workload)] if cuts is None else cuts
    examples = ceil(workload.batch * plan.stages / plan.microbatches)
    made = []
    for stage in range(plan.stages):
        numbers = range(stage, len(parts), plan.stages)
        held = in_flight(plan, stage)
        chunks = [
            _Chunk(tuple(parts[number]), examples, count, number == 0, number == len(parts) - 1, plan)
            for number, count in zip(numbers, held, strict=True)
        ]
        made.append(_peak(chunks, plan, OPTIMISERS[optimiser], foreach))
    return tuple(made)


def in_flight(plan: ParallelPlan, stage: int) -> tuple[int, ...]:
    """Micro-batches of each of a stage's chunks between their passes, when the stage has most of them."""
    if plan.schedule is None:
        return (1,)
    held, most = [0] * plan.chunks, (0,) * plan.chunks
    for each in _ordered(plan.schedule.value, plan.stages, plan.microbatches, plan.chunks).workers[stage]:
        held[each.part // plan.stages] += -1 if each.backward else 1
        most = max(most, tuple(held), key=sum)
    return most


_ordered = lru_cache(maxsize=8)(pass_order)  # every stage of a plan asks for it


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The layers that a worker has of one part of the model.

    Attributes:
        examples: of a micro-batch.
        held: micro-batches under way, at most.
        first, last: part of the model.
    """

    layers: tuple[LayerCosts, ...]
    examples: int
    held: int
    first: bool
    last: bool
    plan: ParallelPlan

    @property
    def gradients(self) -> int:
        return sum(layer.gradient_bytes for layer in self.layers)

    @property
    def input(self) -> int:
        """Bytes that it receives for a micro-batch."""
        return self.examples * self.layers[0].input_bytes

    @property
    def kept(self) -> int:
        """Bytes that its layers keep of a micro-batch."""
        return self.examples * sum(layer.kept_bytes for layer in self.layers)

    @property
    def waiting(self) -> int:
        """Bytes of a micro-batch between its passes, without its input."""
        return 0 if self.plan.recompute else self.kept

    @property
    def buffers(self) -> int:
        """Bytes for what it receives: all micro-batches' inputs and, from the next part, gradients."""
        outputs = 0 if self.last else self.examples * self.layers[-1].output_bytes
        return self.plan.microbatches * ((0 if self.first else self.input) + outputs)

    def backward(self, done: bool) -> tuple[int, int, int]:
        """Gradients, activations and working memory where one micro-batch's backward pass needs most together.

        Args:
            done: gradients of an earlier micro-batch exist already, to which this one's are added.
        """
        # The logits exist until the pass is over.
        outputs = self.examples * self.layers[-1].output_bytes if self.last else 0
        kept = accumulate((self.examples * layer.kept_bytes for layer in self.layers), initial=0)
        made = self.gradients
        most = (0, 0, 0)
        for layer, before in zip(self.layers, list(kept)[:-1], strict=True):
            own = self.examples * layer.kept_bytes
            moved = self.examples * (layer.output_bytes + max(layer.output_bytes, layer.input_bytes))
            now = (
                self.gradients if done else made,
                outputs + before + own,
                moved + (layer.largest_bytes if done else 0),
            )
            most = max(most, now, key=sum)
            made -= layer.gradient_bytes
        return most


def _peak(chunks: Sequence[_Chunk], plan: ParallelPlan, optimiser: Optimiser, foreach: bool) -> Memory:
    layers = [layer for chunk in chunks for layer in chunk.layers]
    gradients = sum(layer.gradient_bytes for layer in layers)
    inputs = sum(plan.microbatches * chunk.input for chunk in chunks if chunk.first)
    waiting = sum(chunk.held * chunk.waiting for chunk in chunks)
    last = chunks[-1]
    updating = (
        optimiser.foreach * gradients if foreach else optimiser.working * max(each.largest_bytes for each in layers)
    )
    moments = [(gradients, inputs, updating)]
    # The first backward pass has all micro-batches beside it; a later one has the others' gradients.
    passes = [(False, waiting)]
    if plan.microbatches > 1:
        steady = plan.schedule is not PipelineSchedule.GPIPE and plan.microbatches * len(chunks) > sum(
            chunk.held for chunk in chunks
        )
        passes.append((True, waiting - (0 if steady else last.waiting)))
    for done, beside in passes:
        made, kept, working = last.backward(done)
        others = sum(chunk.gradients for chunk in chunks[:-1]) if done else 0
        moments.append((made + others, inputs + beside - last.waiting + kept, working))
    made, kept, working = max(moments, key=sum)
    return Memory(
        sum(layer.weight_bytes for layer in layers),
        made,
        optimiser.state * gradients,
        kept,
        sum(chunk.buffers for chunk in chunks) + (gradients if plan.replicas > 1 else 0),
        working,
    )
