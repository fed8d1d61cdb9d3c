"""Cells of published tables and figures, and what each simulated number rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from simulation.models.published_times import PublishedCell

# What a simulated number rests on.
COUNTED = "counted"  # parameters, bytes, operations: nothing is played in time
PREDICTED = "predicted"  # the published compute times, the model's layout and the network alone
CHOSEN = "chosen"  # the same, and a reading of the paper that was chosen because it fits
ASSUMED = "assumed"  # the same, and a number that the paper does not print
FITTED = "fitted"  # a number that was fitted to this cell or to another one of the paper
KINDS = (COUNTED, PREDICTED, CHOSEN, ASSUMED, FITTED)

MORE_BANDWIDTH = 1.2
MOVES = 0.01  # a time that changes by less than this does not show the network, but computing alone


@dataclass(frozen=True, slots=True)
class Cell(PublishedCell):
    """One number.

    Attributes:
        rests_on: what was fitted, chosen or assumed; empty if nothing was.
        time_s: the time behind the number, without the baseline's if it is a speed-up; None if nothing is timed.
        faster_links: relative change of that time with a fifth more bandwidth, -1/6 if links are all that counts; None if
            nothing is timed or no link is used.
    """

    rests_on: str = ""
    time_s: float | None = None
    faster_links: float | None = None

    @property
    def shows_network(self) -> bool | None:
        """Whether faster links would change it; if not, it follows from computing alone. None if no link is used."""
        return None if self.faster_links is None else abs(self.faster_links) > MOVES


Table = Callable[[float], Iterable[Cell]]
"""Plays a table. Its argument multiplies the bandwidth of every link."""


def with_more_bandwidth(table: Table) -> Iterator[Cell]:
    """Play a table as printed and with a fifth more bandwidth, and yield its cells with the change."""
    printed = list(table(1.0))
    if all(cell.time_s is None for cell in printed):
        yield from printed
        return
    for cell, other in zip(printed, table(MORE_BANDWIDTH), strict=True):
        if cell.time_s is None or other.time_s is None:
            yield cell
        else:
            yield replace(cell, faster_links=other.time_s / cell.time_s - 1)


def without_links(table: Callable[[], Iterable[Cell]]) -> Table:
    """A table in which no link is used, so that bandwidth does not matter."""
    return lambda _bandwidth: table()
