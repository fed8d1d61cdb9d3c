"""A warning of something that is tried again and again: said once, not every time."""

from __future__ import annotations

import logging


class RepeatedWarning:
    """Logs what goes wrong in a loop when it is another thing than the last time."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said = ""

    def __call__(self, error: Exception) -> None:
        if str(error) != self._said:
            self._said = str(error)
            self._log.warning("%s; trying again", error)

    def over(self) -> None:
        """It went well: the same error is worth a line again."""
        self._said = ""
