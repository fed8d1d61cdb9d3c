"""Latency and bandwidth between each two ranks: measured by `hostlib bench --probe`, read by predictors."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from hostlib.errors import HostlibError
from hostlib.system.user_file import parse_json, read_bytes

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class PairLink:
    """Between two ranks, over the ranks' transport.

    Attributes:
        latency_us: of a message of one value, one way: half of its round trip.
        gbit_s: of a large message, without its latency.
    """

    first: int
    second: int
    latency_us: float
    gbit_s: float

    def __post_init__(self) -> None:
        if not all(type(each) is int and each >= 0 for each in (self.first, self.second)):
            raise HostlibError(
                f"{self.first!r} and {self.second!r} are not two ranks, which are whole numbers from 0 on"
            )
        where = f"ranks {self.first} and {self.second}"
        if self.first == self.second:
            raise HostlibError(f"{where} are the same: a link is between two")
        for name, value, least in (("latency_us", self.latency_us, 0.0), ("gbit_s", self.gbit_s, math.ulp(0.0))):
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
                legal = "at least 0" if least == 0 else "above 0"
                raise HostlibError(f"{where}: {name} must be a number {legal}, and finite, not {value!r}")


def as_json(links: list[PairLink]) -> dict[str, Any]:
    return {"schema": SCHEMA, "links": [asdict(link) for link in links]}


def write_links(links: list[PairLink], path: Path) -> None:
    """Write links to a file, as JSON. Raises HostlibError: it cannot be written."""
    try:
        path.write_text(json.dumps(as_json(links), indent=2) + "\n")
    except OSError as error:
        raise HostlibError(f"{path} cannot be written: {error.strerror}") from None


def read_links(path: Path) -> list[PairLink]:
    """Read what `hostlib bench --probe --output FILE` wrote: a link between each two ranks, the lower rank first.

    Raises:
        HostlibError: the file cannot be read, is something else, or lacks a pair.
    """
    try:
        found = parse_json(read_bytes(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise HostlibError(f"{path} cannot be read: {reason}") from None
    if not isinstance(found, dict) or not isinstance(found.get("links"), list):
        raise HostlibError(f"{path} has no links that `hostlib bench --probe` measured")
    if found.get("schema") != SCHEMA:
        raise HostlibError(f"{path} has schema {found.get('schema')!r}; {SCHEMA} is legal, of `hostlib bench --probe`")
    links: dict[tuple[int, int], PairLink] = {}
    for row in found["links"]:
        try:
            link = PairLink(**row)
        except TypeError:
            names = ", ".join(each.name for each in fields(PairLink))
            raise HostlibError(f"{path}: a row of links must have {names}, and nothing else") from None
        except HostlibError as error:
            raise HostlibError(f"{path}: {error}") from None
        if link.first > link.second:
            link = replace(link, first=link.second, second=link.first)
        if (link.first, link.second) in links:
            raise HostlibError(f"{path} has two links between ranks {link.first} and {link.second}")
        links[link.first, link.second] = link
    _require_all(path, links)
    return list(links.values())


def _require_all(path: Path, links: Collection[tuple[int, int]]) -> None:
    """Check that there is a link between each two ranks. Raises HostlibError: one is missing."""
    if not links:
        raise HostlibError(f"{path} has no links that `hostlib bench --probe` measured")
    ranks = 1 + max(second for _, second in links)
    # Pair by pair: a file may name a rank of any size.
    pairs = ((first, second) for second in range(ranks) for first in range(second))
    missing = next((pair for pair in pairs if pair not in links), None)
    if missing is not None:
        first, second = missing
        raise HostlibError(
            f"{path} has no link between ranks {first} and {second}; each two of its {ranks} ranks need one"
        )
