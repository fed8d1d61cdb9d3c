"""The results files under docs/measurements/results.

`simulated.json` has every cell of `simulation paper`, and is computed again. A page's own file (`overlap.json`) has
the tables of its measurements, with date and commit. Raw output was not kept for those up to 2026-11-22; they were
transcribed from the pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simulation.commands.paper import markdown
from simulation.papers.cell import Cell
from simulation.papers.published_tables import NAMES, SUMMARY, TABLES, cells, summary, title_of
from tests.claims.pages import RESULTS, ROOT, Table, tables_of

SIMULATED = RESULTS / "simulated.json"
COLUMNS = ("row", "column", "published", "simulated", "kind", "rests_on", "faster_links")
DIGITS = 9  # of a simulated number: more would be rounding


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.{DIGITS}g}")


def write_tables(page: Path) -> None:
    """Write the file's tables into a page, where it has tables with their titles."""
    names, played = {title_of(name): name for name in NAMES}, read_simulated()
    text = page.read_text()
    for table in reversed(list(tables_of(text))):
        if is_played(table):
            name = names[table.section]
            rows = markdown(name, tuple(played[name])).partition("\n\n")[2]
            text = text[: table.start] + rows + "\n" + text[table.end :]
    page.write_text(text)


def row_of(cell: Cell) -> list[Any]:
    """A cell as the file has it."""
    change = None if cell.faster_links is None else round(cell.faster_links, 4) + 0.0
    return [cell.row, cell.column, cell.published, _rounded(cell.simulated), cell.kind, cell.rests_on, change]


def write_simulated() -> None:
    """Play all tables and write the file."""
    lines = []
    for name in NAMES:
        rows = ",\n   ".join(json.dumps(row_of(cell)) for cell in cells(name))
        lines.append(f"  {json.dumps(name)}: [\n   {rows}]")
    every = ",\n".join(lines)
    text = f'{{\n "command": "simulation paper all --json",\n "columns": {json.dumps(COLUMNS)},\n "tables": {{\n{every}\n }}\n}}\n'
    SIMULATED.write_text(text)


def read_simulated() -> dict[str, list[Cell]]:
    """The file's cells by table."""
    tables = json.loads(SIMULATED.read_text())["tables"]
    return {
        name: [
            Cell(name, row, column, published, simulated, kind, rests_on, None, change)
            for row, column, published, simulated, kind, rests_on, change in rows
        ]
        for name, rows in tables.items()
    }


def differences(name: str, stored: Mapping[str, Iterable[Cell]], once: bool = False) -> list[str]:
    """Where a table that is played now differs from the file.

    Args:
        stored: all tables of the file.
        once: play with the printed bandwidth only, in half the time; and make the summary of the file.
    """
    if not once:
        played: Iterable[Cell] = cells(name)
    elif name == SUMMARY:
        played = summary(stored.__getitem__)
    else:
        played = TABLES[name](1.0)
    then = {(cell.row, cell.column): row_of(cell) for cell in stored.get(name, ())}
    now = {(cell.row, cell.column): row_of(cell) for cell in played}
    found = [f"{row}, {column} is in one of them only" for row, column in then.keys() ^ now.keys()]
    for place in then.keys() & now.keys():
        a, b = then[place], now[place]
        close = abs(a[3] - b[3]) <= 1e-6 * abs(b[3]) and a[2] == b[2] and a[4:6] == b[4:6]
        moved = not once and ((a[6] is None) is not (b[6] is None) or abs((a[6] or 0) - (b[6] or 0)) > 2e-4)
        if not close or moved:
            found.append(f"{', '.join(place)}: file {a[2:]}, played {b[2:]}")
    return found


def file_of(page: Path) -> Path:
    """The results file of a page with measurements."""
    return RESULTS / f"{page.stem}.json"


def record(page: Path) -> None:
    """Transcribe a page's tables, with the date and commit that each stands under, into its results file."""
    tables = [table for table in tables_of(page.read_text()) if not is_played(table)]
    records = [
        {
            "section": table.section,
            "place": table.place,
            "date": table.date,
            "commit": table.commit,
            "header": table.header,
            "rows": table.rows,
        }
        for table in tables
    ]
    lines = ",\n".join(_record_text(each) for each in records)
    file_of(page).write_text(f'{{\n "page": "{page.relative_to(ROOT)}",\n "records": [\n{lines}\n ]\n}}\n')


def _record_text(each: dict[str, Any]) -> str:
    rows = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in each["rows"])
    head = ", ".join(
        f'"{key}": {json.dumps(each[key], ensure_ascii=False)}'
        for key in ("section", "place", "date", "commit", "header")
    )
    return f'  {{{head},\n   "rows": [\n    {rows}]}}'


def is_played(table: Table) -> bool:
    """Whether a table is one that `simulation paper --markdown` prints."""
    return table.section in {title_of(name) for name in NAMES}


def read_records(page: Path) -> list[dict[str, Any]]:
    """The records of a page; none if it has no file."""
    path = file_of(page)
    return json.loads(path.read_text())["records"] if path.exists() else []
