"""Latency and bandwidth between each two ranks: measured by `hostlib bench --probe`, read by predictors."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
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
        if not self.latency_us >= 0 or not self.gbit_s > 0:
            raise HostlibError(f"ranks {self.first} and {self.second} have an impossible latency or bandwidth")


def as_json(links: list[PairLink]) -> dict[str, Any]:
    return {"schema": SCHEMA, "links": [asdict(link) for link in links]}


def write_links(links: list[PairLink], path: Path) -> None:
    """Write links to a file, as JSON. Raises HostlibError: it cannot be written."""
    try:
        path.write_text(json.dumps(as_json(links), indent=2) + "\n")
    except OSError as error:
        raise HostlibError(f"{path} cannot be written: {error.strerror}") from None


def read_links(path: Path) -> list[PairLink]:
    """Read what `hostlib bench --probe --output FILE` wrote.

    Raises:
        HostlibError: the file cannot be read, or is something else.
    """
    try:
        found = parse_json(read_bytes(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise HostlibError(f"{path} cannot be read: {reason}") from None
    try:
        if found["schema"] != SCHEMA:
            raise KeyError("schema")
        return [PairLink(**link) for link in found["links"]]
    except (TypeError, KeyError):
        raise HostlibError(f"{path} has no links that `hostlib bench --probe` measured") from None
