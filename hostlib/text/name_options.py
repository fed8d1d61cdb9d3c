"""Options after a name: `ps:servers=4:colocated` is `ps` with two options."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any, Literal

from hostlib.errors import HostlibError, UnknownNameError

YES_NO = {"yes": True, "no": False}
MOST_DIGITS = 40  # of a whole number


def describe_option(parameter: inspect.Parameter) -> str:
    """Format an option for the help: `assign=whole|even|pairs`, the default first."""
    legal = _legal(parameter.annotation)
    default = next((word for word, value in YES_NO.items() if value is parameter.default), str(parameter.default))
    return f"{parameter.name}={'|'.join([default, *(word for word in legal if word != default)])}"


def _legal(kind: Any) -> tuple[str, ...]:
    if kind is bool:
        return tuple(YES_NO)
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def option_values(plain: str, words: list[str], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the options after a name: `option=value`, or `option` for yes.

    Args:
        plain: the name without options.
        kinds: option -> type; see option_value.

    Raises:
        UnknownNameError: there is no such option.
        HostlibError: a value is not of its type, or an option is given twice.
    """
    chosen = {}
    for word in words:
        option, equals, value = word.partition("=")
        if option not in kinds:
            raise UnknownNameError(f"option of {plain}", option, kinds)
        if option in chosen:
            raise HostlibError(f"{plain}:{option} is given twice")
        chosen[option] = option_value(f"{plain}:{option}", kinds[option], value if equals else "yes")
    return chosen


def option_value(what: str, kind: Any, text: str) -> Any:
    """Convert an option's text to its value.

    Args:
        what: the option, for the error.
        kind: int, float, str, bool or a Literal of texts.

    Raises:
        HostlibError: the text is not of that type; the message lists the legal values.
    """
    if kind is str:
        return text
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise HostlibError(f"{what} takes a number, not {text!r}") from None
    if kind is int:
        if not (text.isdecimal() and text.isascii() and len(text) < MOST_DIGITS):
            raise HostlibError(f"{what} takes a number, not {text!r}")
        return int(text)
    if text not in _legal(kind):
        raise UnknownNameError(what, text, _legal(kind))
    return YES_NO[text] if kind is bool else text


def without_none(kind: Any) -> Any:
    """An option's type without None, which stands for its default."""
    kinds = [each for each in typing.get_args(kind) if each is not type(None)]
    return kinds[0] if type(None) in typing.get_args(kind) else kind


def is_kind(kind: Any) -> bool:
    """Whether options may have this type: see option_value."""
    return kind in (int, float, str, bool) or typing.get_origin(kind) is Literal
