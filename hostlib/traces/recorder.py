"""Record a model's trace while it trains on random data: each layer's computing time and when each gradient is ready.

Uses hooks, so it sees what DDP would see. On a GPU, times come from CUDA events, so that launches can run ahead as
usual.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from hostlib.errors import HostlibError
from hostlib.models.inspection import EXAMPLES, dtype_of, operations
from hostlib.models.layer_info import Family
from hostlib.traces.kineto import import_profile
from hostlib.traces.trace import Event, Layer, Parameter, Trace

WARM_UP = 2


class ProfileError(HostlibError):
    """A model that could not be profiled."""


def profile(
    model: nn.Module, shape: tuple[int, ...], batch: int, iterations: int = 5, device: str = "cpu", kineto: bool = False
) -> Trace:
    """Train for some iterations and return the medians of their times.

    Args:
        shape: of one sample.
        kineto: use torch.profiler and hostlib.traces.kineto for one iteration instead of hooks.

    Raises:
        ProfileError: the model rejects such input, or has no gradients.
    """
    if batch < 1 or iterations < 1 or any(extent < 1 for extent in shape):
        raise ProfileError(f"batch, iterations and shape must be at least 1, not {batch}, {iterations}, {shape}")
    try:
        model = model.to(device).train()
        inputs = _random(model, (batch, *shape)).to(device)
    except (RuntimeError, AssertionError) as error:
        raise ProfileError(f"{device} cannot be used: {str(error).splitlines()[0]}") from None
    if not any(p.requires_grad for p in model.parameters()):
        raise ProfileError("the model has no parameter with a gradient")
    try:
        for _ in range(WARM_UP):
            _step(model, inputs)
    except (RuntimeError, ValueError, TypeError) as error:
        message = f"the model does not take inputs of shape {shape}: {str(error).splitlines()[0]}"
        raise ProfileError(message) from None
    trace = _by_profiler(model, inputs) if kineto else _by_hooks(model, inputs, iterations)
    flops, family = _operations(model, inputs)
    return replace(trace, batch=batch, flops=flops, family=family)


def _operations(model: nn.Module, inputs: Tensor) -> tuple[int | None, Family | None]:
    """FLOPs of one example's forward pass, and the kind of model; None where they cannot be told."""
    try:
        flops, family = operations(model, inputs[:EXAMPLES] if len(inputs) >= EXAMPLES else inputs)
    except HostlibError:
        return None, None
    return (flops, family) if flops else (None, None)


def _random(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Random noise; for a model that takes tokens, the first two tokens, which any vocabulary has."""
    kind = dtype_of(model)
    return torch.randn(*shape, dtype=kind) if kind.is_floating_point else torch.randint(2, shape, dtype=kind)


def _step(model: nn.Module, inputs: Tensor, between: Callable[[], None] = lambda: None) -> None:
    model.zero_grad(set_to_none=True)
    output = model(inputs)
    while not isinstance(output, Tensor):  # (logits, auxiliary), {"logits": ...}
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    loss = output.float().pow(2).mean()
    between()
    loss.backward()


class _Clock:
    """Timestamps within one iteration, read at its end. Seconds since the first one."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []

    def mark(self, name: str) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((name, event))
        else:
            self._marks.append((name, time.perf_counter()))

    def read(self) -> dict[str, float]:
        """Times by name; the last one of several with the same name."""
        first = self._marks[0][1]
        if self._cuda:
            torch.cuda.synchronize()
            return {name: first.elapsed_time(mark) / 1e3 for name, mark in self._marks}  # type: ignore[union-attr, arg-type]
        return {name: mark - first for name, mark in self._marks}  # type: ignore[operator]


def _by_hooks(model: nn.Module, inputs: Tensor, iterations: int) -> Trace:
    layers = {name or "model": module for name, module in model.named_modules() if _is_layer(module)}
    owner: dict[str, str] = {}
    parameters: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():  # shared parameters once
        module, _, short = name.rpartition(".")
        owner[f"{module or 'model'}/{short}"] = module or "model"
        parameters[f"{module or 'model'}/{short}"] = parameter
    trained = {name for name, p in parameters.items() if p.requires_grad}
    clock = _Clock(inputs.is_cuda)
    handles = [
        m.register_forward_hook(lambda *_, name=name: clock.mark(f"forward {name}")) for name, m in layers.items()
    ]
    handles += [
        parameters[name].register_post_accumulate_grad_hook(lambda _, name=name: clock.mark(f"ready {name}"))
        for name in sorted(trained)
    ]
    runs: list[dict[str, float]] = []
    try:
        for _ in range(iterations):
            clock = _Clock(inputs.is_cuda)
            clock.mark("start")
            _step(model, inputs, partial(clock.mark, "backward"))
            runs.append(clock.read())
    finally:
        for handle in handles:
            handle.remove()
    common = set.intersection(*(set(run) for run in runs))
    median = {name: statistics.median(run[name] for run in runs) for name in common}
    return _trace(median, layers, parameters, owner)


def _is_layer(module: nn.Module) -> bool:
    """Whether a module has no submodules, or parameters of its own."""
    return not any(module.children()) or any(True for _ in module.parameters(recurse=False))


def _trace(
    at: dict[str, float], layers: dict[str, nn.Module], parameters: dict[str, nn.Parameter], owner: dict[str, str]
) -> Trace:
    called = sorted((name for name in layers if f"forward {name}" in at), key=lambda name: at[f"forward {name}"])
    sent = sorted((name for name in parameters if f"ready {name}" in at), key=lambda name: at[f"ready {name}"])
    if not sent:
        raise ProfileError("no gradient was ready in every iteration")
    first_ready: dict[str, float] = {}
    for name in sent:
        first_ready.setdefault(owner[name], at[f"ready {name}"])
    backward_ns, before = {}, at["backward"]
    for layer, ready in first_ready.items():
        backward_ns[layer] = round((ready - before) * 1e9)
        before = ready
    times, previous = [], 0.0
    for index, layer in enumerate(called):
        # Computation between two layers counts with the second one, the loss with the last layer.
        end = at["backward"] if index == len(called) - 1 else at[f"forward {layer}"]
        times.append(Layer(layer, round((end - previous) * 1e9), backward_ns.get(layer, 0)))
        previous = end
    known = set(called)
    times += [Layer(layer, 0, backward_ns[layer]) for layer in first_ready if layer not in known]
    zero = at[f"ready {sent[0]}"]
    described = tuple(
        Parameter(name, p.numel() * p.element_size(), owner[name], f"ready {name}" in at)
        for name, p in parameters.items()
        if owner[name] in known or owner[name] in first_ready
    )
    events = [
        Event(round((at[f"ready {n}"] - zero) * 1e9), n, parameters[n].numel() * parameters[n].element_size(),
              "worker0", "server0")
        for n in sent
    ]  # fmt: skip
    events += [Event(0, p.name, p.bytes, "server0", "worker0") for p in described if p.trained]
    return Trace(tuple(times), described, tuple(events))


def _by_profiler(model: nn.Module, inputs: Tensor) -> Trace:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if inputs.is_cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True) as recorded:
        _step(model, inputs)
        if inputs.is_cuda:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        recorded.export_chrome_trace(str(path))
        return import_profile(path)
