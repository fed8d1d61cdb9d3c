"""After a run: what the state machines did, so that a campaign's figures need no tool of their own."""

from __future__ import annotations

import pytest

from tests.property import fabric, machine


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for title, totals in (("state machines", machine.totals), ("fabrics of the engine's tests", fabric.totals)):
        if totals:
            terminalreporter.section(title, "-")
            terminalreporter.line(", ".join(f"{name} {n}" for name, n in sorted(totals.items())))
