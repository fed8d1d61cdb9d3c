"""The backend's operations in torch's profiler and in its execution traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hostlib.launch.fork_server import ForkServer
from tests.forked import Ranks

SCRIPT = Path(__file__).with_name("profiler_ranks.py")
PATIENCE_S = 100.0
PARAMETERS = 10  # of the model


def entries(path: Path, of: str) -> list[dict[str, Any]]:
    """The backend's own of a trace."""
    return [each for each in json.loads(path.read_text())[of] if each["name"].startswith("netfold::")]


def test_traces_have_operations_with_their_sizes_and_group(forks: ForkServer, tmp_path: Path) -> None:
    ranks = Ranks(forks, tmp_path, SCRIPT, tmp_path, NETFOLD_MECHANISM="ring")
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    for rank in range(2):
        summed, gathered = sorted(entries(tmp_path / f"chrome{rank}.json", "traceEvents"), key=lambda each: each["ts"])
        assert (summed["name"], gathered["name"]) == ("netfold::all_reduce", "netfold::all_gather")
        assert summed["args"]["Input Dims"] == [[PARAMETERS]]
        assert gathered["args"]["Input Dims"] == [[6], [3]]
        for each in (summed, gathered):
            group = [each["args"][f"Group {what}"] for what in ("name", "rank", "size")]
            assert group == ["0", rank, 2]
        nodes = entries(tmp_path / f"execution{rank}.json", "nodes")
        assert [node["name"] for node in nodes] == [summed["name"], gathered["name"]]
        assert [node["inputs"]["shapes"] for node in nodes] == [[[PARAMETERS]], [[6], [3]]]
