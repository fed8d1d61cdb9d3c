"""Progress display of a training run on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class TrainingProgress:
    """A progress bar over rank 0's steps; without a terminal, a line at the start and for every tenth of the steps."""

    def __init__(self, console: Console, title: str, shown: bool) -> None:
        self._title, self._shown, self._console = title, shown, console
        self._progress = Progress(
            TextColumn(f"{title:>12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
        )
        self._task = self._progress.add_task(title, total=None, loss="starting")
        self._tenth = -1

    def __enter__(self) -> Callable[[dict[str, Any]], None]:
        self._progress.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _report(self, event: dict[str, Any]) -> None:
        loss = f"loss {event['loss']:.3f}"
        self._progress.update(self._task, total=event["steps"], completed=event["step"], loss=loss)
        tenth = 10 * event["step"] // event["steps"]
        if self._shown and not self._console.is_terminal and tenth > self._tenth:
            self._console.print(f"{self._title}: step {event['step']}/{event['steps']}, {loss}", highlight=False)
        self._tenth = tenth
