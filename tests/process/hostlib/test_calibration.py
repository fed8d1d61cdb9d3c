"""`hostlib bench --calibrate`, whose sockets are on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import hostlib.cli
from hostlib.bench import calibration
from hostlib.commands import bench
from hostlib.system.host_costs import read_costs


def test_this_host_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CALIBRATION_S", 0.1)
    file = tmp_path / "costs.json"
    done = CliRunner().invoke(hostlib.cli.main, ["bench", "--calibrate", "--json", "--output", str(file)])
    assert done.exit_code == 0, done.output
    costs = read_costs(file)
    assert json.loads(done.stdout) == costs.as_json() and costs.packet_values_bytes == 1024
    assert 0.05 < costs.add_gb_s < 1000 and 1e4 < costs.packets_per_s < 1e9


def test_the_table_has_a_line_for_each_figure() -> None:
    from rich.console import Console

    console = Console(width=120, record=True)
    calibration.print_costs(calibration.calibrate(0.01, 1 << 20), console)
    text = console.export_text()
    assert "cores: " in text and all(
        word in text for word in ("adding", "copying", "unpacking", "UDP", "TCP", "netfold")
    )
