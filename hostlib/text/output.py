"""Where commands print their tables: as wide as the terminal, or wide enough for a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

PLAIN_WIDTH = 140  # of tables that go to a file or a pipe
WIDEST = 10_000
PADDING = 2  # of a cell, both sides
SHORT = 16  # letters of a cell that is not wrapped


class WholeTables(Console):
    """A console that cuts no cell: in a terminal where a table's words do not fit, each row is a list."""

    def print(self, *objects: Any, **options: Any) -> None:
        for each in objects:
            if not isinstance(each, Table):
                super().print(each, **options)
                continue
            if self._fits(each):
                super().print(each, **options)
                continue
            for line in records(each):
                super().print(line, highlight=False, soft_wrap=True)

    def _fits(self, table: Table) -> bool:
        """Whether it does; long cells may wrap between words, short ones stay whole."""
        there = self.options.update(max_width=WIDEST)
        if Measurement.get(self, there, table).maximum <= self.width:
            return True
        needed = 0
        for column in table.columns:
            lines = [line for cell in (column.header, *column.cells) for line in str(cell).splitlines()]
            longest = max(map(len, lines), default=0)
            words = [word for line in lines for word in line.split()]
            column.min_width = longest if longest <= SHORT else max(map(len, words), default=0)
            needed += column.min_width + PADDING
        return needed + (len(table.columns) + 1 if table.box else 0) <= self.width


def records(table: Table) -> Iterator[str]:
    """A table's rows, a line for each cell and an empty one behind each row."""
    if table.title:
        yield str(table.title)
    heads = [str(column.header) for column in table.columns]
    rows = [list(map(str, row)) for row in zip(*(column.cells for column in table.columns), strict=True)]
    if len(rows) > 1 and rows[0][0] == "" != rows[1][0]:  # units under the headings
        heads = [f"{head} {unit}".strip() for head, unit in zip(heads, rows.pop(0), strict=True)]
    width = max(map(len, heads), default=0)
    for row in rows:
        for head, cell in zip(heads, row, strict=True):
            if cell:
                yield f"{head:<{width}}  " + cell.replace("\n", "\n" + " " * (width + 2))
        yield ""


def output(plain_width: int = PLAIN_WIDTH) -> Console:
    """Standard output.

    Args:
        plain_width: columns, where it is no terminal.
    """
    console = WholeTables()
    return console if console.is_terminal else WholeTables(width=max(plain_width, PLAIN_WIDTH))
