"""Load models by name: from the zoo, or from a user's function."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hostlib.errors import ModelError
from hostlib.models.small import build_model
from hostlib.models.zoo import build, options_of, parse
from hostlib.models.zoo.catalogue import ENTRIES, NAMES, SMALL, SMALL_INPUT, require_known


def load_model(text: str, shape: tuple[int, ...] | None = None, **wishes: Any) -> nn.Module:
    """Build a model, freshly initialised from torch's seed; without weights under torch.device("meta").

    Args:
        text: a network of the zoo with its options, `resnet50:norm=group`, or `package.module:factory`.
        shape: of one example; a zoo network is built for it, and may have its own version for images of 8x8 pixels
            (hostlib.models.small). Ignored for a factory's model.
        wishes: options for zoo networks; those in `text` take precedence, and options that a network does not have are
            dropped.

    Raises:
        UnknownNameError: there is no such network, or it has no such option.
        ModelError: the factory does not exist, fails, or returns something else.
        HostlibError: the network cannot be built with these options.
    """
    plain, _, attribute = text.partition(":")
    require_known(text)
    if text in SMALL and (shape == SMALL_INPUT or text not in NAMES):
        return build_model(text)
    if plain in NAMES:
        name, chosen = parse(text)
        wishes |= {} if shape is None else _sizes(name, shape)
        legal = options_of(name)
        try:
            return build(name, **{**{k: v for k, v in wishes.items() if k in legal}, **chosen})
        except RuntimeError as error:  # from torch: sizes beyond its integers, or out of memory
            raise ModelError(f"{text} cannot be built: {_first_line(error)}") from error
    factory = _factory(text, plain, attribute)
    try:
        made = factory()
    except (Exception, SystemExit) as error:  # the user's function may raise anything
        raise ModelError(f"{text} does not build a model: {_first_line(error)}") from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"{text} returns a {type(made).__name__}, not a torch.nn.Module")
    return made


def _sizes(name: str, shape: tuple[int, ...]) -> dict[str, int]:
    """The options that adapt a network to examples of a shape."""
    usual = ENTRIES[name].input
    if len(shape) != len(usual):
        raise ModelError(f"{name} takes {_what(usual)}, not {describe(shape)}")
    if len(shape) == 1:
        return {"context": shape[0]}
    if shape[1] != shape[2]:
        raise ModelError(f"{name} takes square images, not {describe(shape)}")
    return {"channels": shape[0], "pixels": shape[1]}


def _what(shape: tuple[int, ...]) -> str:
    return f"{'tokens' if len(shape) == 1 else 'images'}, such as {describe(shape)}"


def load_without_weights(text: str, shape: tuple[int, ...] | None = None) -> nn.Module:
    """As load_model(), on the meta device; with real weights first if a factory needs their values.

    Raises:
        UnknownNameError: there is no such network, or it has no such option.
        ModelError: the factory does not exist, fails, or returns something else.
    """
    try:
        with torch.device("meta"):
            return load_model(text, shape)
    except ModelError as error:
        if not isinstance(error.__cause__, (RuntimeError, NotImplementedError)):
            raise
    return load_model(text, shape).to("meta")


def _factory(text: str, module: str, attribute: str) -> Callable[[], Any]:
    # An installed command does not search its working directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # importing runs the user's code
        raise ModelError(f"{text} does not build a model: {_first_line(error)}") from error
    if not callable(found):
        raise ModelError(f"{text} does not build a model: it is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0]}" if lines else name


def describe(shape: tuple[int, ...]) -> str:
    """Format (3, 224, 224) as 3x224x224."""
    return "x".join(map(str, shape))


def image_shape(text: str, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """A shape as `--input` takes it: (224,) is short for (3, 224, 224) of a network that takes images."""
    plain = text.partition(":")[0]
    images = plain in SMALL or (plain in NAMES and len(ENTRIES[plain].input) == 3)
    return (3, *shape, *shape) if images and shape is not None and len(shape) == 1 else shape
