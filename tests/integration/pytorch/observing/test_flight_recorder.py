"""The backend's flight records, as torch's own tool reads them."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import netfold
from hostlib.errors import HostlibError
from hostlib.launch.fork_server import ForkServer
from hostlib.pytorch.flight_recorder import DEFAULT_FILE, flight_recorder
from tests.conftest import Fabric
from tests.forked import Ranks

SCRIPT = Path(__file__).with_name("flight_ranks.py")
PATIENCE_S = 100.0
MECHANISMS = ("inagg+mcast", "ring")


def recorded(forks: ForkServer, fabric: Fabric, folder: Path, mechanism: str, what: str, size: int = 100) -> Path:
    """Two ranks' records, in a folder of their own."""
    records = folder / "records"
    environment = {
        "NETFOLD_MECHANISM": mechanism,
        "NETFOLD_CONTROLLER": fabric.http,
        "TORCH_FR_BUFFER_SIZE": str(size),
        "TORCH_FR_DUMP_TEMP_FILE": str(records / "record"),
    }
    ranks = Ranks(forks, folder, SCRIPT, records, what, **environment)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    assert sorted(path.name for path in records.iterdir()) == ["record0", "record1"]
    return records


def read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def told(*arguments: str | Path) -> str:
    """What torchfrtrace says."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, env={**os.environ}
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_rank_that_does_not_come_is_named(mechanism: str, fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    records = recorded(forks, fabric, tmp_path, mechanism, "missing")
    output = told(records)
    assert "Not all ranks joining collective, sequence number: 2" in output
    assert "missing ranks: {1}" in output
    assert "collective: gloo:all_reduce" in output and "group info: 0:default_pg" in output
    assert "input sizes: [[6]]" in output and "collective state: scheduled" in output
    assert "fails at " in output  # the script's function


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_tensor_that_differs_is_named(mechanism: str, fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    output = told(recorded(forks, fabric, tmp_path, mechanism, "differs"))
    assert "Collective sequence number: 2 has errors" in output
    # Which of two is taken to be right depends on the order in which files are listed.
    assert re.search("Culprit rank [01]; Error type: SIZE_OR_SYNTAX_MISMATCH", output)
    assert re.search(r"Expected input sizes: '\[\[[67]]]' does not match found input sizes: '\[\[[67]]]'", output)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_went_well_matches(mechanism: str, fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    records = recorded(forks, fabric, tmp_path, mechanism, "whole")
    output = told(records, "-o", tmp_path / "database")
    for complaint in ("error", "missing", "mismatch", "cannot decide", "Not all"):
        assert complaint not in output.lower().replace("error_msg", ""), output
    _, database = read(tmp_path / "database")
    names = [each.collective_name.removeprefix("gloo:") for each in database.collectives]
    assert all(each.pass_check for each in database.collectives)
    assert names.count("all_reduce") == 5
    assert {
        "broadcast", "all_gather", "reduce_scatter", "reduce_scatter_v", "reduce", "gather", "scatter", "all_to_all",
        "allreduce_coalesced", "barrier",
    } < set(names)  # fmt: skip
    for rank in range(2):
        entries = read(records / f"record{rank}")["entries"]
        assert {entry["state"] for entry in entries} == {"completed"}
        assert all(entry["time_discovered_completed_ns"] >= entry["time_created_ns"] for entry in entries)


def test_the_latest_are_kept(fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    records = recorded(forks, fabric, tmp_path, "ring", "whole", size=3)
    assert len(read(records / "record0")["entries"]) == 3


@pytest.mark.skipif(
    importlib.util.find_spec("tabulate") is None, reason="torchfrtrace -j needs tabulate: pip install tabulate"
)
def test_entries_are_printed_rank_by_rank(fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    output = told("-j", recorded(forks, fabric, tmp_path, "ring", "missing"))
    done, waiting = "all_reduce(input_sizes=[[8]], state=completed)", "all_reduce(input_sizes=[[6]], state=scheduled)"
    lines = [line for line in output.splitlines() if "all_reduce" in line]
    assert [(line.count(done), line.count(waiting)) for line in lines] == [(2, 0), (0, 1)]


def test_nothing_is_recorded_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "0", "-1"):
        flight_recorder.cache_clear()
        monkeypatch.delenv("TORCH_NCCL_TRACE_BUFFER_SIZE", raising=False)
        monkeypatch.delenv("TORCH_FR_BUFFER_SIZE", raising=False)
        if value is not None:
            monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", value)
        assert flight_recorder() is None
        with pytest.raises(netfold.RunError, match="nothing is recorded: set TORCH_FR_BUFFER_SIZE"):
            netfold.write_flight_record()
    flight_recorder.cache_clear()
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "many")
    with pytest.raises(HostlibError, match="TORCH_FR_BUFFER_SIZE must be a whole number, not 'many'"):
        flight_recorder()


def test_the_older_names_and_torchs_place_for_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "5")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    flight_recorder.cache_clear()
    assert netfold.write_flight_record() == tmp_path / "home" / DEFAULT_FILE.removeprefix("~/").replace(
        "rank_", "rank_0"
    )
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(tmp_path / "here" / "of"))
    flight_recorder.cache_clear()
    assert read(netfold.write_flight_record())["entries"] == []
    assert (tmp_path / "here" / "of0").exists()
    flight_recorder.cache_clear()
