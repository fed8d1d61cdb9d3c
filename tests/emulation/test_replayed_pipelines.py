"""Pipelines on virtual hosts: passes by waiting, activations and gradients as real messages, and sums in groups."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hostlib.protocol.framing import EMULATED
from hostlib.protocol.header import frame_bytes
from hostlib.schedules.schedule import Receive, Send, worker
from simulation.experiments.experiment_file import read_experiment

pytestmark = pytest.mark.root

EXPERIMENT = """
title = "two pipelines of two stages"
[cells]
models = ["lenet"]
mechanisms = ["1f1b:stages=2:microbatches=2/inagg+mcast", "interleaved:stages=2:microbatches=2/ring"]
bandwidths = ["1gbit"]
workers = [4]
[replay]
dilation = 5
batch = 32
iterations = 1
"""


def test_links_carry_the_passes_messages_and_the_stages_sums(tmp_path: Path) -> None:
    path, output = tmp_path / "pipelines.toml", tmp_path / "out"
    path.write_text(EXPERIMENT)
    command = [sys.executable, "-m", "emulation", "run", str(path), "--output", str(output), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    experiment = read_experiment(path)
    tcp = EMULATED.tcp_segment()[1] / EMULATED.tcp_segment()[0]
    payload, frame = frame_bytes()
    for row, cell in zip(json.loads(done.stdout), experiment.cells, strict=True):
        assert row["iteration_ms"] > 0.5 * row["simulated_ms"] > 0
        passes = experiment.plan(cell).blocking[0]
        summed = experiment.workload(cell).summed
        for rank in range(4):
            mine = passes.schedule.nodes[worker(rank)]
            ways = [
                sum(passes.sizes[each.piece] for each in mine if isinstance(each, kind)) for kind in (Send, Receive)
            ]
            # A ring of two sends as many bytes as the tensor has, and so does a worker to the switch.
            stage = sum(tensor.bytes for tensor in summed if rank in tensor.workers)
            per_byte = frame / payload if row["mechanism"].endswith("inagg+mcast") else tcp
            carried = row["bytes_per_node"][worker(rank)]
            for way, size in zip(("sent", "received"), ways, strict=True):
                # Acknowledgements and what is sent again come on top.
                assert carried[way] == pytest.approx(size * tcp + stage * per_byte, rel=0.15), (row["cell"], rank, way)
