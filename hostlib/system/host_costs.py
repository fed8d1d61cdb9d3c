"""What a host's cores take for a rank's work: measured by `hostlib bench --calibrate`, charged by the simulator."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hostlib.errors import HostlibError
from hostlib.system.user_file import parse_json, read_bytes

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Rates of one core, in 10^9 bytes of values per second unless they say otherwise.

    Attributes:
        cpu, cores: its model, and how many of them a process may use.
        date: of the measurement, ISO 8601.
        versions: name -> version of what was measured.
        add_gb_s: of float32 sums.
        copy_gb_s: copied by memcpy.
        pack_gb_s, unpack_gb_s: to the slot protocol's packets of integers, and back.
        packets_per_s: packets of the slot protocol, each of which is sent and another received.
        packet_values_bytes: values in each of these packets.
        tcp_gb_s: sent over TCP while as many are received.

    Raises:
        HostlibError: a rate or a number is not above 0 and finite, or a text is none.
    """

    cpu: str
    cores: int
    date: str
    versions: dict[str, str]
    add_gb_s: float
    copy_gb_s: float
    pack_gb_s: float
    unpack_gb_s: float
    packets_per_s: float
    packet_values_bytes: int
    tcp_gb_s: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "str" and not isinstance(value, str):
                raise HostlibError(f"{field.name} must be a text, not {value!r}")
            if field.type not in ("int", "float"):
                continue
            whole = field.type == "int"
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not value > 0:
                raise HostlibError(f"{field.name} must be a {'whole ' if whole else ''}number above 0, not {value!r}")
            if not math.isfinite(value):
                raise HostlibError(f"{field.name} must be finite, not {value!r}")
        texts = self.versions.items() if isinstance(self.versions, dict) else [(None, None)]
        if not all(isinstance(each, str) for pair in texts for each in pair):
            raise HostlibError(f"versions must be a table of texts, not {self.versions!r}")

    def as_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


def write_costs(costs: HostCosts, path: Path) -> None:
    """Write costs to a file, as JSON.

    Raises:
        HostlibError: it cannot be written.
    """
    try:
        path.write_text(json.dumps(costs.as_json(), indent=2) + "\n")
    except OSError as error:
        raise HostlibError(f"{path} cannot be written: {error.strerror}") from None


def read_costs(path: Path) -> HostCosts:
    """Read a file of write_costs.

    Raises:
        HostlibError: it cannot be read, is of another schema, or lacks a key.
    """
    again = "`hostlib bench --calibrate --output FILE` writes one"
    try:
        found = parse_json(read_bytes(path))
    except OSError as error:
        raise HostlibError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise HostlibError(f"{path} is not a file of hosts' costs; {again}") from None
    if not isinstance(found, dict) or "schema" not in found:
        raise HostlibError(f"{path} is not a file of hosts' costs; {again}")
    if found["schema"] != SCHEMA:
        raise HostlibError(f"{path} has schema {found['schema']!r}, and this version reads {SCHEMA}; {again}")
    names = [field.name for field in fields(HostCosts)]
    if missing := [name for name in names if name not in found]:
        raise HostlibError(f"{path} lacks {', '.join(missing)}; {again}")
    try:
        return HostCosts(**{name: found[name] for name in names})
    except HostlibError as error:
        raise HostlibError(f"{path}: {error}") from None
