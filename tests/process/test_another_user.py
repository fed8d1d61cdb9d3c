"""What a user may not read or write, tried as such a user: root may do all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534
pytestmark = pytest.mark.root
# A command in a folder with `locked`, which root alone may enter, and `unreadable`; and the line that it ends with.
WRONG = [
    ("netfold simulate run --trace unreadable", 2, "Path 'unreadable' is not readable"),
    ("netfold simulate run --trace locked/file", 1, "locked/file cannot be read as a trace: Permission denied"),
    ("netfold simulate sweep --mechanism ring --output locked/rows", 1, "locked/rows: Permission denied"),
    ("netfold simulate sweep --mechanism ring --plot locked/plot.svg", 1, "locked/plot.svg: Permission denied"),
    ("netfold train --mechanism ring --save locked/weights.pt", 1, "cannot write locked/weights.pt"),
    ("netfold train --mechanism ring --output locked/record.json", 1, "cannot write locked/record.json"),
    ("netfold controller start --state-dir locked/state", 1, "locked/state/controller.json cannot be read: Permission"),
    ("netfold controller start --state-dir closed/state", 1, "the state folder closed/state cannot be created"),
    (
        "netfold controller status --state-dir locked/state",
        1,
        "locked/state/controller.json cannot be read: Permission",
    ),
    ("netfold emulate run workers --output closed/run", 1, "closed/run: Permission denied"),
    ("netfold emulate report locked", 2, "Path 'locked' is not readable"),
    ("netfold emulate demo --output closed/demo", 1, "cannot create closed/demo: Permission denied"),
    ("netfold emulate topology unreadable", 2, "File 'unreadable' is not readable"),
    ("netfold emulate run unreadable", 1, "unreadable cannot be read: Permission denied"),
    ("netfold profile --model lenet --output locked/trace", 1, "locked/trace cannot be written: Permission denied"),
    ("netfold schedule ring --plot closed/ring.svg", 1, "cannot write closed/ring.svg: it is a folder, or its folder"),
    ("netfold switch --ports 2 --program unreadable --p4info unreadable", 2, "File 'unreadable' is not readable"),
    ("netfold cgdp search --times unreadable", 2, "Path 'unreadable' is not readable"),
    ("netfold emulate run workers --hosts unreadable", 2, "File 'unreadable' is not readable"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path("/tmp") / f"netfold-another-user-{os.getpid()}"  # pytest's own is root's alone
    for name, mode in {"": 0o755, "closed": 0o755, "locked": 0o700}.items():
        (made / name).mkdir()
        (made / name).chmod(mode)
    for name in ("unreadable", "locked/file"):
        (made / name).touch(0o600)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(("words", "code", "part"), WRONG, ids=[words for words, _, _ in WRONG])
def test_what_permissions_refuse_is_one_line(words: str, code: int, part: str, folder: Path) -> None:
    if not os.access(sys.executable, os.X_OK) or os.stat(Path(__file__)).st_mode & 0o004 == 0:
        pytest.skip("the checkout is not readable for others: chmod -R o+rX it")
    done = subprocess.run(
        [sys.executable, "-m", *words.split()],
        cwd=folder,
        env={**os.environ, "HOME": "/nonexistent", "PYTHONPATH": str(Path(__file__).parents[2])},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=60,
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, "")
    assert line.startswith("error: ") and part in line
    assert sorted(path.name for path in folder.rglob("*")) == ["closed", "file", "locked", "unreadable"]
