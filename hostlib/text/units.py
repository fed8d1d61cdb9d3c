"""Numbers with units, as people write them: 25gbit, 16MiB, 5us."""

from __future__ import annotations

import re

from hostlib.errors import QuantityError

BANDWIDTHS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
SIZES = {
    "": 1,
    "b": 1,
    "k": 2**10,
    "kib": 2**10,
    "m": 2**20,
    "mib": 2**20,
    "g": 2**30,
    "gib": 2**30,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}
TIMES_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def bandwidth(text: str, what: str = "bandwidth") -> float:
    """Bits per second, from `25gbit`.

    Raises:
        QuantityError: not of that form, or not above 0; it calls the number `what`.
    """
    value = _parse(text, BANDWIDTHS, what, "25gbit")
    if value <= 0:
        raise QuantityError(f"{what} {text!r} is not above 0")
    return value


def size(text: str, what: str = "size") -> int:
    """Bytes, from `16MiB` or `16777216`. Raises QuantityError, as `bandwidth` does."""
    return round(_parse(text, SIZES, what, "16MiB"))


def time_ns(text: str, what: str = "time") -> int:
    """Nanoseconds, from `5us`. Raises QuantityError, as `bandwidth` does."""
    return round(_parse(text, TIMES_NS, what, "5us"))


def _parse(text: str, units: dict[str, int], what: str, example: str) -> float:
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2].lower() not in units:
        legal = ", ".join(unit for unit in units if unit)
        raise QuantityError(f"{what} {text!r} is not a number and one of {legal} (as in {example})")
    return float(found[1]) * units[found[2].lower()]
