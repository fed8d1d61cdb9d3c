"""Jobs that come and go: a little of comings.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.comings import come_and_go


@pytest.mark.slow
def test_jobs_come_and_go_and_nothing_is_left(tmp_path: Path) -> None:
    assert come_and_go(tmp_path, 10, 1.0, 1) == {"trains": 6, "incomplete": 2, "crashes": 2}
