"""Progress of long work on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

EVERY_S = 5.0


class PlainProgress:
    """How many of `total` are done. Without a terminal: a line for the first, every few seconds, and for the last."""

    def __init__(self, what: str, total: int, done: int = 0, console: Console | None = None) -> None:
        self._what, self._total, self._done = what, total, done
        self._console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task(what, total=total, completed=done)
        self._said_at = -EVERY_S

    def __enter__(self) -> Callable[[], None]:
        self._bar.start()
        return self._advance

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def _advance(self) -> None:
        self._done += 1
        self._bar.advance(self._task)
        if self._done == self._total or time.monotonic() - self._said_at >= EVERY_S:
            self._say()

    def _say(self) -> None:
        self._said_at = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"{self._what}: {self._done} of {self._total}", soft_wrap=True, highlight=False)
