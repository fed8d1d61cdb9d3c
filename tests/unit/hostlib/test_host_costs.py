"""Files of hosts' costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import hostlib.cli
from hostlib.errors import HostlibError, RunError
from hostlib.system.host_costs import HostCosts, read_costs, write_costs

COSTS = HostCosts("a CPU", 4, "2026-01-01T00:00:00+00:00", {"netfold": "0"}, 20.0, 20.0, 10.0, 10.0, 1e6, 1024, 5.0)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_costs(COSTS, tmp_path / "costs.json")
    assert read_costs(tmp_path / "costs.json") == COSTS
    assert json.loads((tmp_path / "costs.json").read_text())["schema"] == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": 2}, "has schema 2, and this version reads 1"),
        ({"schema": None}, "has schema None"),
        ({"add_gb_s": 0}, "add_gb_s must be a number above 0, not 0"),
        ({"tcp_gb_s": "8"}, "tcp_gb_s must be a number above 0, not '8'"),
        ({"packets_per_s": float("inf")}, "packets_per_s must be finite"),
        ({"copy_gb_s": float("nan")}, "copy_gb_s must be a number above 0"),
        ({"cores": 1.5}, "cores must be a whole number above 0, not 1.5"),
        ({"cores": True}, "cores must be a whole number"),
        ({"cpu": 3}, "cpu must be a text, not 3"),
        ({"versions": []}, "versions must be a table of texts"),
    ],
)
def test_an_illegal_file_is_refused_in_one_line(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(json.dumps({**COSTS.as_json(), **changes}))
    with pytest.raises(HostlibError) as error:
        read_costs(tmp_path / "costs.json")
    assert says in str(error.value) and str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "3", "{}", "[" * 200_000, "\x00\xff"])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(HostlibError, match="is not a file of hosts' costs; `hostlib bench --calibrate"):
        read_costs(tmp_path / "costs.json")


def test_what_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text('{"schema": 1, "cpu": "a CPU"}')
    with pytest.raises(HostlibError, match="lacks cores, date, versions"):
        read_costs(tmp_path / "costs.json")
    with pytest.raises(HostlibError, match="cannot be read: No such file"):
        read_costs(tmp_path / "none.json")
    with pytest.raises(HostlibError, match="cannot be written: No such file"):
        write_costs(COSTS, tmp_path / "none" / "costs.json")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--output", "costs.json"], "--output is of --calibrate"),
        (["--probe", "--kernels"], "--kernels: --probe measures links alone; --workers, --on, "),
        (["--probe", "--bandwidth", "1gbit"], "--bandwidth sets the rate of links between network namespaces"),
        (["--probe", "--workers", "1"], "--probe measures links between ranks: --workers must be in 2..32, not 1"),
        (["--calibrate", "--workers", "3", "--kernels"], "--workers, --kernels: --calibrate measures this host alone"),
        (["--calibrate", "--output", "{folder}"], "cannot be written"),
        (["--calibrate", "--output", "{folder}/none/costs.json"], "cannot be written"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(words: list[str], says: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(hostlib.cli.main, ["bench", *(word.format(folder=tmp_path) for word in words)])
    assert isinstance(done.exception, RunError) and says in str(done.exception)
