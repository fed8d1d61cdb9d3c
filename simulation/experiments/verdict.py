"""Does help from the fabric beat the hosts? In a sentence, for simulations and measurements."""

from __future__ import annotations


def compared(fabric: str, host: str, times: float, *, unresolved: str = "", took: str = "") -> str:
    """Compare the best mechanism that uses the fabric with the best of the hosts.

    Args:
        fabric, host: their names.
        times: how many times as fast the fabric is.
        unresolved: why neither is faster, as `differ by less than their measurements do`.
        took: added at the end, as `(2 ms against 3 ms)`.

    Returns:
        A sentence without its full stop.
    """
    end = f" {took}" if took else ""
    if unresolved:
        return f"{fabric} and {host}, the best host mechanism, {unresolved}{end}"
    if times >= 1:
        return f"{fabric} is {times_text(times)} times as fast as {host}, the best host mechanism{end}"
    return (
        f"the fabric does not help: {host}, a host mechanism, is {times_text(1 / times)} times as fast as {fabric}, "
        f"the best that uses the fabric{end}"
    )


def times_text(factor: float) -> str:
    """A factor with three digits."""
    return f"{factor:.2f}" if factor < 10 else f"{factor:,.0f}" if factor >= 100 else f"{factor:.1f}"
