"""Jobs through the model of Tofino 1: the weights are those of the embedded switch, also when a model is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.dataplane.target import absent
from tests.switch_processes import free_ports, in_topology, run_process, run_switch

pytestmark = [
    pytest.mark.tofino,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(absent("tofino") is not None, reason=str(absent("tofino"))),
]

ITERATIONS, TRAIN_S = 3, 600  # seconds, on a machine that does other things as well
UPLINK, ROOT = 40, "10.255.255.254"
# Four workers under three switches. A model sums some hundred packets a second, so the tensor is small.
EXPERIMENT = """
title = "A tree of models"
seed = 1

[cells]
models = ["lenet"]
mechanisms = ["inagg+mcast"]
bandwidths = ["1gbit"]
workers = [4]
loss = [0.01]

[topology]
kind = "leaf-spine"
leaves = 2

[replay]
shrink = 2048
iterations = 1
"""


class Trained(NamedTuple):
    weights: list[str]
    sums: Counter[str]


@dataclass
class Fabric:
    """Switches, a controller, and what runs through them; all of it ends with the test."""

    folder: Path
    stack: ExitStack
    switches: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, name: str, words: list[str], ready: Path) -> dict[str, Any]:
        return run_process(self.stack, self.folder, name, words, ready)[1]

    def switch(
        self, name: str, address: str, *ports: str, kind: str = "tofino-model", p4rt: str = "127.0.0.1:0"
    ) -> dict[str, Any]:
        self.switches[name], described = run_switch(
            self.stack, self.folder, name, address, *ports, kind=kind, p4rt=p4rt
        )
        return described

    def controller(self, *options: str) -> str:
        state = self.folder / "state"
        words = ["controller", "start", "--foreground", "--http", "127.0.0.1:0", "--state-dir", str(state)]
        return str(self.run("controller", [*words, *options], state / "controller.json")["http"])

    def topology(self, switches: list[dict[str, Any]]) -> str:
        path = self.folder / "topology.json"
        path.write_text(json.dumps({"switches": switches}))
        return self.controller("--topology", str(path), "--elements", "64")

    def sums(self) -> Counter[str]:
        """What became of contributions, on all switches together."""
        words = ["controller", "status", "--state-dir", str(self.folder / "state"), "--json"]
        done = subprocess.run([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True, check=True)
        counted: Counter[str] = Counter()
        for switch in json.loads(done.stdout)["switches"]:
            counted.update({name: switch["events"][name] for name in ("absorbed", "completed", "sent_up")})
        return counted

    def training(self, controller: str, workers: int) -> subprocess.Popen[str]:
        words = ["hostlib", "train", "--mechanism", "inagg+mcast", "--controller", controller, "--json"]
        words += ["--workers", str(workers), "--iterations", str(ITERATIONS), "--deadline", "120s", "--patience", "20s"]
        words += ["--slots", "8"]  # packets on their way to a model that takes milliseconds for each
        return subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)

    def trained(self, controller: str, workers: int) -> Trained:
        """By the switches alone: no rank had to leave them."""
        result = _result(self.training(controller, workers))
        assert result["fabric_failures"] == [[]] * workers
        return Trained(result["weights_sha256"], self.sums())


def _result(training: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = training.communicate(timeout=TRAIN_S)
    assert training.returncode == 0
    return dict(json.loads(out))


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    with ExitStack() as stack:
        yield Fabric(tmp_path, stack)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Trained]:
    """What comes out of embedded switches, one for every two workers, with a root if there are several."""
    known: dict[int, Trained] = {}

    def trained(racks: int) -> Trained:
        if racks not in known:
            with ExitStack() as stack:
                made = Fabric(tmp_path_factory.mktemp("embedded"), stack)
                controller = made.controller("--elements", "64", "--racks", str(racks), "--ports", "2")
                known[racks] = made.trained(controller, 2 * racks)
        return known[racks]

    return trained


def test_a_job_through_one_model_has_the_same_weights(fabric: Fabric, embedded: Callable[[int], Trained]) -> None:
    started = fabric.switch("switch", ROOT, "1=udp:127.0.0.1:0", "2=udp:127.0.0.1:0")
    controller = fabric.topology([in_topology("switch", started, ROOT)])
    assert fabric.trained(controller, 2) == embedded(1)


@pytest.mark.parametrize("kind", ["tofino-model", "switch"])
def test_a_tree_with_losses_has_the_same_weights(fabric: Fabric, embedded: Callable[[int], Trained], kind: str) -> None:
    """A model over two others, and over two embedded switches."""
    ends = free_ports(4, socket.SOCK_DGRAM)
    upper, lower = ends[:2], ends[2:]
    wires = [f"{n + 1}=wire:127.0.0.1:{upper[n]},127.0.0.1:{lower[n]},loss=0.02,seed={n}" for n in range(2)]
    root = fabric.switch("root", ROOT, *wires)
    switches = [in_topology("root", root, ROOT)]
    for n in range(2):
        uplink = f"{UPLINK}=wire:127.0.0.1:{lower[n]},127.0.0.1:{upper[n]},loss=0.02,seed={10 + n}"
        address = f"10.255.255.{253 - n}"
        leaf = fabric.switch(f"leaf{n}", address, "1=udp:127.0.0.1:0", "2=udp:127.0.0.1:0", uplink, kind=kind)
        below = {"parent": "root", "uplink": UPLINK, "downlink": n + 1}
        switches.append(in_topology(f"leaf{n}", leaf, address, **below))
    assert fabric.trained(fabric.topology(switches), 4) == embedded(2)


def test_a_killed_model_changes_no_bit(fabric: Fabric, embedded: Callable[[int], Trained]) -> None:
    """The hosts go on by themselves; and a model at the same address is taken again."""
    numbers = free_ports(2, socket.SOCK_DGRAM)
    ports = [f"{n + 1}=udp:127.0.0.1:{number}" for n, number in enumerate(numbers)]
    started = fabric.switch("switch", ROOT, *ports)
    controller = fabric.topology([in_topology("switch", started, ROOT)])
    training = fabric.training(controller, 2)
    give_up = time.monotonic() + TRAIN_S
    while not fabric.sums()["completed"]:
        assert training.poll() is None and time.monotonic() < give_up
        time.sleep(0.2)
    os.kill(fabric.switches["switch"].pid, signal.SIGKILL)
    result = _result(training)
    assert all(result["fabric_failures"])
    assert result["weights_sha256"] == embedded(1).weights
    fabric.switch("switch", ROOT, *ports, p4rt=started["p4rt"])
    assert fabric.trained(controller, 2).weights == embedded(1).weights


@pytest.mark.root
@pytest.mark.parametrize("on", ["netns", "mininet"])
def test_a_tree_sums_between_namespaces_and_in_mininet(tmp_path: Path, on: str) -> None:
    """Time-dilated, and every cable loses frames. Workers compare every element with what it must be."""
    (tmp_path / "tree.toml").write_text(EXPERIMENT)
    words = ["emulation", "run", "tree.toml", "--switch", "tofino-model", "--on", on, "--output", "results", "--json"]
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, timeout=TRAIN_S, check=True)
    (cell,) = json.loads(done.stdout)
    assert cell["bytes_per_node"].keys() == {"leaf0", "leaf1", *(f"worker{n}" for n in range(4))}
    assert cell["retransmits"] > 0, "frames were lost"
    assert sum(cell["cpu"][name] for name in ("spine", "leaf0", "leaf1")) > 0.5, "a model is a child of its switch"
