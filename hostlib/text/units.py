"""Parse quantities with units: 25gbit, 16MiB, 5us."""

from __future__ import annotations

import re

from hostlib.errors import QuantityError

PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
VALUE = "value"  # what a quantity is called whose option stands before it
BANDWIDTHS = {f"{prefix}bit": factor for prefix, factor in PREFIXES.items()}
# Common other spellings: 25Gbit/s, 25Gbps, 25Gb/s, 25G.
SPELLINGS = {
    **BANDWIDTHS,
    **{f"{prefix}{ending}": factor for prefix, factor in PREFIXES.items() for ending in ("bit/s", "bps", "b/s")},
    **{prefix: factor for prefix, factor in PREFIXES.items() if prefix},
}
BYTES_PER_S = re.compile(r"[kmgtKMGT]?(B|Bps|B/s|[Bb]ytes?/s)")
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
TOO_MUCH = 2**63  # factors to bits per second, bytes or nanoseconds
TIMES_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def bandwidth(text: str, what: str = "bandwidth") -> float:
    """Bits per second, from `25gbit`.

    Args:
        what: what the message calls the quantity.

    Raises:
        QuantityError: the text is not a bandwidth, or not above 0.
    """
    number, unit = _split(text)
    if BYTES_PER_S.fullmatch(unit):
        raise QuantityError(f"{what} {text!r} is in bytes; links are in bits per second (as in 25gbit)")
    value = _times(text, number, unit, SPELLINGS, what, f"{', '.join(BANDWIDTHS)} (as in 25gbit)")
    if value <= 0:
        raise QuantityError(f"{what} {text!r} is not above 0")
    return value


def size(text: str, what: str = "size") -> int:
    """Bytes, from `16MiB` or `16777216`. Raises QuantityError, as `bandwidth` does."""
    return round(_times(text, *_split(text), SIZES, what, f"{', '.join(filter(None, SIZES))} (as in 16MiB)"))


def frame_range(text: str, what: str = "frames") -> tuple[int, int]:
    """Two numbers of frames, from `30:90`. Raises QuantityError: not of that form, or they are in the wrong order."""
    words = text.split(":")
    if len(words) != 2 or not all(word.isdecimal() and word.isascii() for word in words):
        raise QuantityError(f"{what} {text!r} is not two numbers of frames, FROM:TO (as in 30:90)")
    first, last = map(int, words)
    if not 1 <= first <= last < 2**31:
        raise QuantityError(
            f"{what} {text!r} is not FROM:TO with FROM at least 1, TO at least FROM, and both below 2^31"
        )
    return first, last


def time_ns(text: str, what: str = "time", bare: str = "") -> int:
    """Nanoseconds, from `5us`.

    Args:
        bare: the unit of a number without one; none is legal if it is empty.

    Raises:
        QuantityError: not of that form; it calls the time `what`.
    """
    number, unit = _split(text)
    return round(_times(text, number, unit or bare, TIMES_NS, what, f"{', '.join(TIMES_NS)} (as in 5us)"))


def throughput(text: str, what: str = "throughput") -> float:
    """Bytes per second, from `10GB/s`. Raises QuantityError, as `bandwidth` does."""
    number, unit = _split(text)
    if not number or not BYTES_PER_S.fullmatch(unit):
        raise QuantityError(f"{what} {text!r} is not a number and one of B/s, kB/s, MB/s, GB/s, TB/s (as in 10GB/s)")
    value = float(number) * PREFIXES.get(unit[0].lower(), 1)
    if not 0 < value < TOO_MUCH:
        raise QuantityError(f"{what} {text!r} is not above 0 and less than 2^63")
    return value


def _split(text: str) -> tuple[str, str]:
    """Split a text into its number (empty if there is none) and what follows it."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*(?:/s)?)\s*", text)
    return ("", "") if found is None else (found[1], found[2])


def _times(text: str, number: str, unit: str, units: dict[str, int], what: str, legal: str) -> float:
    if not number or unit.lower() not in units:
        raise QuantityError(f"{what} {text!r} is not a number and one of {legal}")
    value = float(number) * units[unit.lower()]
    if not value < TOO_MUCH:
        raise QuantityError(f"{what} {text!r} is too large: less than 2^63 is legal")
    return value
