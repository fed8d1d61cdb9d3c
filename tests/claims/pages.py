"""Pages as this package reads them: tables, with the section and the date that they stand under, and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/measurements/results"

DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
COMMIT = re.compile(r"`([0-9a-f]{7,12})`")
HEADING = re.compile(r"^#+ (.*)$")
RULE = re.compile(r"^\|[\s:|-]+\|$")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
# What is no result: code, what links lead to, comments, dates, names of models and of parts of papers, versions.
NOT_RESULTS = re.compile(
    r"^```[\s\S]*?^```|^(?: {4}|\t)(?! *(?:[-*]|\d+\.) ).*$|`[^`\n]*`|\]\([^)]*\)|<!--[\s\S]*?-->|<https?:[^>]*>|"
    r"\b20\d\d-\d\d-\d\d\b|^ *\d+\. |"
    r"\b(?:[Tt]ables?|[Ff]igures?|[Ss]ections?|decisions?|algorithm|equation|step|layer|node|port|version|Debian|"
    r"Linux|Python|torch|gcc|p4c|BMv2|commit|et al\.) \(?\d[\d.]*(?:(?:, | and | to )\d[\d.]*)*\)?|"
    r"[A-Za-z][A-Za-z]*-\d[\w.-]*|\b[A-Za-z_]+\d[\w.-]*",
    re.M,
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page.

    Attributes:
        section: the heading above it.
        place: its number among the section's tables.
        date, commit: the last ones that the page names before it; empty if there are none.
        start, end: its place in the page's text.
    """

    section: str
    place: int
    date: str
    commit: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    start: int
    end: int


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))


def tables_of(text: str) -> Iterator[Table]:
    """The Markdown tables of a page, in its order."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    section, place, number = "", 0, 0
    while number < len(lines):
        heading = HEADING.match(lines[number].rstrip())
        if heading:
            section, place = heading[1], 0
        if not (lines[number].startswith("|") and number + 1 < len(lines) and RULE.match(lines[number + 1].rstrip())):
            number += 1
            continue
        last = number + 2
        while last < len(lines) and lines[last].startswith("|"):
            last += 1
        before = text[: starts[number]]
        dates, commits = DATE.findall(before), COMMIT.findall(before)
        yield Table(
            section,
            place,
            dates[-1] if dates else "",
            commits[-1] if commits else "",
            _cells(lines[number]),
            tuple(_cells(line) for line in lines[number + 2 : last]),
            starts[number],
            starts[last],
        )
        place, number = place + 1, last


def numbers_of(text: str) -> list[tuple[int, int]]:
    """Where a page has numbers that could be results: places in its text."""
    blank = NOT_RESULTS.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return [found.span() for found in NUMBER.finditer(blank)]


def result_pages() -> list[Path]:
    """The pages that report results."""
    measurements = sorted((ROOT / "docs/measurements").glob("*.md"))
    return [ROOT / "README.md", ROOT / "docs/paper.md", *(page for page in measurements if page.name != "index.md")]


def all_pages() -> list[Path]:
    """Every page but the generated reference of commands."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if page.name not in ("commands.md", "api.md")]
