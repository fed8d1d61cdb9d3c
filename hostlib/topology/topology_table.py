"""The table [topology] of a TOML file: keys of all kinds, and validation with one-line errors."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from hostlib.errors import QuantityError
from hostlib.system.user_file import read_text
from hostlib.text import units
from hostlib.topology.topology import LONGEST_DELAY_NS, QUEUE_FRAMES, Topology, TopologyError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_KIND = "star"
# pydantic's error types, in words that fit a TOML file.
PHRASES = {
    "float_type": "is not a number",
    "int_type": "is not a whole number",
    "string_type": "is not a string",
    "list_type": "is not a list",
    "model_type": "is not a table",
}


def _delay(value: Any) -> Any:
    try:
        delay_ns = units.time_ns(str(value), "delay")
    except (QuantityError, OverflowError) as error:
        raise ValueError(str(error)) from None
    if delay_ns > LONGEST_DELAY_NS:
        raise ValueError(f"delay {value!r} is longer than an hour")
    return delay_ns


DelayNs = Annotated[int, BeforeValidator(_delay)]


def _mark(value: Any) -> Any:
    try:
        return units.frame_range(str(value), "mark")
    except QuantityError as error:
        raise ValueError(str(error)) from None


Mark = Annotated[tuple[int, int], BeforeValidator(_mark)]


class TableModel(BaseModel):
    """A table without unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Quality(TableModel):
    """What cables do to frames, in each direction."""

    delay: DelayNs = 0
    loss: float = 0.0
    queue: int = QUEUE_FRAMES
    mark: Mark | None = None

    def options(self) -> dict[str, Any]:
        """The values that are set, as Cable takes them."""
        names = {"delay": "delay_ns", "loss": "loss", "queue": "queue", "mark": "mark"}
        return {argument: getattr(self, key) for key, argument in names.items() if key in self.model_fields_set}


class TopologyTable(Quality):
    """The table of any kind of topology; a kind adds its own keys and makes the network.

    Attributes:
        elements: see Topology.
    """

    kind: str = DEFAULT_KIND
    elements: int | None = None

    def topology(self, workers: int, servers: int, rate_bits_s: float | None) -> Topology:
        """Make the network with given numbers of hosts.

        Args:
            rate_bits_s: of a host's cable, if the table does not set it.

        Raises:
            TopologyError: the network is impossible.
        """
        raise NotImplementedError


Model = TypeVar("Model", bound=TableModel)


def validated(what: str, model: type[Model], table: Any) -> Model:
    """Validate a table with its model.

    Raises:
        TopologyError: the first error, in one line that names the table or begins with `what`.
    """
    try:
        return model.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, last = [str(part) for part in first["loc"]], str(first["loc"][-1]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            raise TopologyError(f"{what} has no key {last!r}; legal are {', '.join(keys_of(model))}") from None
        if first["type"] == "missing":
            raise TopologyError(f"{what} has no {last}") from None
        if first["type"] == "value_error":
            raise TopologyError(f"topology: {first['ctx']['error']}") from None
        phrase = PHRASES.get(first["type"], first["msg"]) + (" of frames" if last == "queue" else "")
        raise TopologyError(f"topology: {'.'.join(where)} {first['input']!r} {phrase}") from None


def keys_of(model: type[TableModel]) -> Iterable[str]:
    """Its own keys first, then those that all kinds have."""
    common = (*Quality.model_fields, "elements")
    return sorted(model.model_fields, key=lambda name: name in common)


def read_table(path: Path, tables: Iterable[str] = ()) -> dict[str, Any]:
    """Read the table [topology] of a TOML file; empty if it has none.

    Args:
        tables: other keys that the file may have.

    Raises:
        TopologyError: the file cannot be read, `topology` is not a table, or another key is unknown.
    """
    try:
        found = tomllib.loads(read_text(path))
    except OSError as error:
        raise TopologyError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"{path} is not a TOML file: {str(error).splitlines()[0]}") from error
    for key in found:
        if key not in ("topology", *tables):
            raise TopologyError(f"{path}: unknown key {key!r}; legal is topology")
    table = found.get("topology", {})
    if not isinstance(table, dict):
        raise TopologyError(f"{path}: topology {table!r} is not a table ([topology])")
    return table
