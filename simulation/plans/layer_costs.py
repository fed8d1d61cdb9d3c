"""What each layer of a model costs: computing times, weights, and what its backward pass keeps. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.errors import SimulationError
from simulation.models.layer_builder import Layer
from simulation.models.workload_source import WorkloadSource

ELEMENT_BYTES = 4  # of activations: float32


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """A layer.

    Attributes:
        forward_s, backward_s: seconds of one example.
        weight_bytes: of all its variables; gradient_bytes: of the trained ones.
        largest_bytes: of its largest trained variable.
        kept_bytes: of one example, that the backward pass needs.
        input_bytes, output_bytes: of one example.
    """

    name: str
    forward_s: float
    backward_s: float
    weight_bytes: int
    gradient_bytes: int
    largest_bytes: int
    kept_bytes: int
    input_bytes: int
    output_bytes: int


def costs_of(workload: WorkloadSource) -> tuple[LayerCosts, ...]:
    """A model's layers in the order of the forward pass; auxiliary heads count as layers.

    Raises:
        SimulationError: the layers' outputs are unknown, as in a trace or a bare all-reduce.
    """
    architecture = workload.architecture
    if architecture is None:
        raise SimulationError(
            f"{workload.name} does not say its layers' outputs, which memory and pipelines need: name a model"
        )
    times = {layer.name: layer for layer in workload.trace.layers}
    made = []
    elements = 1
    for extent in architecture.input:
        elements *= extent
    for layer in architecture.layers:
        timed = times[layer.name]
        trained = [variable.bytes for variable in layer.trained]
        made.append(
            LayerCosts(
                layer.name,
                timed.forward_ns / 1e9 / workload.batch,
                timed.backward_ns / 1e9 / workload.batch,
                sum(variable.bytes for variable in layer.variables),
                sum(trained),
                max(trained, default=0),
                ELEMENT_BYTES * kept_of(layer),
                ELEMENT_BYTES * elements,
                ELEMENT_BYTES * layer.outputs,
            )
        )
        elements = layer.outputs
    return tuple(made)


def kept_of(layer: Layer) -> int:
    """Elements that the backward pass of one example needs of a layer.

    Of a user's model, whose activations are unknown, what is usual: a convolution's normalisation and ReLU keep two
    tensors, a fully connected layer's activation keeps its input beside the result.
    """
    if layer.kept is not None:
        return layer.kept
    usual = {"conv": 2, "pool": 3, "fc": 2, "embedding": 0, "attention": 1, "norm": 2, "batch norm": 2}
    return usual.get(layer.kind, 1) * layer.outputs
