"""`hostlib bench --probe`: links between ranks on this host."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from hostlib.bench.probe_rank import bandwidth_gbit_s
from hostlib.system.pair_links import PairLink, read_links
from simulation.errors import SimulationError
from simulation.predictors.ring_links import probed_links


def test_each_pair_of_ranks_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "links.json"
    command = [sys.executable, "-m", "hostlib", "bench", "--probe", "--workers", "2", "--output", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    (link,) = read_links(file)
    assert json.loads(done.stdout) == json.loads(file.read_text())
    assert (link.first, link.second) == (0, 1)
    assert 1 < link.latency_us < 100_000 and 0.01 < link.gbit_s < 1000


def test_the_latency_is_taken_off_only_where_it_is_the_smaller_part() -> None:
    assert bandwidth_gbit_s(4_000_000, 0.001, 0.005) == pytest.approx(8.0)
    assert bandwidth_gbit_s(4_000_000, 0.004, 0.004) == pytest.approx(8.0)  # on a machine that is busy


def test_links_are_a_ring_for_predictors(tmp_path: Path) -> None:
    file = tmp_path / "links.json"
    pairs = [PairLink(0, 1, 10.0, 8.0), PairLink(0, 2, 30.0, 4.0), PairLink(1, 2, 20.0, 16.0)]
    file.write_text(json.dumps({"schema": 1, "links": [asdict(pair) for pair in pairs]}))
    ring = probed_links(file, 3)
    assert [link.latency_s for link in ring] == pytest.approx([10e-6, 20e-6, 30e-6])
    assert [link.bytes_s for link in ring] == [1e9, 2e9, 0.5e9]
    with pytest.raises(SimulationError, match="has no links between 4 workers"):
        probed_links(file, 4)
