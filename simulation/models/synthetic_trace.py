"""Make traces from an architecture and its computing times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hostlib.models.layer_info import LayerInfo
from hostlib.traces.trace import Layer, Parameter, Trace, synthesise
from simulation.errors import SimulationError
from simulation.models import published_times
from simulation.models.architectures import Architecture
from simulation.models.compute import DEFAULT_BATCH, Compute, PassTimes, pass_times
from simulation.models.described_model import DescribedModel, Shape, describe


def spread(architecture: Architecture, forward_s: float, backward_s: float, first_backward: bool = False) -> Trace:
    """Make a trace of an architecture from the times of its passes, distributed over the layers by FLOPs.

    Auxiliary heads compute and are numbered, but are not sent: the paper filters them out of its traces.

    Args:
        first_backward: the backward time includes that of the last layer (the first one in the backward pass), unlike
            the paper's; otherwise that layer takes no time.
    """
    layers = architecture.layers
    forward = np.array([layer.flops for layer in layers], float)
    backward = forward.copy()
    if not first_backward:
        backward[max(i for i, layer in enumerate(layers) if layer.trained and not layer.auxiliary) :] = 0
    return synthesise(
        [
            Layer(layer.name, f, b)
            for layer, f, b in zip(layers, _shares(forward, forward_s), _shares(backward, backward_s), strict=True)
        ],
        [
            Parameter(v.name, v.bytes, layer.name, v.trained and not layer.auxiliary)
            for layer in layers
            for v in layer.variables
        ],
    )


def _shares(flops: NDArray[np.float64], seconds: float) -> list[int]:
    """Nanoseconds of each layer; their sum is that of the whole."""
    if not flops.sum():
        return [0] * len(flops)
    edges = np.rint(np.concatenate([[0], np.cumsum(flops)]) / flops.sum() * seconds * 1e9).astype(np.int64)
    return [int(gap) for gap in np.diff(edges)]


def trained_model(text: str, shape: Shape, compute: Compute) -> tuple[DescribedModel, Trace, PassTimes]:
    """A model, its trace, and where its times come from.

    Times are the given ones; else the published ones, of "How to Train your DNN" (at 299 pixels, a batch of 32), scaled
    by FLOPs to another size or batch; else they follow from the FLOPs at a rate.

    Args:
        text, shape: see describe().

    Raises:
        SimulationError: it would compute for too long, or has nothing to train.
        HostlibError, ArchitectureError: see describe().
    """
    name = text.partition(":")[0]
    has_times = name in published_times.COMPUTE_S
    described = describe(text, shape, published=has_times and not compute.has_rate)
    if not described.architecture.elements:
        raise SimulationError(f"{text} has no parameter with a gradient: there is nothing to sum")
    reference = describe(name, published_times.PIXELS).architecture.flops if has_times else None
    times = pass_times(compute, described.name, described.architecture.flops, described.family, reference)
    trace = spread(described.architecture, times.forward_s, times.backward_s, times.first_backward)
    return (
        described,
        replace(trace, batch=compute.examples, flops=described.architecture.flops, family=described.family),
        times,
    )


def model_trace(
    name: str,
    pixels: Shape = None,
    forward_s: float | None = None,
    backward_s: float | None = None,
    batch: int = DEFAULT_BATCH,
    tflops: float | None = None,
) -> Trace:
    """A model's trace; see trained_model."""
    return trained_model(name, pixels, Compute(batch, forward_s, backward_s, tflops))[1]


def model_layers(name: str, pixels: Shape = None) -> tuple[LayerInfo, ...]:
    """A model's layers as strategies see them, without auxiliary heads, of the size whose times are published.

    Raises:
        HostlibError, ArchitectureError: see describe().
    """
    return describe(name, pixels, published=name.partition(":")[0] in published_times.COMPUTE_S).layers
