"""The papers' networks, by name. Torch-free until one is built."""

from __future__ import annotations

import importlib
import inspect
import typing
from typing import TYPE_CHECKING, Any

from hostlib.errors import UnknownNameError
from hostlib.models.zoo.catalogue import ENTRIES, NAMES
from hostlib.models.zoo.variants import USUAL, VARIANTS
from hostlib.text.name_options import option_value, without_none

if TYPE_CHECKING:
    from torch import nn

__all__ = ["NAMES", "build", "options_of", "parse"]


def build(name: str, **overrides: Any) -> nn.Module:
    """Build a network by name, freshly initialised from torch's seed; without weights under torch.device("meta").

    Its attributes input_shape and classes give its input's shape and its number of classes.

    Args:
        overrides: options of its family, such as classes=10, pixels=32, channels=1, norm="group" or
            variant="cifar10", which determines the first three unless they are given.

    Raises:
        UnknownNameError: there is no such network, or it has no such option.
        ModelError: the image is too small for it, or an option's value is impossible.
    """
    legal = options_of(name)
    for option in overrides:
        if option not in legal:
            raise UnknownNameError(f"option of {name}", option, legal)
    entry = ENTRIES[name]
    defaults: dict[str, Any] = {"classes": entry.classes}
    if len(entry.input) == 1:
        defaults["context"] = entry.input[0]
    else:
        defaults |= {"channels": entry.input[0], "pixels": entry.input[-1]}
    if (variant := overrides.get("variant", USUAL)) != USUAL:
        defaults |= VARIANTS[variant].sizes
    made, layout = _maker(name)
    return made(*layout, **{**defaults, **overrides})


def options_of(name: str) -> dict[str, Any]:
    """The options of a network, and their types.

    Raises:
        UnknownNameError: there is no such network.
    """
    if name not in ENTRIES:
        raise UnknownNameError("model", name, NAMES)
    init = _maker(name)[0].__init__
    hints = typing.get_type_hints(init)
    parameters = inspect.signature(init).parameters.values()
    return {each.name: without_none(hints[each.name]) for each in parameters if each.kind is each.KEYWORD_ONLY}


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Parse `vgg19:classes=1000:pixels=299` into name and options.

    Raises:
        UnknownNameError: there is no such network or option.
        ModelError: an option's value has the wrong type.
    """
    name, *words = text.split(":")
    legal = options_of(name)
    chosen = {}
    for word in words:
        option, _, value = word.partition("=")
        if option not in legal:
            raise UnknownNameError(f"option of {name}", option, legal)
        chosen[option] = option_value(f"{name}:{option}", legal[option], value)
    return name, chosen


def _maker(name: str) -> tuple[type[nn.Module], tuple[Any, ...]]:
    """The class of a network, and its positional arguments."""
    family = importlib.import_module(f"{__name__}.{ENTRIES[name].family}")
    models: dict[str, tuple[type[nn.Module], tuple[Any, ...]]] = family.MODELS
    return models[name]
