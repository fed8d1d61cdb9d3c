"""The table [topology] of a TOML file: what all kinds have, and one line for each that cannot be."""

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
# Texts, in the words of whoever wrote the file, for what pydantic calls the types of errors.
PHRASES = {
    "float_type": "is not a number",
    "int_type": "is not a whole number",
    "string_type": "is not a text",
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


class TableModel(BaseModel):
    """A table of which every key is known."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Quality(TableModel):
    """What cables do to frames, in each direction."""

    delay: DelayNs = 0
    loss: float = 0.0
    queue: int = QUEUE_FRAMES

    def options(self) -> dict[str, Any]:
        """Those that are set, as Cable takes them."""
        names = {"delay": "delay_ns", "loss": "loss", "queue": "queue"}
        return {argument: getattr(self, key) for key, argument in names.items() if key in self.model_fields_set}


class TopologyTable(Quality):
    """What the table of any kind of topology may have; a kind adds its own keys and says what they mean."""

    kind: str = DEFAULT_KIND

    def topology(self, workers: int, servers: int, rate_bits_s: float | None) -> Topology:
        """The network with so many hosts.

        Args:
            rate_bits_s: of a host's cable, where the table does not say.

        Raises:
            TopologyError: it cannot be.
        """
        raise NotImplementedError


Model = TypeVar("Model", bound=TableModel)


def validated(what: str, model: type[Model], table: Any) -> Model:
    """A table as its model has it.

    Raises:
        TopologyError: the first thing that is wrong with it, in one line that begins with `what` or names it.
    """
    try:
        return model.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, last = [str(part) for part in first["loc"]], str(first["loc"][-1]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            raise TopologyError(f"{what} has no {last!r}; it has {', '.join(keys_of(model))}") from None
        if first["type"] == "missing":
            raise TopologyError(f"{what} has no {last}") from None
        if first["type"] == "value_error":
            raise TopologyError(f"topology: {first['ctx']['error']}") from None
        phrase = PHRASES.get(first["type"], first["msg"]) + (" of frames" if last == "queue" else "")
        raise TopologyError(f"topology: {'.'.join(where)} {first['input']!r} {phrase}") from None


def keys_of(model: type[TableModel]) -> Iterable[str]:
    """Its own first, then those that others have, too."""
    common = Quality.model_fields
    return sorted(model.model_fields, key=lambda name: name in common)


def read_table(path: Path, tables: Iterable[str] = ()) -> dict[str, Any]:
    """The table [topology] of a TOML file; empty when it has none.

    Args:
        tables: other keys that the file may have.

    Raises:
        TopologyError: it cannot be read, that is no table, or it has a key that is none of these.
    """
    try:
        found = tomllib.loads(read_text(path))
    except OSError as error:
        raise TopologyError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"{path} is not a TOML file: {str(error).splitlines()[0]}") from error
    for key in found:
        if key not in ("topology", *tables):
            raise TopologyError(f"{path}: there is no {key!r} in a network's file; there is topology")
    table = found.get("topology", {})
    if not isinstance(table, dict):
        raise TopologyError(f"{path}: topology {table!r} is not a table ([topology])")
    return table
