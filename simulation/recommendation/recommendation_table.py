"""A recommendation in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from simulation.answers.answer_table import milliseconds, say
from simulation.recommendation.candidate import Candidate
from simulation.recommendation.recommendation import Recommendation, change_text, gigabytes

SHOWN = 12  # candidates of a table
FITS = {True: "yes", False: "no", None: "?"}


def candidate_table(found: Recommendation, title: str) -> Table:
    """The fastest candidates, and the fastest that does not fit."""
    made = Table("plan", title=title, title_justify="left")
    for heading in ("bucket (MiB)", "slots", "time (ms)", "interval (ms)", "memory"):
        made.add_column(heading, justify="right")
    made.add_column("fits")
    made.add_column("limited by")
    for each in shown(found):
        row = found.row(each)
        made.add_row(
            f"[bold]{each.name}[/bold]" if each is found.recommended else each.name,
            f"{each.bucket_bytes / 2**20:g}" if each.bucket_bytes else "-",
            f"{each.slots}" if each.uses_fabric and each.slots else "-",
            milliseconds(each.iteration_ms),
            f"{milliseconds(each.low_ms)} to {milliseconds(each.high_ms)}",
            "-" if each.memory_bytes is None else gigabytes(each.memory_bytes),
            FITS[each.fits],
            "" if row is None or not each.finalist else row.limited_by,
        )
    return made


def shown(found: Recommendation) -> list[Candidate]:
    """The candidates to show: finalists, and the fastest of each other name."""
    seen, rows = set[str](), list[Candidate]()
    finalists = {each.name for each in found.finalists}
    for each in found.candidates:
        if each.finalist or (each.name not in seen and each.name not in finalists):
            seen.add(each.name)
            rows.append(each)
    return [each for place, each in enumerate(rows) if each.finalist or place < SHOWN]


def show_recommendation(console: Console, found: Recommendation, title: str) -> None:
    """Print the sentences, the candidates, what would change the answer, and the assumptions."""
    say(console, found.text)
    console.print(candidate_table(found, title))
    played = len(found.candidates)
    say(
        console,
        f"{played} plans were played, {len(found.left_out)} left out; {len(found.finalists)} were compared in full.",
    )
    if found.changes:
        say(console, "What would change the answer")
    for change in found.changes:
        say(console, f"  {change_text(change)}")
    say(console, "Assumptions")
    width = max(map(len, found.assumptions), default=0)
    for name, of in found.assumptions.items():
        say(console, f"  {name:<{width}}  {of['value']} ({of['source']})")
