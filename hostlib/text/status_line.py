"""What a command is doing, on standard error."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console


class StatusLine:
    """What a command is doing, on standard error: a spinner on a terminal, else a line for each change."""

    def __init__(self, text: str) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status(text)
        self._text = text

    def __enter__(self) -> StatusLine:
        self._status.start()
        if not self._console.is_terminal:
            self._console.print(self._text)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def update(self, text: str) -> None:
        self._status.update(text)
        if not self._console.is_terminal:
            self._console.print(text)
