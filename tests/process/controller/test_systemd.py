"""The systemd unit of the controller, as systemd reads it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from controller.cli import main
from controller.systemd import CERTIFICATE_FILES

ANALYZE = shutil.which("systemd-analyze")
MOST_EXPOSED = 20  # of 100, by systemd-analyze's count; 1.8 of 10 when this was written

with_systemd = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze on PATH: apt-get install systemd")


def made_unit(folder: Path, configuration: str) -> Path:
    config, unit = folder / "controller.toml", folder / "netfold-controller.service"
    config.write_text(configuration)
    done = CliRunner().invoke(main, ["run", "--config", str(config), "--systemd-unit"])
    assert done.exit_code == 0, done.output
    unit.write_text(done.output)
    return unit


def made_certificates(folder: Path) -> Path:
    assert CliRunner().invoke(main, ["certificates", "--folder", str(folder)]).exit_code == 0
    return folder


@with_systemd
@pytest.mark.parametrize("configuration", ["ports = 4", 'ports = 4\ncertificates = "made"'])
def test_systemd_finds_nothing_wrong_with_the_unit(configuration: str, tmp_path: Path) -> None:
    made_certificates(tmp_path / "made")
    unit = made_unit(tmp_path, configuration)
    done = subprocess.run([str(ANALYZE), "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, [line for line in done.stderr.splitlines() if unit.name in line]) == (
        0,
        "",
        [],
    )


@with_systemd
def test_the_service_is_little_exposed(tmp_path: Path) -> None:
    unit = made_unit(tmp_path, "ports = 4")
    command = [str(ANALYZE), "security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-400:]


def test_certificates_are_read_by_systemd_for_a_user_who_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their keys are their owner's alone, and the service has a user of its own: with the folder alone it cannot start."""
    folder = made_certificates(tmp_path / "100% made")
    unit = made_unit(tmp_path, 'ports = 4\ncertificates = "100% made"').read_text()
    loaded = [line for line in unit.splitlines() if line.startswith("LoadCredential=")]
    escaped = str(folder).replace("%", "%%")
    assert loaded == [f"LoadCredential={name}:{escaped}/{name}" for name in CERTIFICATE_FILES]
    assert all((folder / name).is_file() for name in CERTIFICATE_FILES)
    assert "LoadCredential" not in made_unit(tmp_path, "ports = 4").read_text()

    given: list[Any] = []
    monkeypatch.setattr("controller.commands.run.start.callback", lambda **options: given.append(options))
    config = str(tmp_path / "controller.toml")
    (tmp_path / "controller.toml").write_text(f'certificates = "{tmp_path}/100% made"')
    for where in (folder, tmp_path / "credentials"):
        if where != folder:
            shutil.copytree(folder, where)
            monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(where))
        assert CliRunner().invoke(main, ["run", "--config", config]).exit_code == 0
        assert given[-1]["certificates"] == where
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "empty"))  # somebody else's
    assert CliRunner().invoke(main, ["run", "--config", config]).exit_code == 0
    assert given[-1]["certificates"] == folder
