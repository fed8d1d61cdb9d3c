"""Record the layers of a model's forward pass: modules by hooks, functional pools and attention by a dispatch mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _LPPoolNd, _MaxPoolNd
from torch.overrides import TorchFunctionMode

from hostlib.models.layer_info import Kind

POOLS = (_MaxPoolNd, _AvgPoolNd, _LPPoolNd, _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd)
OF_A_CONVOLUTION = (_BatchNorm, _InstanceNorm, nn.GroupNorm)
KINDS: tuple[tuple[Any, Kind], ...] = (
    (_ConvNd, "conv"),
    (nn.Linear, "fc"),
    (POOLS, "pool"),
    ((nn.Embedding, nn.EmbeddingBag), "embedding"),
    (nn.MultiheadAttention, "attention"),
    ((*OF_A_CONVOLUTION, nn.LayerNorm, nn.RMSNorm), "norm"),
)
FUNCTIONS: dict[str, Kind] = {
    **{f"{how}_pool{n}d": "pool" for how in ("max", "avg", "adaptive_max", "adaptive_avg") for n in (1, 2, 3)},
    "mean": "pool",
    "scaled_dot_product_attention": "attention",
}
MAP = {2, 3}  # height and width of (N, C, H, W)


def kind_of(module: nn.Module) -> Kind | None:
    """The kind of layer of a module; None for one that is not a layer, though its submodules may be."""
    for classes, kind in KINDS:
        if isinstance(module, classes):
            return kind
    return "other" if any(True for _ in module.parameters(recurse=False)) else None


@dataclass(slots=True)
class Seen:
    """A layer in the forward pass. If it is called several times, its FLOPs add up, and its last output counts.

    Attributes:
        module: None for a function.
        flops, output: of the whole batch.
        place: when it was first called, as a number that grows; -1 before.
    """

    name: str
    kind: Kind
    module: nn.Module | None
    flops: int = 0
    output: int = 0
    calls: int = 0
    place: int = -1

    def called(self, output: Tensor, flops: int) -> None:
        self.calls += 1
        self.flops += flops
        self.output = output.numel()


class Watch(TorchFunctionMode):
    """Context manager that records layers while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._layers: dict[str, Seen] = {}
        self._functions: dict[str, list[Seen]] = {}  # functions, by the layer called before them
        self._last = ""
        self._inside: list[str] = []
        self._names: Counter[str] = Counter()
        self._started = 0  # calls of layers
        self._handles: list[Any] = []
        whole = ""  # the layer, such as attention, whose submodules are being called
        for path, module in model.named_modules():
            if whole and path.startswith(f"{whole}."):
                continue
            self._handles.append(module.register_forward_pre_hook(partial(self._enters, path)))
            self._handles.append(module.register_forward_hook(partial(self._leaves, path), with_kwargs=True))
            kind = kind_of(module)
            if kind is not None:
                self._layers[path] = Seen(path or "model", kind, module)
                whole = path if kind != "other" else whole

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        for handle in self._handles:
            handle.remove()

    def in_order(self) -> Iterator[Seen]:
        """The recorded layers: modules in order of construction, functions after the module called before them."""
        yield from self._functions.get("", ())
        for path, seen in self._layers.items():
            if seen.calls:
                yield seen
            if path:
                yield from self._functions.get(path, ())

    def _enters(self, path: str, *_: Any) -> None:
        self._inside.append(path)
        if (seen := self._layers.get(path)) is not None:
            self._place(seen)

    def _place(self, seen: Seen) -> None:
        if seen.place < 0:
            seen.place = self._started
        self._started += 1

    def _leaves(self, path: str, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        self._inside.pop()
        seen = self._layers.get(path)
        if seen is None:
            return
        inputs, handed_on = _tensors((args, kwargs)), _tensors(output)
        if handed_on:
            taken = inputs[0] if inputs else handed_on[0]
            seen.called(handed_on[0], _flops(seen, taken, handed_on[0]))
            self._last = path

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        made = function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if name in FUNCTIONS and not self._in_a_layer() and (name != "mean" or _over_a_map(args, kwargs)):
            output = _tensors(made)[0]
            self._add(name, output, _function_flops(name, args, kwargs, output))
        return made

    def _in_a_layer(self) -> bool:
        seen = self._layers.get(self._inside[-1]) if self._inside else None
        return seen is not None and seen.kind != "other"

    def _add(self, name: str, output: Tensor, flops: int) -> None:
        place = f"{self._inside[-1]}.{name}" if self._inside and self._inside[-1] else name
        self._names[place] += 1
        number = self._names[place]
        seen = Seen(place if number == 1 else f"{place}_{number}", FUNCTIONS[name], None)
        self._place(seen)
        seen.called(output, flops)
        self._functions.setdefault(self._last, []).append(seen)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in a nested value, from left to right."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in _tensors(part)] if isinstance(value, (tuple, list)) else []


def _over_a_map(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
    maps = _tensors((args, kwargs))[0].dim() == 4
    return maps and isinstance(axes, (tuple, list)) and {axis % 4 for axis in axes} == MAP


def _function_flops(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> int:
    inputs = _tensors((args, kwargs))
    if FUNCTIONS[name] == "attention":
        # Every query times every key, then their weights times the values.
        query, key, value = inputs[:3]
        return 2 * query.numel() * key.shape[-2] + 2 * output.numel() * value.shape[-2]
    if name == "mean" or name.startswith("adaptive"):
        return inputs[0].numel()
    return _volume(kwargs.get("kernel_size", args[1] if len(args) > 1 else 1), int(name[-2])) * output.numel()


def _volume(kernel: Any, dimensions: int) -> int:
    return int(kernel) ** dimensions if isinstance(kernel, int) else prod(kernel)


def _flops(seen: Seen, inputs: Tensor, output: Tensor) -> int:
    """Two FLOPs per multiply-add; one for each element of a pooling window."""
    module = seen.module
    if isinstance(module, _ConvNd):
        places = inputs if isinstance(module, _ConvTransposeNd) else output
        channels = module.in_channels if isinstance(module, _ConvTransposeNd) else module.out_channels
        return 2 * module.weight.numel() * (places.numel() // channels)
    if isinstance(module, nn.Linear):
        return 2 * module.weight.numel() * (output.numel() // module.out_features)
    if isinstance(module, POOLS):
        kernel = getattr(module, "kernel_size", None)
        dimensions = int(type(module).__name__[-2])
        return inputs.numel() if kernel is None else _volume(kernel, dimensions) * output.numel()
    if isinstance(module, nn.MultiheadAttention):
        return _attention_flops(module, inputs, output)
    return 2 * output.numel() if seen.kind == "norm" else 0


def _attention_flops(module: nn.MultiheadAttention, inputs: Tensor, output: Tensor) -> int:
    """FLOPs of self-attention: four projections, every query times every key, weights times values."""
    places = output.numel() // module.embed_dim
    tokens = inputs.shape[1 if module.batch_first else 0] if inputs.dim() == 3 else inputs.shape[0]
    weights = sum(p.numel() for p in module.parameters() if p.dim() > 1)
    return int(places * (2 * weights + 4 * tokens * module.embed_dim))


def run(model: nn.Module, inputs: Tensor, with_weights: bool = False) -> Any:
    """Run the model's forward pass on meta tensors; the model is not changed.

    Args:
        with_weights: run it on the inputs and weights as they are, in evaluation mode, which changes no statistics.
    """
    if with_weights:
        training = {module: module.training for module in model.modules()}
        try:
            with torch.no_grad():
                return model.eval()(inputs)
        finally:
            for module, mode in training.items():
                module.training = mode
    state: dict[str, Tensor] = {}
    seen: dict[int, Tensor] = {}
    for path, module in model.named_modules():
        own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        for name, tensor in own:
            seen.setdefault(id(tensor), tensor.detach().to("meta"))
            state[f"{path}.{name}" if path else name] = seen[id(tensor)]
    with torch.no_grad():
        # Name each tensor of each module once: torch's own tying leaves a module that occurs twice without weights.
        return torch.func.functional_call(model, state, (inputs.to("meta"),), tie_weights=False)
