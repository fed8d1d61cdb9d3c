"""Whole training runs over every mechanism: they learn, all ranks agree, and the bytes are what the schedule says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Fabric, running_fabric

HEADER_BYTES = 32
FLOAT_BYTES = 4
WORLD_SIZE = 4
MECHANISMS = ["inagg+mcast", "ring", "gloo"]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """One fabric for all runs of this file: a job leaves nothing behind for the next."""
    with running_fabric(tmp_path_factory.mktemp("fabric")) as started:
        yield started


@pytest.fixture(scope="module")
def full_runs(fabric: Fabric) -> dict[str, dict[str, Any]]:
    """One run with the default length per mechanism."""
    return {mechanism: train(fabric, "--mechanism", mechanism) for mechanism in MECHANISMS}


def train(fabric: Fabric, *options: str) -> dict[str, Any]:
    """`hostlib train --json` to its end."""
    done = hostlib_train("--controller", fabric.http, "--json", *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


def hostlib_train(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hostlib", "train", "--world-size", str(WORLD_SIZE), "--no-progress", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


def reduced_elements(result: dict[str, Any]) -> int:
    """Elements of all all-reduces of a run together."""
    return sum(int(size) * count for size, count in result["bucket_elements"].items())


def completed_slots(fabric: Fabric) -> int:
    return int(fabric.status()["events"]["completed"])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_it_learns_and_all_ranks_agree(mechanism: str, full_runs: dict[str, dict[str, Any]]) -> None:
    result = full_runs[mechanism]
    assert result["mechanism"] == mechanism
    assert result["test_accuracy"] >= 0.95
    assert len(result["weights_sha256"]) == WORLD_SIZE
    assert len(set(result["weights_sha256"])) == 1
    assert reduced_elements(result) == result["parameters"] * result["steps"]


@pytest.mark.parametrize("mechanism", ["ring", "gloo"])
def test_peers_links_carry_what_a_ring_does(mechanism: str, full_runs: dict[str, dict[str, Any]]) -> None:
    result = full_runs[mechanism]
    payload = FLOAT_BYTES * reduced_elements(result) * 2 * (WORLD_SIZE - 1) / WORLD_SIZE
    for link in result["link_bytes"].values():
        # Gloo's message headers and DDP's start come on top.
        assert payload <= link["sent"] <= 1.1 * payload
        assert payload <= link["received"] <= 1.1 * payload
    assert result["engine"] == [None] * WORLD_SIZE
    assert result["steps_chunks_total"] == 0


def test_fabric_links_carry_every_chunk_once_each_way(full_runs: dict[str, dict[str, Any]]) -> None:
    result = full_runs["inagg+mcast"]
    packet_bytes = HEADER_BYTES + FLOAT_BYTES * result["elements_per_packet"]
    for rank, engine in enumerate(result["engine"]):
        assert engine["chunks"] == engine["position"] == result["steps_chunks_total"]
        assert engine["packets_sent"] - engine["retransmits"] == engine["chunks"]
        assert engine["packets_received"] - engine["duplicates"] == engine["chunks"]
        assert engine["bytes_sent"] == engine["packets_sent"] * packet_bytes
        assert engine["damaged"] == engine["foreign"] == 0
        assert result["link_bytes"][f"rank{rank}"]["sent"] >= engine["bytes_sent"]


@pytest.mark.parametrize("strategy", ["wfbp", "bsp"])
def test_the_switch_completes_the_slots_that_were_predicted(strategy: str, fabric: Fabric) -> None:
    before = completed_slots(fabric)
    result = train(fabric, "--mechanism", f"{strategy}/inagg+mcast", "--epochs", "1")
    size = result["elements_per_packet"]
    predicted = sum(count * (1 + -(-int(n) // size)) for n, count in result["bucket_elements"].items())
    assert result["steps_chunks_total"] == predicted
    assert completed_slots(fabric) - before == predicted
    if strategy == "bsp":
        assert result["bucket_elements"] == {str(result["parameters"]): result["steps"]}
    assert fabric.status()["jobs"] == []


def test_the_same_seed_gives_the_same_weights_over_the_fabric(fabric: Fabric) -> None:
    options = ("--mechanism", "inagg+mcast", "--epochs", "1", "--seed", "3")
    assert train(fabric, *options)["weights_sha256"] == train(fabric, *options)["weights_sha256"]


def test_the_file_holds_what_is_printed(fabric: Fabric, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    options = ("--mechanism", "ring", "--epochs", "1", "--seed", "3")
    printed = train(fabric, *options, "--result", str(path))
    assert json.loads(path.read_text()) == printed
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    assert printed["options"]["seed"] == printed["seed"] == 3


def test_an_unknown_model_is_refused_in_one_line() -> None:
    done = hostlib_train("--mechanism", "ring", "--model", "alexnot")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "unknown model 'alexnot'; legal are MODULE:FACTORY, alexnet, cifar10_quick" in done.stderr
