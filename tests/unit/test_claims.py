"""The numbers of README and docs are those of the results files, and what is simulated is that today (tests/claims)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from simulation.papers.published_tables import NAMES
from tests.claims import check, pages, results
from tests.claims.__main__ import main

# Seconds each; `python -m tests.claims` plays them, too. The summary is of the other tables.
LONG = ("figure3", "figure4", "figure7", "figure9", "figure10", "figure11", "figure12", "poseidon-figure5", "poseidon-figure6",
        "poseidon-figure8", "poseidon-figure9", "ralp-figure7", "ralp-figure8", "ralp-figure9")  # fmt: skip


def test_all_claims_hold() -> None:
    covered: check.Spans = {}
    found = check.verdicts([name for name in NAMES if name not in LONG], covered, once=True)
    wrong = [f"{verdict.page}: {verdict.claim}: {verdict.why}" for verdict in found if not verdict.holds]
    assert not wrong, "\n".join(wrong)
    assert len(found) > 100
    # Most numbers of the pages that report results are compared with one.
    shares = check.coverage(covered)
    held, count = (sum(shares[page][n] for page in pages.result_pages()) for n in (0, 1))
    assert held > 0.9 * count, f"only {held} of {count} numbers are compared"


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_long_tables_are_what_the_file_has(name: str) -> None:
    assert results.differences(name, check.simulated()) == []


def test_every_cell_has_its_own_place() -> None:
    for name, stored in check.simulated().items():
        places = [(cell.row, cell.column) for cell in stored]
        assert len(set(places)) == len(places), name
    assert set(check.simulated()) == set(NAMES)


def claims_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> list[check.Verdict]:
    """Verdicts on a page of one's own and one claim."""
    page = tmp_path / "page.md"
    page.write_text("One cell is 21.0 of\n  16 cells, or 1,234.\n")
    (tmp_path / "claims.toml").write_text(f'[[claim]]\npage = "page.md"\n{text}\n')
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "CLAIMS", tmp_path / "claims.toml")
    return list(check._claims({}))


@pytest.mark.parametrize(
    ("text", "values", "why"),
    [
        ("is {} of {} cells, or {}.", ["sim('1', 'VGG-16 Sim', '1 PS')", 16, 1234], ""),
        ("is {} of {} cells", ["20.9", 16], "the page says 21.0, the results 20.9"),
        ("is {} of {} cells", ["21.04", 16.6], "the page says 16, the results 16.6"),
        ("is {} of {} cells", ["sim('1', 'VGG-16 Sim', '3 PS')", 16], "has no cell 1 / VGG-16 Sim / 3 PS"),
        ("is {} of {} cells", [21], "2 numbers, but 1 values"),
        ("are {} of {} cells", [21, 16], "the page has this text 0 times"),
        ("{}", [21], "the page has this text 3 times"),
    ],
)
def test_a_claim_holds_or_says_why_not(
    text: str, values: list[object], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (verdict,) = claims_of(tmp_path, monkeypatch, f'text = "{text}"\nvalues = {values!r}')
    assert verdict.holds is (not why) and why in verdict.why


def test_a_measured_table_needs_a_record_a_date_and_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "docs/measurements/speed.md"
    page.parent.mkdir(parents=True)
    for module in (check, results):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    table = "| ring | time |\n|---|---|\n| 8 | 3 ms |\n"

    def verdict(text: str, *, record: bool = False) -> check.Verdict:
        page.write_text(text)
        if record:
            results.record(page)
        (found,) = check._measured_tables(page, {})
        return found

    dated = f"Measured 2026-11-21 in commit `abcdef0`.\n\n{table}"
    assert "has no such table" in verdict(dated).why
    assert verdict(dated, record=True).holds
    assert "differs" in verdict(dated.replace("3 ms", "4 ms")).why
    assert "date" in verdict(dated.replace("2026-11-21", "2026-11-22")).why
    assert not verdict(table, record=True).holds


def test_what_counts_as_a_number() -> None:
    text = """# Table 4
Measured 2026-11-21 in commit `abc1234`: 1.5 times, 3 % of VGG-16 and `8` [here](x-7.md), figure 2.

    simulation paper 4
1. 27 of 28 cells (+0.3), -17.3
"""
    assert [text[a:b] for a, b in pages.numbers_of(text)] == ["1.5", "3", "27", "28", "+0.3", "-17.3"]


def test_a_played_table_that_changed_is_found() -> None:
    stored = check.simulated()["2"]
    assert results.differences("2", {"2": stored}) == []
    assert results.differences("2", {"2": stored[1:]}) == ["Inception-v3, Weights is in one of them only"]
    (found,) = results.differences("2", {"2": [replace(stored[0], simulated=7.0), *stored[1:]]})
    assert found.startswith("Inception-v3, Weights: file")


def test_the_command_says_pass_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.claims.__main__.NAMES", ("2",))
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 0, done.output
    assert "PASS  docs/measurements/results/simulated.json: Table 2" in done.output
    assert "claims hold, 0 do not" in done.output
