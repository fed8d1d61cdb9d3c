"""A model by name: its layers, from netfold's tables or, for a user's own, by PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hostlib.models.layer_info import Family, LayerInfo, family_of
from hostlib.models.users_model import inspect_model
from hostlib.models.zoo.catalogue import FACTORY, SMALL, SMALL_INPUT, is_factory
from simulation.errors import ArchitectureError
from simulation.models import published_times
from simulation.models.architectures import BUILDERS, Architecture, build
from simulation.models.layer_builder import Layer, Variable

Shape = int | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """A model without weights.

    Attributes:
        text: as the user named it.
        layers: as strategies see them, without auxiliary heads.
        source: where its layers are from.
    """

    text: str
    architecture: Architecture
    layers: tuple[LayerInfo, ...]
    source: str

    @property
    def name(self) -> str:
        """Its name without options."""
        return self.text if is_factory(self.text) else self.text.partition(":")[0]

    @property
    def family(self) -> Family:
        return family_of((layer.kind, layer.flops) for layer in self.architecture.layers)


def describe(text: str, shape: Shape = None, published: bool = False) -> DescribedModel:
    """Describe a model.

    Args:
        text: a network of the zoo with its options, `resnet50:classes=10`, or `package.module:factory`.
        shape: of one example; an int for the width of square images, or for so many tokens [the model's own].
        published: of the size whose times are published, unless text or shape say another.

    Raises:
        ArchitectureError: there is no such model, the input is too small for it, or an option is out of range.
        HostlibError: it has no such option; see inspect_model for a user's own.
    """
    extents = (shape,) if isinstance(shape, int) else None if shape is None else tuple(shape)
    if published and extents is None and ":pixels=" not in text and ":variant=" not in text:
        extents = (published_times.PIXELS,)
    return _described(text, extents)


@cache
def _described(text: str, shape: tuple[int, ...] | None) -> DescribedModel:
    name = text.partition(":")[0]
    small = text in SMALL and (shape == SMALL_INPUT or name not in BUILDERS)
    if name in BUILDERS and not small:
        made = build(text, shape)
        return DescribedModel(text, made, layers_of(made), "netfold's table of the network (docs/models.md)")
    if not small and not is_factory(text):
        legal = ", ".join(sorted({*BUILDERS, *SMALL}))
        raise ArchitectureError(f"unknown model {text!r}; legal are {legal}; or {FACTORY}, or a trace's file")
    seen = inspect_model(text, shape)
    made = _architecture(seen)
    return DescribedModel(text, made, seen.layers, "inspected by PyTorch, without training")


def _architecture(seen: Any) -> Architecture:
    """An inspected model (hostlib.models.inspection.Inspected), its layers in the order of their first calls.

    Matrix products that belong to no layer are those of layers whose operations are unknown, by their parameters; if
    there are none, they are spread over all layers by their FLOPs.
    """
    by_index = {layer.index: layer for layer in seen.layers}
    ordered = [by_index[index] for index in seen.order]
    unknown = [layer.params if layer.kind == "other" and not layer.flops else 0 for layer in ordered]
    weights = unknown if any(unknown) else [layer.flops for layer in ordered]
    total = sum(weights) or 1
    layers = []
    for layer, weight in zip(ordered, weights, strict=True):
        sizes = {name: seen.gradients[name] for name in layer.members}
        variables = tuple(Variable(name, count, element_bytes=size) for name, (count, size) in sizes.items())
        flops = layer.flops + round(seen.uncounted_flops * weight / total)
        layers.append(Layer(layer.name, layer.kind, variables, flops, layer.output, matrix=layer.matrix))
    return Architecture(seen.name, seen.input, tuple(layers))


def layers_of(architecture: Architecture) -> tuple[LayerInfo, ...]:
    """An architecture's layers; a batch normalisation belongs to the layer before it."""
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
        info = LayerInfo(len(layers) + 1, layer.name, kind, params, layer.outputs, layer.flops, layer.matrix, members)
        layers.append(replace(info, crossing=layer.crossing, borrowed=layer.borrowed))
    return tuple(layers)
