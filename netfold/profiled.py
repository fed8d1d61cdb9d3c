"""Time a model's passes with a few batches on a device of this host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulation.errors import SimulationError
from simulation.models.compute import DEFAULT_BATCH
from simulation.models.workload_source import is_trace

ITERATIONS = 3


def profiled(model: str, options: Mapping[str, Any], device: str) -> dict[str, str]:
    """Values of `forward` and `backward` for the model's batch.

    Args:
        options: those of simulation/commands/options.py by name.

    Raises:
        SimulationError: there is nothing to profile, or the times are given.
        HostlibError: there is no such model, or it cannot be trained on this device.
    """
    if is_trace(model):
        raise SimulationError(f"--profile: {model} is a trace, which has its own times")
    if said := [f"--{name}" for name in ("forward", "backward", "tflops", "gpu") if options[name] is not None]:
        raise SimulationError(f"--profile measures how long it computes, and {', '.join(said)} says it: leave one out")
    from hostlib.models.inspection import input_of
    from hostlib.models.loading import image_shape, load_model
    from hostlib.traces.recorder import profile

    pixels = options["pixels"]
    asked = image_shape(model, (pixels,) if isinstance(pixels, int) else pixels)
    made = load_model(model, asked)
    batch = options["batch"] or DEFAULT_BATCH
    trace = profile(made, asked or input_of(made), batch, ITERATIONS, device)
    forward_ns = sum(layer.forward_ns for layer in trace.layers)
    backward_ns = sum(layer.backward_ns for layer in trace.layers)
    return {"forward": f"{forward_ns}ns", "backward": f"{backward_ns}ns"}
