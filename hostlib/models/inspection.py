"""Inspect a model's layers by one forward pass on meta tensors: no weights are allocated and nothing is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hostlib.errors import ContentsError, ModelError
from hostlib.models.forward_recorder import OF_A_CONVOLUTION, Seen, Watch, kind_of, run
from hostlib.models.layer_info import Family, LayerInfo, family_of
from hostlib.models.loading import describe, image_shape, load_model, load_without_weights

DEFAULT_INPUT = (3, 224, 224)
EXAMPLES = 2  # batch normalisation rejects a single example


@dataclass(frozen=True, slots=True)
class Inspected:
    """A model without weights.

    Attributes:
        input: shape of one example.
        classes: number of classes: the width of its output.
        order: the layers' indices in the order of their first calls.
        gradients: elements of each trained parameter's gradient, and bytes of an element, by name.
        uncounted_flops: of one example's forward pass, in matrix products that are in no layer's operations.
    """

    name: str
    layers: tuple[LayerInfo, ...]
    input: tuple[int, ...]
    classes: int
    order: tuple[int, ...]
    gradients: dict[str, tuple[int, int]]
    uncounted_flops: int

    @property
    def params(self) -> int:
        return sum(layer.params for layer in self.layers)

    @property
    def flops(self) -> int:
        return sum(layer.flops for layer in self.layers)


def load(text: str, shape: tuple[int, ...] | None = None, with_weights: bool = False) -> Inspected:
    """Build and inspect a model of the zoo, or of `package.module:factory`.

    Args:
        shape: of one example, see image_shape() [the model's attribute input_shape, or DEFAULT_INPUT].
        with_weights: run the forward pass on the CPU with weights, for a model that depends on its tensors' values.

    Raises:
        UnknownNameError: there is no such model.
        ModelError: the factory fails, or the model rejects such input.
    """
    shape = image_shape(text, shape)
    model = load_model(text, shape) if with_weights else load_without_weights(text, shape)
    shape = shape or input_of(model)
    inputs = example(model, shape)
    try:
        seen = _traced(model, torch.zeros_like(inputs, device="cpu") if with_weights else inputs, with_weights)
    except ContentsError:
        raise  # no other input would help
    except ModelError as error:
        raise ModelError(f"{error}; give its input shape with --input or the model's attribute input_shape") from error
    return Inspected(
        text,
        seen.layers,
        shape,
        seen.outputs.shape[-1],
        seen.order,
        {name: (p.numel(), p.element_size()) for name, p in model.named_parameters() if p.requires_grad},
        seen.uncounted_flops,
    )


def layers_of(model: nn.Module, inputs: Tensor) -> tuple[LayerInfo, ...]:
    """The layers that count, in the order in which the model constructs them. The model is not changed.

    Args:
        inputs: a batch on any device; only its shape and dtype matter.

    Raises:
        ModelError: the model rejects the input, or depends on the values in its tensors.
    """
    return _traced(model, inputs).layers


def operations(model: nn.Module, inputs: Tensor) -> tuple[int, Family]:
    """FLOPs of one example's forward pass, and the kind of model. The model is not changed.

    Args:
        inputs: a batch on any device; only its shape and dtype matter.

    Raises:
        ModelError: see layers_of.
    """
    seen = _traced(model, inputs)
    flops = [(layer.kind, layer.flops) for layer in seen.layers]
    return sum(count for _, count in flops) + seen.uncounted_flops, family_of(flops)


def output_shape(model: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the model's output for one example.

    Raises:
        ModelError: the model rejects such input.
    """
    return tuple(_outputs(model, example(model, shape)).shape[1:])


def input_of(model: nn.Module) -> tuple[int, ...]:
    """The shape of one example: the model's attribute input_shape, or DEFAULT_INPUT."""
    return tuple(getattr(model, "input_shape", DEFAULT_INPUT))


def dtype_of(model: nn.Module) -> torch.dtype:
    """The input's dtype: the model's attribute input_dtype; else int64 if it has embeddings and no convolutions."""
    kinds = {kind_of(module) for module in model.modules()}
    usual = torch.int64 if "embedding" in kinds and "conv" not in kinds else torch.float32
    found: torch.dtype = getattr(model, "input_dtype", usual)
    return found


def example(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """A meta tensor with a batch of examples of a shape."""
    return torch.empty(EXAMPLES, *shape, dtype=dtype_of(model), device="meta")


@dataclass(frozen=True, slots=True)
class _Traced:
    """A forward pass.

    Attributes:
        order: the layers' indices in the order of their first calls.
        product_flops: of all convolutions and matrix products, for one example.
    """

    layers: tuple[LayerInfo, ...]
    order: tuple[int, ...]
    product_flops: int
    outputs: Tensor

    @property
    def uncounted_flops(self) -> int:
        """Of one example, in matrix products that are in no layer's operations."""
        counted = sum(layer.flops for layer in self.layers if layer.kind in ("conv", "fc", "attention"))
        return max(0, self.product_flops - counted)


def _traced(model: nn.Module, inputs: Tensor, with_weights: bool = False) -> _Traced:
    with FlopCounterMode(display=False) as counter, Watch(model) as watch:
        outputs = _outputs(model, inputs, with_weights)
    owned = _joined(watch.in_order(), _owners(model))
    uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    layers = tuple(_numbered(owned, len(inputs), uses))
    order = sorted(range(len(owned)), key=lambda index: owned[index][0].place)
    return _Traced(layers, tuple(index + 1 for index in order), counter.get_total_flops() // len(inputs), outputs)


def _outputs(model: nn.Module, inputs: Tensor, with_weights: bool = False) -> Tensor:
    """The model's output; the first if there are several."""
    try:
        outputs = run(model, inputs, with_weights)
    except Exception as error:  # the model may be the user's and raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        # torch's wordings for the missing values of a meta tensor, and for parameters whose sizes the first input tells
        if "meta tensor" in str(error).lower() or "uninitialized parameter" in str(error):
            raise ContentsError(
                f"the model's forward pass depends on values in its tensors, which inspection does not have: {reason}"
            ) from error
        described = f"{describe(tuple(inputs.shape[1:]))} ({str(inputs.dtype).removeprefix('torch.')})"
        raise ModelError(f"the model does not take an input of {described}: {reason}") from error
    while not isinstance(outputs, Tensor):  # (logits, auxiliary), {"logits": ...}
        try:
            outputs = next(iter(outputs.values() if isinstance(outputs, dict) else outputs))
        except (TypeError, StopIteration):
            raise ModelError(f"the model returns a {type(outputs).__name__}, not a tensor") from None
    return outputs


Owned = tuple[Seen, dict[str, nn.Parameter]]


def _owners(model: nn.Module) -> dict[int, str]:
    """The name of each trained parameter, by identity; a shared parameter's first name."""
    return {id(p): name for name, p in model.named_parameters() if p.requires_grad}


def _joined(seen: Iterable[Seen], names: dict[int, str]) -> list[Owned]:
    """Layers with their own parameters; a normalisation belongs to the convolution constructed before it."""
    free = dict(names)
    layers: list[Owned] = []
    before: dict[str, nn.Parameter] | None = None
    for layer in seen:
        module = layer.module
        own = {} if module is None else {free.pop(id(p)): p for p in _parameters(layer) if id(p) in free}
        if before is not None and isinstance(module, OF_A_CONVOLUTION):
            before |= own
            continue
        layers.append((layer, own))
        if layer.kind in ("conv", "fc"):
            before = own
    return layers


def _parameters(layer: Seen) -> Iterator[nn.Parameter]:
    """Parameters of a layer, including those of its submodules if it counts as a whole."""
    assert layer.module is not None
    return layer.module.parameters(recurse=layer.kind != "other")


def _numbered(owned: Iterable[Owned], examples: int, uses: Counter[int]) -> Iterator[LayerInfo]:
    for index, (seen, members) in enumerate(owned, start=1):
        yield LayerInfo(
            index,
            seen.name,
            seen.kind,
            sum(p.numel() for p in members.values()),
            seen.output // examples,
            seen.flops // examples,
            _matrix(seen, uses),
            tuple(members),
        )


def _matrix(seen: Seen, uses: Counter[int]) -> tuple[int, int] | None:
    """(outputs, inputs) of a fully connected layer's trained weights, if no other layer uses them."""
    module: Any = seen.module
    if seen.kind != "fc" or not module.weight.requires_grad or uses[id(module.weight)] != 1:
        return None
    return module.out_features, module.in_features
