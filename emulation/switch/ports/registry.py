"""The kinds of port by name: each module of this package with a KIND."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache

from emulation.errors import PortError
from emulation.switch import ports
from emulation.switch.ports.port_spec import LINK_OPTIONS, RENAMED, Faults, Kind, Place, PortSpec, Shape, with_options


@cache
def kinds() -> Mapping[str, Kind]:
    """All kinds of port; the one that needs no name comes last."""
    modules = [
        importlib.import_module(f"{ports.__name__}.{each.name}") for each in pkgutil.iter_modules(ports.__path__)
    ]
    found = [module.KIND for module in modules if hasattr(module, "KIND")]
    return {kind.name: kind for kind in sorted(found, key=lambda kind: (kind.bare, kind.name))}


def port_help() -> str:
    """Help text for `--port`."""
    places = "; ".join(kind.summary for kind in kinds().values())
    own = "".join(f"; of {kind.name} {text}" for kind in kinds().values() for text in kind.options.values())
    return (
        f"Switch port N. WHERE is {places}. NAME is {', '.join(LINK_OPTIONS)}, as the option, for this port alone{own}."
    )


def parse_port(text: str, faults: Faults | None = None, shape: Shape | None = None) -> PortSpec:
    """Parse `N=WHERE[,NAME=VALUE...]`; `faults` and `shape` are the defaults.

    Raises:
        PortError: not of that form, or a number that v1model does not have.
    """
    number, equals, rest = text.partition("=")
    where = [word for i, word in enumerate(rest.split(",")) if i == 0 or "=" not in word]
    options = dict(_option(word) for word in rest.split(",")[1:] if "=" in word)
    if not equals or not (number.isdecimal() and number.isascii()):
        raise PortError(f"port {text!r} is not NUMBER=WHERE[,NAME=VALUE...], with WHERE one of {_forms()}")
    try:
        linked = with_options(
            {n: v for n, v in options.items() if n in LINK_OPTIONS}, faults or Faults(), shape or Shape()
        )
        place = _place(where, {name: value for name, value in options.items() if name not in LINK_OPTIONS})
    except PortError as error:
        raise PortError(f"port {text!r}: {error}") from error
    return PortSpec(int(number), place, *linked)


def _option(word: str) -> tuple[str, str]:
    """A name and its value, by its name of today."""
    name, _, value = word.partition("=")
    return RENAMED.get(name, name), value


def parse_place(where: str) -> Place:
    """Parse WHERE alone.

    Raises:
        PortError: not of the form of any kind.
    """
    return _place(where.split(","), {})


def _place(where: Sequence[str], options: Mapping[str, str]) -> Place:
    name, colon, first = where[0].partition(":")
    kind = kinds().get(name) if colon else next(kind for kind in kinds().values() if kind.bare)
    ends = [first if colon else name, *where[1:]]
    if kind is None or not ends[0]:
        raise PortError(f"{where[0]!r} is not WHERE, which is one of {_forms()}")
    if len(ends) > kind.most_ends:
        raise PortError(f"{ends[-1]!r} is not NAME=VALUE, and is too much for {kind.form}")
    for option in options:
        if option not in kind.options:
            known = ", ".join([*LINK_OPTIONS, *(own for each in kinds().values() for own in each.options)])
            of_another = [each.form for each in kinds().values() if option in each.options]
            raise PortError(
                f"{option} is only for {of_another[0]}" if of_another else f"there is no {option!r}; there are {known}"
            )
    return kind.parse(ends, options)


def _forms() -> str:
    return ", ".join(kind.form for kind in kinds().values())
