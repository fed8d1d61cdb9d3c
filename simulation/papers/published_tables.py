"""All published tables and figures by name, and a summary of how close the simulated cells come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from statistics import median

from simulation.errors import SimulationError
from simulation.papers import cgdp, network_operator, poseidon, ralp
from simulation.papers.cell import COUNTED, KINDS, Cell, Table, with_more_bandwidth

PAPERS: dict[str, dict[str, Table]] = {
    "Network Operator": network_operator.TABLES,
    "RALP": ralp.TABLES,
    "Poseidon": poseidon.TABLES,
    "CGDP": cgdp.TABLES,
}
TABLES: dict[str, Table] = {name: table for tables in PAPERS.values() for name, table in tables.items()}
SUMMARY = "summary"
NAMES = (*TABLES, SUMMARY)

# Explanations of cells, printed below their table.
NOTES = network_operator.NOTES | ralp.NOTES | poseidon.NOTES | cgdp.NOTES

TITLES = {
    "streaming": "If sums stream through the switch",
    "poseidon8": "Poseidon, what its text says of figures 5, 6 and 8",
    "poseidon-cntk": "Poseidon, what its text says of CNTK",
    SUMMARY: "Cells with a published number, by what they rest on",
}

# Tables whose published numbers repeat another's, which the summary does not count twice, or which have none.
NOT_SUMMARISED = {
    "streaming", *(f"figure{number}" for number in range(3, 12)), "poseidon-figure5", "poseidon-figure6",
    "poseidon-figure7", "poseidon-figure8", "poseidon-figure10", "ralp-figure6", "ralp-figure7", "ralp-figure8",
    "ralp-figure9", "cgdp-figure3",
}  # fmt: skip


@cache
def cells(name: str) -> tuple[Cell, ...]:
    """A table's cells, each with what more bandwidth changes."""
    return tuple(summary(cells) if name == SUMMARY else with_more_bandwidth(TABLES[name]))


def summary(cells_of: Callable[[str], Iterable[Cell]]) -> Iterator[Cell]:
    """How many cells have a published number, and how close they come, by paper and by what they rest on."""
    for paper, tables in PAPERS.items():
        compared = [
            cell
            for name in tables
            if name not in NOT_SUMMARISED
            for cell in cells_of(name)
            if cell.error is not None and not cell.row.endswith(" Real")
        ]
        for kind in KINDS:
            for shows, what in ((True, ", moves with the network"), (False, ", does not"), (None, "")):
                errors = [
                    abs(cell.error or 0) for cell in compared if cell.kind == kind and cell.shows_network is shows
                ]
                if not errors:
                    continue
                row = f"{paper}: {kind}{what}"
                for column, number in (
                    ("number", len(errors)),
                    ("median error (%)", 100 * median(errors)),
                    ("largest error (%)", 100 * max(errors)),
                ):
                    yield Cell(SUMMARY, row, column, None, number, COUNTED)


def title_of(table: str) -> str:
    """A table's title: "Table 4", "Figure 3", "RALP, Table 2", "Poseidon, Figure 7"."""
    if table in TITLES:
        return TITLES[table]
    paper, number = "", table
    for short, title in {"ralp": "RALP", "poseidon": "Poseidon", "cgdp": "CGDP"}.items():
        if table.startswith(short):
            paper, number = f"{title}, ", table.removeprefix(short).removeprefix("-")
    return f"{paper}Figure {number[6:]}" if number.startswith("figure") else f"{paper}Table {number}"


def find_table(name: str) -> str:
    """A table's name as the user wrote it: `4`, `table4`, `figure3`, `fig. 3`, `ralp-figure7`, `RALP Table 2`, ...

    Raises:
        SimulationError: there is no such table; the message lists the legal ones.
    """
    plain = _plain(name)
    found = {_plain(each): each for each in NAMES}
    if plain not in found:
        raise SimulationError(f"unknown table {name!r}; legal are {', '.join(NAMES)}")
    return found[plain]


def _plain(name: str) -> str:
    letters = "".join(letter for letter in name.lower() if letter not in " -_.,").replace("table", "")
    return letters if "figure" in letters else letters.replace("fig", "figure")
