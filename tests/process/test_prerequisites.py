"""What `make` needs from the system: .ci/prerequisites, with programs that only say what they were asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

# apt-get as it is after an interrupted run: it installs nothing before dpkg has set up what is left.
APT_GET = """
if [[ $* == *install* && ! -e configured ]]; then
    echo "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem." >&2
    exit 100
fi"""
DPKG = """
[[ $* != *"--configure -a"* ]] || : >configured"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The only ones on PATH; each notes how it was called. There is no g++, and no mnexec of Mininet."""
    for name, more in {"dpkg": DPKG, "apt-get": APT_GET, "python": ""}.items():
        program = tmp_path / name
        program.write_text(f'#!/bin/bash\necho "{name} $*" >>called{more}\n')
        program.chmod(0o755)
    return tmp_path


def prerequisites(programs: Path, user: int) -> subprocess.CompletedProcess[str]:
    (programs / "id").write_text(f"#!/bin/bash\necho {user}\n")
    (programs / "id").chmod(0o755)
    command = ["/bin/bash", str(ROOT / ".ci" / "prerequisites"), str(programs / "python")]
    environment = os.environ | {"PATH": str(programs)}
    return subprocess.run(command, cwd=programs, env=environment, capture_output=True, text=True, timeout=20)


def test_what_an_interrupted_run_left_is_set_up_first(programs: Path) -> None:
    done = prerequisites(programs, 0)
    assert (done.returncode, done.stderr) == (0, "")
    called = (programs / "called").read_text().splitlines()
    installs = [line for line in called if line.startswith("apt-get") and "install" in line]
    assert [line.split()[-1] for line in installs] == ["mininet", "g++"]
    assert called.index("dpkg --force-confold --configure -a") < called.index(installs[0])


def test_others_than_root_are_told_what_to_type(programs: Path) -> None:
    done = prerequisites(programs, 1000)
    assert done.returncode == 1
    assert done.stderr == "error: missing g++: apt-get install g++ (as root), then run make again\n"
    assert "dpkg" not in (programs / "called").read_text()
