"""After a run: what the state machines did, so that a campaign's figures need no tool of their own."""

from __future__ import annotations

import pytest

from tests.property.machine import totals


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if totals:
        terminalreporter.section("state machines", "-")
        terminalreporter.line(", ".join(f"{name} {n}" for name, n in sorted(totals.items())))
