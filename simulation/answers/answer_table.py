"""An answer in a terminal and as a plot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hostlib.system.plot_file import new_figure, save
from simulation.answers.answer import Answer, Row

CUT, ROOM = 4.0, 1.3  # times the fastest that is drawn; times that, for a bar's time beside it
COMPUTING, EXPOSED = "#4c78a8", "#e45756"


def table(answer: Answer, title: str, tensor_bytes: int = 0) -> Table:
    """A row for each mechanism, fastest first.

    Args:
        tensor_bytes: of a bare all-reduce, whose algorithm bandwidth is given in place of computing; 0: of a training.
    """
    made = Table("mechanism", "rank", title=title, title_justify="left")
    for heading in ("time (ms)", "interval (ms)", "speed-up"):
        made.add_column(heading, justify="right")
    for heading in ("algbw (Gbit/s)",) if tensor_bytes else ("computing (ms)", "exposed (ms)"):
        made.add_column(heading, justify="right")
    made.add_column("limited by")
    for row in answer.rows:
        algbw = f"{tensor_bytes * 8 / row.iteration_ms / 1e6:.2f}" if row.iteration_ms else "-"
        shares = (algbw,) if tensor_bytes else (milliseconds(row.compute_ms), milliseconds(row.exposed_ms))
        made.add_row(
            row.mechanism,
            rank_text(answer, row),
            milliseconds(row.iteration_ms),
            f"{milliseconds(row.low_ms)} to {milliseconds(row.high_ms)}",
            "-" if row.speedup is None else f"{row.speedup:.2f}",
            *shares,
            row.limited_by,
        )
    return made


def milliseconds(value: float) -> str:
    """Three digits, or a tenth of a millisecond."""
    return f"{value:.{3 if 0 < value < 1 else 2 if 1 <= value < 10 else 1}f}"


def rank_text(answer: Answer, row: Row) -> str:
    """`1`, or `2-4` for mechanisms whose intervals overlap."""
    first, last = answer.rank(row)
    return str(first) if first == last else f"{first}-{last}"


def remarks(answer: Answer) -> Iterator[str]:
    """Lines below the table: what is left out, and why."""
    for name, reason in answer.left_out.items():
        yield f"left out: {name}: {reason.removeprefix(f'{name}: ')}"


def show(console: Console, answer: Answer, title: str, tensor_bytes: int = 0) -> None:
    """Print the sentence, the table, and what is left out."""
    say(console, answer.text)
    console.print(table(answer, title, tensor_bytes))
    for line in remarks(answer):
        say(console, line)


def say(console: Console, text: str) -> None:
    """Print a line, which is broken only in a terminal."""
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def assumption_lines(answer: Answer) -> Iterator[str]:
    """A line for each assumption, with its source."""
    yield "Assumptions"
    width = max(map(len, answer.assumptions), default=0)
    for name, each in answer.assumptions.items():
        yield f"  {name:<{width}}  {each['value']} ({each['source']})"


def draw(answer: Answer, title: str, path: Path) -> None:
    """Draw bars of iteration times, split into computing and exposed communication, with the intervals.

    Raises:
        HostlibError: the file cannot be written.
    """
    rows = answer.rows
    # As wide as a phone, with letters that are readable there.
    figure = new_figure(5, 1.6 + 0.42 * len(rows))
    axes = figure.subplots()
    names = [row.mechanism for row in rows]
    places = range(len(rows))
    computing = [min(row.compute_ms, row.iteration_ms) for row in rows]
    exposed = [row.iteration_ms - each for row, each in zip(rows, computing, strict=True)]
    if any(computing):
        axes.barh(places, computing, color=COMPUTING, label="computing")
    axes.barh(places, exposed, left=computing, color=EXPOSED, label="exposed communication")
    # A calibrated interval need not contain the predicted time.
    middles, halves = zip(*((row.low_ms + row.high_ms, row.high_ms - row.low_ms) for row in rows), strict=True)
    axes.errorbar(
        [each / 2 for each in middles],
        places,
        xerr=[each / 2 for each in halves],
        fmt="none",
        ecolor="black",
        elinewidth=1,
        capsize=3,
    )
    # Bars that are far longer than the fastest are cut, with their times inside: the others are what one compares.
    shortest = min(row.iteration_ms for row in rows)
    shown = [row.high_ms for row in rows if not shortest or row.high_ms <= CUT * shortest]
    end = max(shown, default=0.0)
    for place, row in zip(places, rows, strict=True):
        inside = row.high_ms > end
        axes.annotate(
            f"{milliseconds(row.iteration_ms)} ms" + (" \N{RIGHTWARDS ARROW}" if inside else ""),
            (ROOM * end if inside else row.high_ms, place),
            xytext=(-4 if inside else 4, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            color="white" if inside else "black",
            fontsize=9,
        )
    axes.set_xlim(0, ROOM * end if end else 1)
    axes.set_yticks(list(places), names, fontsize=11)
    axes.invert_yaxis()
    axes.set_xlabel("iteration (ms)", fontsize=11)
    axes.set_title(title, fontsize=10, loc="left", wrap=True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    save(figure, path)
