"""`python -m tests.claims`: PASS or FAIL for every claim of README and docs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from simulation.papers.published_tables import NAMES
from tests.claims import check, results
from tests.claims.pages import ROOT, result_pages


@click.command()
@click.option("--write", is_flag=True, help="Play all tables again, and write results/simulated.json and its page.")
@click.option("--record", type=Path, multiple=True, help="Transcribe a page's tables into its results file.")
@click.option("--failures", is_flag=True, help="Print only what fails.")
def main(write: bool, record: tuple[Path, ...], failures: bool) -> None:
    """Compare the numbers of README and docs with results files, and play again what is simulated."""
    if write:
        results.write_simulated()
        results.write_tables(ROOT / "docs/measurements/published-tables.md")
    for page in record:
        results.record(page.resolve())
    covered: check.Spans = {}
    found = check.verdicts(NAMES, covered)
    for verdict in found:
        if not (failures and verdict.holds):
            click.echo(f"{'PASS' if verdict.holds else 'FAIL'}  {verdict.page}: {verdict.claim}  [{verdict.why}]")
    shares = check.coverage(covered)
    reporting = [shares[page] for page in result_pages() if page in shares]
    for page in result_pages():
        if page in shares:
            click.echo(f"{shares[page][0]:5} of {shares[page][1]:5} numbers compared: {page.relative_to(ROOT)}")
    click.echo(f"{sum(held for held, _ in reporting)} of {sum(count for _, count in reporting)} on pages with results")
    failed = sum(not verdict.holds for verdict in found)
    click.echo(f"{len(found) - failed} claims hold, {failed} do not")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
