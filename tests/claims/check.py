"""Compare pages with results files, claim by claim."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import tomllib

from simulation.commands.paper import markdown
from simulation.models.published_times import COMPUTE_S
from simulation.papers import network_operator, poseidon, ralp
from simulation.papers.cell import Cell
from simulation.papers.published_tables import NAMES, title_of
from tests.claims import replayed, results
from tests.claims.pages import NUMBER, ROOT, all_pages, numbers_of, result_pages, tables_of

CLAIMS = Path(__file__).with_name("claims.toml")
Spans = dict[Path, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim holds.

    Attributes:
        why: it does not; or, if it does, where its numbers come from.
    """

    page: str
    claim: str
    holds: bool
    why: str


@cache
def simulated() -> dict[str, list[Cell]]:
    return results.read_simulated()


# ---- what claims' values may use -------------------------------------------------------------------------------------


def _cell(table: str, row: str, column: str) -> Cell:
    found = [cell for cell in simulated()[table] if (cell.row, cell.column) == (row, column)]
    if len(found) != 1:
        raise KeyError(f"simulated.json has no cell {table} / {row} / {column}")
    return found[0]


def sim(table: str, row: str, column: str) -> float:
    """A simulated number."""
    return _cell(table, row, column).simulated


def pub(table: str, row: str, column: str) -> float:
    """A published number."""
    number = _cell(table, row, column).published
    assert number is not None
    return number


def err(table: str, row: str, column: str) -> float:
    """A simulated number's error, in percent."""
    error = _cell(table, row, column).error
    assert error is not None
    return 100 * error


def cells(*tables: str, **equal: Any) -> list[Cell]:
    """Cells of tables, those whose attributes are as given."""
    return [
        cell
        for table in tables
        for cell in simulated()[table]
        if all(getattr(cell, key) == value for key, value in equal.items())
    ]


def at(page: str, section: str, row: str, column: str, number: int = 0, place: int = 0) -> float:
    """A measured number: of the cell in this row and column, the first or another one."""
    records = results.read_records(Path(page + ".md"))
    found = [each for each in records if (each["section"], each["place"]) == (section, place)]
    if not found:
        raise KeyError(f"results/{page}.json has no table {section!r}")
    header = [_plain(cell) for cell in found[0]["header"]]
    rows = [each for each in found[0]["rows"] if _plain(each[0]) == row]
    if not rows or column not in header:
        raise KeyError(f"results/{page}.json, {section!r}: no {row!r} or no {column!r}")
    text = rows[0][header.index(column)]
    return float(NUMBER.findall(text)[number].replace(",", "").replace("+", ""))


def emulated(model: str, mechanism: str) -> float:
    """Milliseconds of an emulated iteration; docs/measurements/fabric-vs-host.json has the picture's cells."""
    rows = json.loads((ROOT / "docs/measurements/fabric-vs-host.json").read_text())
    return float(next(row["iteration_ms"] for row in rows if (row["model"], row["mechanism"]) == (model, mechanism)))


def accuracy() -> list[float]:
    """Errors in percent of all cells of simulator-accuracy.md's first table."""
    rows = results.read_records(Path("simulator-accuracy.md"))[0]["rows"]
    return [abs(float(cell.split()[-2])) for row in rows for cell in row[1:]]


def strategy_errors() -> list[float]:
    """Errors in percent, in parentheses in emulated-strategies.md's first table."""
    rows = results.read_records(Path("emulated-strategies.md"))[0]["rows"]
    return [abs(float(error)) for row in rows for cell in row[1:] for error in re.findall(r"\((.*?)\)", cell)]


def own_errors() -> list[float]:
    """How far Table 1's simulated rows are from its measured ones, in percent."""
    real = {(cell.row, cell.column): cell.published for cell in cells("1")}
    pairs = [
        (number, real[row.replace(" Sim", " Real"), column]) for (row, column), number in real.items() if " Sim" in row
    ]
    return [100 * abs(sim_s / real_s - 1) for sim_s, real_s in pairs if sim_s and real_s]


def played(what: str) -> float:
    """Numbers that no table has, played when they are asked for."""
    if what == "resnet101, Table 3":
        return network_operator.Model("resnet101", fitted=False).time_s(network_operator.BOTH)
    if what == "table 1, inception3 fitted, 8 PS":
        model = network_operator.Model("inception3", fitted=True)
        return model.time_s("ps:servers=8", network_operator.TABLE_1_WORKERS, network_operator.TABLE_1_GBITS)
    longer = network_operator.Model("inception3", fitted=True, backward_s=0.395)
    if what == "table 10, inception3 at 0.395 s":
        seconds = longer.time_s(network_operator.AGGREGATION, gbits=100)
        return 100 * (seconds / pub("10", "Inception-v3 100 Gbps", "Agg (s)") - 1)
    if what == "table 9, inception3 at 0.395 s":
        seconds = network_operator.without_barrier_s(longer)
        return 100 * (seconds / pub("9", "Inception-v3", "Multiagg no barrier (s)") - 1)
    gbits = float(what.removeprefix("table 1 at ").removesuffix(" Gbit/s"))
    again = network_operator.table_1(gbits / network_operator.TABLE_1_GBITS)
    return float(median(errors(cell for cell in again if cell.row.endswith("Sim"))))


def _plain(cell: str) -> str:
    return re.sub(r"[`*]", "", cell).strip()


def errors(found: Iterable[Cell]) -> list[float]:
    """Absolute errors in percent."""
    return [100 * abs(cell.error) for cell in found if cell.error is not None]


# Those tables of the first paper whose cells rest on different things.
MIXED = ("4", "6", "8", "9", "10")
VALUES: dict[str, Any] = {
    "T": MIXED,
    "errors": errors,
    "shows": lambda found, shown: [c for c in found if c.shows_network is shown],
}
VALUES |= {"sim": sim, "pub": pub, "err": err, "cells": cells, "at": at, "median": median, "max": max, "min": min}
VALUES |= {"emulated": emulated, "accuracy": accuracy, "strategy_errors": strategy_errors, "own_errors": own_errors}
VALUES |= {"played": played, "fitted": network_operator.FITTED_BACKWARD_S.__getitem__}
VALUES |= {"links": {"ralp": ralp.SEEN, "poseidon": poseidon.SEEN}}
VALUES |= {"forward": lambda name: COMPUTE_S[name][0], "backward": lambda name: COMPUTE_S[name][1]}
VALUES |= {"abs": abs, "len": len, "sum": sum, "round": round}

# ---- claims ---------------------------------------------------------------------------------------------------------


def _half_a_digit(printed: str) -> float:
    digits = printed.partition(".")[2]
    return 0.5000001 * 10.0 ** -len(digits)


def _pattern(text: str) -> re.Pattern[str]:
    """A claim's text, with a number for each {}, and white space as it comes."""
    parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in text.split("{}")]
    return re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?)".join(parts))


def _claims(covered: Spans) -> Iterator[Verdict]:
    for claim in tomllib.loads(CLAIMS.read_text())["claim"]:
        path = ROOT / claim["page"]
        found = list(_pattern(claim["text"]).finditer(path.read_text()))
        if len(found) != 1:
            yield Verdict(claim["page"], claim["text"], False, f"the page has this text {len(found)} times")
            continue
        wrong = []
        for group, value in enumerate(claim["values"], start=1):
            printed = found[0][group]
            covered.setdefault(path, []).append(found[0].span(group))
            try:
                number = float(eval(value, {"__builtins__": {}}, VALUES)) if isinstance(value, str) else float(value)
            except (KeyError, AssertionError, IndexError) as error:
                wrong.append(f"{value}: {error}")
                continue
            page_number = float(printed.replace(",", ""))
            if abs(page_number - number) > max(_half_a_digit(printed), claim.get("tolerance", 0)):
                wrong.append(f"the page says {printed}, the results {number:.6g} ({value})")
        if len(claim["values"]) != found[0].re.groups:
            wrong.append(f"{found[0].re.groups} numbers, but {len(claim['values'])} values")
        yield Verdict(claim["page"], claim["text"], not wrong, "; ".join(wrong) or claim.get("from", "results files"))


def _played_tables(path: Path, covered: Spans) -> Iterator[Verdict]:
    """Tables that `simulation paper --markdown` prints."""
    text = path.read_text()
    titles = {title_of(name): name for name in NAMES}
    for table in tables_of(text):
        if not results.is_played(table):
            continue
        name, page = titles.get(table.section), str(path.relative_to(ROOT))
        if name is None:
            yield Verdict(page, table.section, False, "no table of `simulation paper` has this title")
            continue
        holds = markdown(name, tuple(simulated()[name])) in text
        covered.setdefault(path, []).append((table.start, table.end))
        why = (
            "results/simulated.json"
            if holds
            else f"not what results/simulated.json has: simulation paper {name} --markdown"
        )
        yield Verdict(page, table.section, holds, why)


def measured_pages() -> set[str]:
    """Pages whose tables are measurements; the others' are played, or compared number by number."""
    folder = ROOT / "docs/measurements"
    return {str(page.relative_to(ROOT)) for page in folder.glob("*.md")} - {"docs/measurements/index.md"}


def _measured_tables(path: Path, covered: Spans) -> Iterator[Verdict]:
    """Tables of measurements: as in the page's results file, with a date and a commit."""
    page = str(path.relative_to(ROOT))
    if page not in measured_pages():
        return
    records = {(each["section"], each["place"]): each for each in results.read_records(path)}
    for table in tables_of(path.read_text()):
        if results.is_played(table) or not any(map(NUMBER.search, map("|".join, table.rows))):
            continue
        record, name = records.pop((table.section, table.place), None), f"{table.section}, table {table.place + 1}"
        again = f"after a new measurement: python -m tests.claims --record {page}"
        if record is None:
            yield Verdict(page, name, False, f"results/{path.stem}.json has no such table; {again}")
            continue
        same = [list(row) for row in table.rows] == record["rows"] and list(table.header) == record["header"]
        dated = (table.date, table.commit) == (record["date"], record["commit"]) and table.date and table.commit
        if same and dated:
            covered.setdefault(path, []).append((table.start, table.end))
            yield Verdict(page, name, True, f"results/{path.stem}.json, {record['date']}, commit {record['commit']}")
        else:
            what = (
                "differs from the results file" if dated else "has no date and commit, or others than the results file"
            )
            yield Verdict(page, name, False, f"{what}; {again}")
    for section, place in records:
        yield Verdict(page, f"{section}, table {place + 1}", False, "only in the results file")


def _computed(names: Iterable[str], once: bool) -> Iterator[Verdict]:
    for name in names:
        found = results.differences(name, simulated(), once)
        why = "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
        file = str(results.SIMULATED.relative_to(ROOT))
        yield Verdict(file, title_of(name), not found, why or "played again")


def _replayed() -> Iterator[Verdict]:
    """Rows that are computed are what is computed today."""
    for (stem, section, place), computed in replayed.TABLES.items():
        record = next(
            each
            for each in results.read_records(Path(f"{stem}.md"))
            if (each["section"], each["place"]) == (section, place)
        )
        printed = {_plain(row[0]): NUMBER.findall(" ".join(row[1:])) for row in record["rows"]}
        wrong = []
        for row, numbers in computed().items():
            texts = printed.get(row, [])
            pairs = zip(texts, numbers, strict=False)
            close = (abs(float(text.replace(",", "")) - number) <= _half_a_digit(text) for text, number in pairs)
            if len(texts) != len(numbers) or not all(close):
                wrong.append(
                    f"{row}: the page has {', '.join(texts)}, computed {', '.join(f'{n:.6g}' for n in numbers)}"
                )
        page = f"docs/measurements/{stem}.md"
        yield Verdict(page, f"{section}, computed again", not wrong, "; ".join(wrong) or "computed again")


def verdicts(names: Iterable[str], covered: Spans | None = None, once: bool = False) -> list[Verdict]:
    """All claims' verdicts.

    Args:
        names: of the tables that are played again.
        covered: filled with the places of the numbers that were compared, by page.
        once: with the printed bandwidth only.
    """
    covered = {} if covered is None else covered
    found = list(_computed(names, once))
    for path in result_pages():
        found += [*_played_tables(path, covered), *_measured_tables(path, covered)]
    return [*found, *_replayed(), *_claims(covered)]


def coverage(covered: Spans) -> dict[Path, tuple[int, int]]:
    """How many numbers of each page were compared, and how many it has."""
    shares = {}
    for path in all_pages():
        places = numbers_of(path.read_text())
        spans = covered.get(path, [])
        held = sum(any(begin <= start < end for begin, end in spans) for start, _ in places)
        shares[path] = (held, len(places))
    return shares
