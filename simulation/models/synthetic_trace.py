"""Make traces from an architecture and its computing times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostlib.models.layer_info import LayerInfo
from hostlib.traces.trace import Layer, Parameter, Trace, synthesise
from simulation.errors import SimulationError
from simulation.models import published_times
from simulation.models.architectures import Architecture, build

BACKWARD_SHARE = 2.0  # relative to the forward pass: gradients of the inputs and of the weights
DEFAULT_TFLOPS = 10.0
DEFAULT_BATCH = 32

MOST_BATCH, MOST_PIXELS = 10**9, 10**6
LONGEST_S = 1e6


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
            Parameter(v.name, 4 * v.elements, layer.name, v.trained and not layer.auxiliary)
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


def model_trace(
    name: str,
    pixels: int | None = None,
    forward_s: float | None = None,
    backward_s: float | None = None,
    batch: int = DEFAULT_BATCH,
    tflops: float | None = None,
) -> Trace:
    """Make a model's trace from given times, published times, or FLOPs.

    Published times are those of "How to Train your DNN" (at 299 pixels, a batch of 32), scaled by FLOPs to another size
    or batch. Otherwise times follow from the FLOPs at `tflops`.

    Raises:
        SimulationError: an impossible time, batch or rate.
        ArchitectureError: there is no such model, or the input is too small for it.
    """
    for what, value in (("forward time", forward_s), ("backward time", backward_s)):
        if value is not None and not 0 <= value < float("inf"):
            raise SimulationError(f"a {what} must be 0 or more seconds, not {value}")
    if not 1 <= batch <= MOST_BATCH:
        raise SimulationError(f"--batch must be at least 1 and at most {MOST_BATCH}, not {batch}")
    if pixels is not None and pixels > MOST_PIXELS:
        raise SimulationError(f"--input must be at most {MOST_PIXELS} pixels, not {pixels}")
    if tflops is not None and not 0 < tflops < float("inf"):
        raise SimulationError(f"--tflops must be above 0, not {tflops}")
    known = name in published_times.COMPUTE_S and tflops is None
    if known and pixels is None:
        pixels = published_times.PIXELS
    architecture = build(name, pixels)
    operations = batch * _flops(architecture)
    if known:
        scale = operations / (DEFAULT_BATCH * _flops(build(name, published_times.PIXELS)))
        forward, backward = (seconds * scale for seconds in published_times.COMPUTE_S[name])
    else:
        forward = operations / ((tflops or DEFAULT_TFLOPS) * 1e12)
        backward = BACKWARD_SHARE * forward
    if not max(forward, backward) < LONGEST_S:
        raise SimulationError(f"{name} would compute for {forward:.3g} s at this rate: raise --tflops")
    return spread(
        architecture,
        forward if forward_s is None else forward_s,
        backward if backward_s is None else backward_s,
        first_backward=not known,
    )


def model_layers(name: str, pixels: int | None = None) -> tuple[LayerInfo, ...]:
    """A model's layers as strategies see them, without auxiliary heads.

    Raises:
        ArchitectureError: as model_trace.
    """
    if pixels is None and name in published_times.COMPUTE_S:
        pixels = published_times.PIXELS
    return layers_of(build(name, pixels))


def layers_of(architecture: Architecture) -> tuple[LayerInfo, ...]:
    """An architecture's layers; a normalisation belongs to the layer before it."""
    layers: list[LayerInfo] = []
    for layer in architecture.layers:
        if layer.auxiliary:
            continue
        params, members = sum(v.elements for v in layer.trained), tuple(v.name for v in layer.trained)
        if layer.kind == "batch norm" and layers:
            last = layers[-1]
            layers[-1] = replace(last, params=last.params + params, members=(*last.members, *members))
            continue
        kind: Any = layer.kind.removeprefix("batch ")
        layers.append(
            LayerInfo(len(layers) + 1, layer.name, kind, params, layer.outputs, layer.flops, layer.matrix, members)
        )
    return tuple(layers)


def _flops(architecture: Architecture) -> int:
    return sum(layer.flops for layer in architecture.layers)
