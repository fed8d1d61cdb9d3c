"""The controller's state, which other processes open meanwhile: `controller token`, and a standby."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from controller.errors import StateError
from controller.primacy import BEAT_S, SHORTEST_SILENCE_S, Primacy
from controller.state_store import StateStore
from tests.conftest import ROOT

WRITE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("UPDATE facts SET value = ?", sys.argv[2:])
database.commit()
database.close()
"""


STOPPED = """
import os, signal, sqlite3, sys
from pathlib import Path
from controller.primacy import Primacy
folder = Path(sys.argv[1])
assert Primacy(folder).claim("http://127.0.0.1:1")
database = sqlite3.connect(folder / "state.db", isolation_level=None)
database.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_primary_that_is_stopped_within_a_transaction_is_killed(tmp_path: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)], cwd=ROOT) as child,
        contextlib.closing(Primacy(tmp_path, SHORTEST_SILENCE_S)) as waiting,
    ):
        try:
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
            give_up = time.monotonic() + 60
            won, said = False, set()
            while not won:
                assert time.monotonic() < give_up, said
                try:
                    won = waiting.claim("http://127.0.0.1:2")
                except StateError as error:
                    said.add(str(error))
                time.sleep(BEAT_S)
            assert child.wait(10) == -signal.SIGKILL
            assert len(said) == 1 and "cannot be written: database is locked" in said.pop()
        finally:
            child.kill()


def test_what_another_process_writes_is_seen_by_each_connection_of_this_one(tmp_path: Path) -> None:
    """It must not take the database for nobody's when it closes it, and clean up behind the others."""
    with contextlib.closing(StateStore(tmp_path)) as first, contextlib.closing(StateStore(tmp_path)) as second:
        first.save({"last_epoch": 7, "drained": [], "jobs": []}, clean=True)
        assert second.load()["last_epoch"] == 7
        for value in ("8", "9"):
            subprocess.run([sys.executable, "-c", WRITE, str(first.path), value], check=True, timeout=30)
            for each in (first, second):
                assert each.read("SELECT DISTINCT value FROM facts") == [(value,)]
