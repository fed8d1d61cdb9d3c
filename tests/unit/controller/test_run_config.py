"""The file of `controller run`, and the systemd unit that is made for it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from controller.cli import main
from controller.commands.run import OWN, key, options_of
from controller.commands.start import start
from controller.errors import ControllerError
from controller.systemd import notify


def written(folder: Path, text: str) -> Path:
    path = folder / "controller.toml"
    path.write_text(text)
    return path


def parsed(folder: Path, text: str) -> dict[str, Any]:
    return start.make_context("run", options_of(written(folder, text))).params


def test_a_file_has_the_options_of_start(tmp_path: Path) -> None:
    (tmp_path / "fabric.json").write_text("{}")
    text = 'http = "127.0.0.1:0"\nracks = 2\nloss = 0.01\nstate-dir = "state"\ntopology = "fabric.json"'
    given = parsed(tmp_path, text)
    assert (given["http"], given["racks"], given["loss"]) == ("127.0.0.1:0", 2, 0.01)
    assert (given["state_dir"], given["topology"]) == (tmp_path / "state", tmp_path / "fabric.json")


def test_what_the_file_does_not_say_is_as_start_has_it(tmp_path: Path) -> None:
    assert parsed(tmp_path, "") == start.make_context("start", []).params


def test_every_option_of_start_is_legal(tmp_path: Path) -> None:
    names = [key(option) for option in start.params if option.name not in OWN]  # type: ignore[arg-type]
    with pytest.raises(ControllerError, match=r"unknown key rakcs; legal: ") as refused:
        options_of(written(tmp_path, "rakcs = 2"))
    assert str(refused.value).partition("legal: ")[2].split(", ") == sorted(names)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("foreground = true", "unknown key foreground; legal: certificates, "),
        ("racks = [2]", "racks is [2]; legal: a number or a text"),
        ("racks = true", "racks is True; legal: a number or a text"),
        ("racks = 0", "Invalid value for '--racks': 0 is not in the range 1 to 128"),
        ("racks", "is not TOML"),
        ('topology = "absent.json"', "absent.json"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    result = CliRunner().invoke(main, ["run", "--config", str(written(tmp_path, text))])
    assert isinstance(result.exception, ControllerError)
    message = str(result.exception)
    assert message.startswith(str(tmp_path)) and says in message and len(message.splitlines()) == 1


def test_the_unit_runs_this_file(tmp_path: Path) -> None:
    config = written(tmp_path, "ports = 4")
    result = CliRunner().invoke(main, ["run", "--config", str(config), "--systemd-unit"])
    assert result.exit_code == 0
    assert f"-m controller run --config {config}\n" in result.output and "{" not in result.output
    lines = dict(line.split("=", 1) for line in result.output.splitlines() if "=" in line and not line.startswith("#"))
    # A crash must not end the switches; a stopped controller ends them itself.
    assert (lines["Type"], lines["Restart"], lines["KillMode"]) == ("notify", "on-failure", "process")


@pytest.mark.parametrize("named", ["path", "abstract"])
def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    address = f"{tmp_path}/notify" if named == "path" else f"@{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address.replace("@", "\0"))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")
        assert systemd.recv(100) == b"READY=1"
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")  # nobody asked
