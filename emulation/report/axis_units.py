"""Format the report's numbers, always with their units."""

from __future__ import annotations

import math
from datetime import datetime

RATES = ((10**12, "Tbit/s"), (10**9, "Gbit/s"), (10**6, "Mbit/s"), (10**3, "kbit/s"), (1, "bit/s"))
DELAYS_NS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
SIZES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))


def three_digits(value: float) -> str:
    """Three significant digits, no exponent, and at most three digits after the point."""
    if value == 0:
        return "0"
    return f"{value:,.{min(3, max(0, 2 - math.floor(math.log10(abs(value)))))}f}"


def milliseconds(value: float) -> str:
    return f"{three_digits(value)} ms"


def rate(bits_s: float) -> str:
    return _scaled(bits_s, RATES)


def size(bytes_: float) -> str:
    return "0 B" if bytes_ == 0 else _scaled(bytes_, SIZES)


def _scaled(value: float, units: tuple[tuple[int, str], ...]) -> str:
    scale, unit = next((pair for pair in units if value >= pair[0]), units[-1])
    shown = f"{value / scale:,.10g}" if value / scale == round(value / scale) else three_digits(value / scale)
    return f"{shown} {unit}"


def scale_of(largest: float, units: tuple[tuple[int, str], ...]) -> tuple[int, str]:
    """The unit for an axis that ends at `largest`."""
    return next((pair for pair in units if largest >= pair[0]), units[-1])


def delay(nanoseconds: float) -> str:
    return "0 s" if nanoseconds == 0 else _scaled(nanoseconds, DELAYS_NS)


def times(factor: float) -> str:
    return f"{factor:.2f}" if factor < 10 else three_digits(factor)


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if abs(share) >= 0.1 else f"{100 * share:.2g} %"


def signed_percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "\N{MINUS SIGN}")


def counted(number: int, what: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def moment(text: str) -> str:
    """A time in ISO format, to the minute; other texts unchanged."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{parsed:%Y-%m-%d %H:%M} {parsed.tzname() or ''}".rstrip()
