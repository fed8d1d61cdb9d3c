"""Networks by name, with the options of hostlib's zoo: their layers, variables and FLOPs, without torch."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from hostlib.models.zoo.variants import USUAL, VARIANTS
from hostlib.text.name_options import option_values, without_none
from simulation.errors import ArchitectureError
from simulation.models import image_networks as image
from simulation.models import language_networks as language
from simulation.models.layer_builder import Architecture, Builder, Layer, Variable

__all__ = ["BUILDERS", "Architecture", "Builder", "Layer", "Variable", "build", "options_of"]

BUILDERS: dict[str, Callable[..., Architecture]] = {
    "alexnet": image.alexnet,
    "cifar10_quick": image.cifar10_quick,
    "googlenet": image.googlenet,
    "gpt2": language.gpt2,
    "inception3": image.inception3,
    "lenet": image.lenet,
    "mobilenet2": image.mobilenet2,
    "overfeat": image.overfeat,
    "resnet18": image.resnet18,
    "resnet50": image.resnet50,
    "resnet101": image.resnet101,
    "resnet152": image.resnet152,
    "resnet200": image.resnet200,
    "vgg11": image.vgg11,
    "vgg16": image.vgg16,
    "vgg19": image.vgg19,
    "vgg19_22k": image.vgg19_22k,
}
MOST_OPTION = 10**9
MOST_INPUT = 10**6
MOST_ELEMENTS = 10**13


def options_of(name: str) -> dict[str, Any]:
    """The options of a network, and their types.

    Raises:
        ArchitectureError: there is no such network.
    """
    if name not in BUILDERS:
        raise ArchitectureError(f"unknown model {name!r}; legal are {', '.join(sorted(BUILDERS))}")
    made = BUILDERS[name]
    hints = typing.get_type_hints(getattr(made, "func", made))
    parameters = inspect.signature(made).parameters.values()
    return {each.name: without_none(hints[each.name]) for each in parameters if each.kind is each.KEYWORD_ONLY}


def build(text: str, shape: int | tuple[int, ...] | None = None) -> Architecture:
    """A network by its name and options, as `vgg19:classes=1000`.

    Args:
        shape: of one example: (channels, width, width), or one number for the width of square images or for so many
            tokens; None for what the options say, or the network's own.

    Raises:
        ArchitectureError: no such network; an input too small for it; a value out of range.
        HostlibError: it has no such option, or an option's value has the wrong type.
    """
    name, *words = text.split(":")
    kinds = options_of(name)
    chosen = option_values(name, words, kinds)
    for option, value in chosen.items():
        if type(value) is int and option != "version" and not 1 <= value <= MOST_OPTION:
            raise ArchitectureError(f"{name}:{option} must be at least 1 and at most {MOST_OPTION}, not {value}")
    for option, value in _sizes(name, kinds, (shape,) if isinstance(shape, int) else shape or ()).items():
        if chosen.setdefault(option, value) != value:
            raise ArchitectureError(f"{text} has other {option} than --input: leave one of them out")
    if (variant := chosen.get("variant", USUAL)) != USUAL:
        chosen = {**VARIANTS[variant].sizes, **chosen}
    made = BUILDERS[name](**chosen)
    if made.elements > MOST_ELEMENTS:
        raise ArchitectureError(f"{text} has {made.elements:.3g} parameters; at most {MOST_ELEMENTS:.0e} are simulated")
    return made


def _sizes(name: str, kinds: dict[str, Any], shape: tuple[int, ...]) -> dict[str, int]:
    """The options that adapt a network to examples of a shape."""
    if not shape:
        return {}
    text = "x".join(map(str, shape))
    images = "pixels" in kinds
    if images and not (len(shape) == 1 or (len(shape) == 3 and shape[1] == shape[2])):
        raise ArchitectureError(f"{name} takes square images, such as 3x224x224, not {text}")
    if not images and len(shape) != 1:
        raise ArchitectureError(f"{name} takes tokens, such as 1024, not {text}")
    unit = "pixel" if images else "token"
    if min(shape) < 1:
        raise ArchitectureError(f"--input must be at least 1 {unit}, not {text}")
    if max(shape) > MOST_INPUT:
        raise ArchitectureError(f"--input must be at most {MOST_INPUT} {unit}s, not {text}")
    if not images:
        return {"context": shape[0]}
    return {"pixels": shape[-1]} | ({"channels": shape[0]} if len(shape) == 3 else {})
