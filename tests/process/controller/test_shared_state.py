"""The controller's state, which other processes open meanwhile: `controller token`, and a standby."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from controller.state_store import StateStore

WRITE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("UPDATE facts SET value = ?", sys.argv[2:])
database.commit()
database.close()
"""


def test_what_another_process_writes_is_seen_by_each_connection_of_this_one(tmp_path: Path) -> None:
    """It must not take the database for nobody's when it closes it, and clean up behind the others."""
    with contextlib.closing(StateStore(tmp_path)) as first, contextlib.closing(StateStore(tmp_path)) as second:
        first.save({"last_epoch": 7, "drained": [], "jobs": []}, clean=True)
        assert second.load()["last_epoch"] == 7
        for value in ("8", "9"):
            subprocess.run([sys.executable, "-c", WRITE, str(first.path), value], check=True, timeout=30)
            for each in (first, second):
                assert each.read("SELECT DISTINCT value FROM facts") == [(value,)]
