"""The systemd unit of the controller, as systemd reads it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from controller.cli import main

ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze on PATH: apt-get install systemd")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    config = tmp_path / "controller.toml"
    config.write_text("ports = 4")
    unit = tmp_path / "netfold-controller.service"
    unit.write_text(CliRunner().invoke(main, ["run", "--config", str(config), "--systemd-unit"]).output)
    done = subprocess.run([str(ANALYZE), "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, [line for line in done.stderr.splitlines() if unit.name in line]) == (
        0,
        "",
        [],
    )
