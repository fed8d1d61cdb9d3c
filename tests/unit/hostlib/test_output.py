"""Tables in terminals that are too narrow for them."""

from __future__ import annotations

import io

from rich.table import Table

from hostlib.text.output import WholeTables


def shown(width: int) -> list[str]:
    table = Table("mechanism", "time (us)", "why", title="all-reduce", title_justify="left")
    table.add_row("halving-doubling", "1234567.89", "it takes two rounds for each doubling of the workers")
    console = WholeTables(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_table_that_fits_is_one() -> None:
    assert any("it takes two rounds for each doubling of the workers" in line for line in shown(120))


def test_long_cells_wrap_between_words_and_short_ones_not_at_all() -> None:
    lines = shown(60)
    assert max(map(len, lines)) <= 60 and any("halving-doubling │ 1234567.89" in line for line in lines)
    assert not any("doubl │" in line for line in lines)


def test_a_table_that_does_not_fit_is_a_list() -> None:
    assert shown(30) == [
        "all-reduce",
        "mechanism  halving-doubling",
        "time (us)  1234567.89",
        "why        it takes two rounds for each doubling of the workers",
        "",
    ]
