"""Where commands print their tables: as wide as the terminal, or wide enough for a file."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 140  # of tables that go to a file or a pipe


class WholeTables(Console):
    """A console whose tables wrap cells in a narrow terminal instead of cutting them."""

    def print(self, *objects: Any, **options: Any) -> None:
        for each in objects:
            if isinstance(each, Table):
                for column in each.columns:
                    column.overflow = "fold"
                    column.no_wrap = column.no_wrap and not self.is_terminal
        super().print(*objects, **options)


def output(plain_width: int = PLAIN_WIDTH) -> Console:
    """Standard output.

    Args:
        plain_width: columns, where it is no terminal.
    """
    console = WholeTables()
    return console if console.is_terminal else WholeTables(width=max(plain_width, PLAIN_WIDTH))
