"""Experiments on virtual hosts: real packets between namespaces, and the directory that says what came of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hostlib.mechanisms.mechanism import find
from hostlib.protocol.framing import EMULATED
from hostlib.protocol.header import frame_bytes
from hostlib.schedules.schedule import link_elements
from hostlib.traces.trace import Layer, Parameter, synthesise, write
from simulation.models.synthetic_trace import model_layers

pytestmark = pytest.mark.root

TCP_PAYLOAD, TCP_FRAME = EMULATED.tcp_segment()
VALUES = 200_000
EXPERIMENT = """
title = "two workers"
[cells]
models = ["MODEL"]
mechanisms = ["inagg+mcast", "ring", "ps", "mcast", "ring+mcast"]
bandwidths = ["1gbit"]
workers = [2]
[replay]
dilation = 8
iterations = 2
"""

BATCH = 64
LENET = ((512, 3136), (1001, 512))  # outputs and inputs
STRATEGIES = f"""
title = "own messages"
[cells]
models = ["lenet"]
mechanisms = ["sfb/inagg+mcast", "sfb:multicast/inagg+mcast", "adam/ps", "ralp/ps", "poseidon", "cgdp:chunk=2/ring"]
bandwidths = ["1gbit"]
workers = [2]
[replay]
dilation = 10
batch = {BATCH}
iterations = 2
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two layers that compute 20 ms each way, and 800 kB of gradients: at 125 Mbit/s, 8 times slower than meant."""
    layers = [Layer("a", 10_000_000, 10_000_000), Layer("b", 10_000_000, 10_000_000)]
    parameters = [Parameter("a/w", VALUES, "a"), Parameter("b/w", 3 * VALUES, "b")]
    write(synthesise(layers, parameters), tmp_path / "two.trace")
    path = tmp_path / "two.toml"
    path.write_text(EXPERIMENT.replace("MODEL", str(tmp_path / "two.trace")))
    return path


def emulation(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "emulation", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`emulation run` to its end, after which nothing of its networks is there."""
    process = subprocess.Popen(emulation("run", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=110)
    finally:
        process.kill()
    assert not leftovers(process.pid)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def leftovers(pid: int) -> list[str]:
    """Namespaces of networks that a process has made."""
    return [entry.name for entry in Path("/run/netns").glob(f"netfold-emulation-{pid}-*")]


def test_every_cell_is_measured_and_its_bytes_are_the_schedules(experiment: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = run(str(experiment), "--output", str(output), "--json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert rows == json.loads((output / "results.json").read_text())
    assert [row["mechanism"] for row in rows] == ["inagg+mcast", "ring", "ps", "mcast", "ring+mcast"]
    payload, frame = frame_bytes()
    for row in rows:
        assert row["dilation"] == 8 and row["workers"] == 2
        assert row["iteration_ms"] > 40  # what it computes
        mechanism = find(row["mechanism"])
        overhead = frame / payload if mechanism.needs_fabric else TCP_FRAME / TCP_PAYLOAD
        expected = link_elements(mechanism.schedule(2, size=4 * VALUES), VALUES)
        assert set(row["bytes_per_node"]) >= set(expected)
        for node, (sent, received) in expected.items():
            carried = row["bytes_per_node"][node]
            for way, elements in (("sent", sent), ("received", received)):
                # Acknowledgements and what is sent again come on top.
                assert carried[way] == pytest.approx(4 * elements * overhead, rel=0.15), (row["mechanism"], node, way)
        detail = json.loads((output / "cells" / f"{row['cell']}.json").read_text())
        assert len(detail["iterations_ms"]) == 2
        kinds = [span["kind"] for span in detail["timeline"]["worker1"]]
        assert sorted(kinds) == ["backward", "communication", "forward"]
    assert json.loads((output / "run.json").read_text())["finished"] is not None

    again = run(str(experiment), "--output", str(output), "--json")
    assert json.loads(again.stdout) == rows  # nothing is measured twice
    other = experiment.with_name("other.toml")
    other.write_text(experiment.read_text() + "warm_up = 0\n")
    refused = run(str(other), "--output", str(output))
    assert refused.returncode == 1
    assert refused.stderr == f"error: {output} holds another experiment, or an earlier version: name another --output\n"


def test_cells_of_several_networks_are_measured_one_network_after_the_other(experiment: Path, tmp_path: Path) -> None:
    """The process that forks workers serves them all."""
    text = experiment.read_text().replace('["1gbit"]', '["1gbit", "2gbit"]').replace("iterations = 2", "iterations = 1")
    experiment.write_text(text)
    done = run(str(experiment), "--only", "two-ring-", "--output", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    assert [(row["mechanism"], row["bandwidth"]) for row in json.loads(done.stdout)] == [
        ("ring", "1gbit"),
        ("ring", "2gbit"),
    ]


def near(carried: dict[str, dict[str, float]], expected: dict[str, tuple[float, float]]) -> bool:
    """Whether nodes sent and received what is expected, but for 15 %."""
    return all(
        carried[node][way] == pytest.approx(count, rel=0.15)
        for node, ways in expected.items()
        for way, count in zip(("sent", "received"), ways, strict=True)
    )


@pytest.mark.slow
def test_strategies_messages_are_real(tmp_path: Path) -> None:
    """LeNet at 28 pixels: what the switch counts of its factors, and of what the switch sums beside them."""
    path, output = tmp_path / "own.toml", tmp_path / "out"
    path.write_text(STRATEGIES)
    done = run(str(path), "--output", str(output), "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["mechanism"]: row for row in json.loads(done.stdout)}
    payload, frame = frame_bytes()
    tcp = TCP_FRAME / TCP_PAYLOAD
    factors = 4 * BATCH * sum(m + n for m, n in LENET)
    matrices = 4 * sum(m * n + m for m, n in LENET)
    rest = 4 * sum(layer.params for layer in model_layers("lenet") if layer.matrix is None)
    activations = 4 * BATCH * LENET[0][1]
    everything = matrices + rest
    expected = {
        "sfb/inagg+mcast": {"worker1": (factors * tcp + rest * frame / payload,) * 2},
        "sfb:multicast/inagg+mcast": {"worker1": ((factors + rest) * frame / payload,) * 2},
        "ralp/ps": {"server0": (2 * (activations + rest) * tcp,) * 2},
        "adam/ps": {
            "worker0": ((factors + rest) * tcp, everything * tcp),
            "server0": (2 * everything * tcp, 2 * (factors + rest) * tcp),
        },
        # Both of LeNet's fully connected layers go as factors, by algorithm 1.
        "poseidon": {"worker0": ((factors + rest) * tcp,) * 2, "server0": (2 * rest * tcp,) * 2},
        "cgdp:chunk=2/ring": {"worker1": (everything * tcp,) * 2},
    }
    for mechanism, nodes in expected.items():
        assert rows[mechanism]["iteration_ms"] > 0.5 * rows[mechanism]["simulated_ms"] > 0
        # Acknowledgements come on top, and what is sent again: more than that where the machine is busy, so a cell has
        # three chances to show its bytes.
        carried = rows[mechanism]["bytes_per_node"]
        for attempt in range(2):
            if near(carried, nodes):
                break
            cell = rows[mechanism]["cell"]
            done = run(str(path), "--only", cell, "--output", str(tmp_path / f"{cell}-{attempt}"), "--json")
            assert done.returncode == 0, done.stderr
            carried = json.loads(done.stdout)[0]["bytes_per_node"]
        assert near(carried, nodes), (mechanism, carried, nodes)
        detail = json.loads((output / "cells" / f"{rows[mechanism]['cell']}.json").read_text())
        exchanges = [span["name"].startswith("exchange") for span in detail["timeline"]["worker0"]]
        assert any(exchanges) == (mechanism != "cgdp:chunk=2/ring")


def test_a_killed_run_is_cleaned_up_and_goes_on(experiment: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    text = experiment.read_text().replace("dilation = 20", "dilation = 5").replace("iterations = 2", "iterations = 1")
    experiment.write_text(text)
    command = emulation("run", str(experiment), "--output", str(output))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = output / "results.json"
    give_up = time.monotonic() + 60
    while not first.exists() and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.05)
    assert first.exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    measured = json.loads(first.read_text())
    assert 1 <= len(measured) < 5 and json.loads((output / "run.json").read_text())["finished"] is None
    assert leftovers(process.pid)

    cleaned = subprocess.run(emulation("clean", "--json"), capture_output=True, text=True, timeout=60)
    assert cleaned.returncode == 0, cleaned.stderr
    assert not leftovers(process.pid)
    done = run(str(experiment), "--output", str(output), "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows[: len(measured)] == measured and len(rows) == 5


@pytest.mark.slow
def test_the_same_file_runs_on_real_hosts(experiment: Path, tmp_path: Path) -> None:
    """Two of them: this machine twice, and a launcher that is a shell instead of ssh."""
    hostfile, launcher, output = tmp_path / "hosts", tmp_path / "launcher", tmp_path / "out"
    hostfile.write_text("127.0.0.1 interface=lo  # one\n127.0.0.1 interface=lo\n")
    launcher.write_text('#!/bin/sh\nexec sh -c "$2"\n')
    launcher.chmod(0o755)
    on = ("--hosts", str(hostfile), "--launcher", str(launcher), "--output", str(output))
    done = run(str(experiment), *on, "--only", "two-ring-", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["mechanism"] == "ring" and row["dilation"] == 1 and row["iteration_ms"] > 40
    assert row["bytes_per_node"]["worker1"]["sent"] > 4 * VALUES
    assert json.loads((output / "run.json").read_text())["realisation"] == "hosts"

    trained = experiment.with_name("trained.toml")
    trained.write_text(
        '[cells]\nmodels = ["lenet"]\nmechanisms = ["ring"]\nworkers = [2]\n[training]\niterations = 3\n'
    )
    done = run(str(trained), *on[:-1], str(tmp_path / "trained"), "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["iteration_ms"] > 0 and row["simulated_ms"] is None and row["valid"]

    refused = run(str(experiment), *on, "--only", "ps")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == "error: two-ps-1gbit-2w needs 3 hosts, with its servers; there are 2"


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["nowhere"], "nowhere is neither a file nor a ready experiment; those are bandwidth, "),
        (["fabric-vs-host", "--only", "vgg99"], "no cell of fabric-vs-host has 'vgg99' in its name"),
        ([], "name an experiment: a file, or one of bandwidth, "),
    ],
)
def test_what_cannot_be_run_is_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = run(*arguments, "--output", str(tmp_path / "out"))
    assert done.returncode != 0
    assert says in done.stderr.replace("\n", " ")
    assert not (tmp_path / "out").exists()
