"""Jobs that come and go: a little of comings.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.comings import come_and_go


@pytest.mark.slow
def test_jobs_come_and_go_and_nothing_is_left(tmp_path: Path) -> None:
    played, attempts = come_and_go(tmp_path, 10, 1.0, 1)
    assert played == {"trains": 6, "incomplete": 2, "killed": 1, "one killed": 1}
    assert attempts > 1000
