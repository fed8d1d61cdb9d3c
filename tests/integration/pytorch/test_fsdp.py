"""FSDP2 over the torch backend: weights and gradients travel in shards, through the switch alone."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hostlib.launch.fork_server import ForkServer
from hostlib.protocol.openings import TensorCut
from hostlib.protocol.slots import POOLS_OF_STREAMS, SLOTS_PER_POOL, slots_of_stream
from hostlib.pytorch.group_collectives import LEAST_BYTES
from tests.conftest import Fabric
from tests.forked import Ranks

SCRIPT = Path(__file__).with_name("fsdp_ranks.py")
RANKS, STEPS = 4, 4
LONG = 100  # steps, in which a switch is started again
PACKET_BYTES = 1024  # of values
CUT = TensorCut(PACKET_BYTES // 4, slots_of_stream(RANKS, SLOTS_PER_POOL // POOLS_OF_STREAMS), 1, RANKS)  # of a shard
PATIENCE_S = 100.0


def trained(
    forks: ForkServer, fabric: Fabric, folder: Path, **environment: str
) -> tuple[list[dict[str, Any]], torch.Tensor, str]:
    """What each rank saw, the weights, and what ranks said on standard error."""
    ranks = started(forks, fabric, folder, STEPS, **environment)
    return seen_by(ranks, fabric, folder)


def started(forks: ForkServer, fabric: Fabric, folder: Path, steps: int, **environment: str) -> Ranks:
    folder.mkdir()
    settings = {"NETFOLD_CONTROLLER": fabric.http, **environment}
    return Ranks(forks, folder, SCRIPT, folder, str(steps), count=RANKS, **settings)


def seen_by(ranks: Ranks, fabric: Fabric, folder: Path) -> tuple[list[dict[str, Any]], torch.Tensor, str]:
    """See trained."""
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    assert fabric.status()["jobs"] == []
    each = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    assert len({seen["weights"] for seen in each}) == 1
    assert each[0]["losses"][-1] < each[0]["losses"][0] / 2
    return each, torch.load(folder / "weights0.pt"), errors


def chunks(bytes_of_tensors: list[int]) -> int:
    """Packets of values of whole tensors, each in a shard for each rank."""
    return sum(RANKS * -(-each // RANKS // PACKET_BYTES) for each in bytes_of_tensors)


def test_every_weight_and_gradient_goes_through_the_switch(fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    before = fabric.status()["switches"][0]["events"]
    each, weights, _ = trained(forks, fabric, tmp_path / "switch", NETFOLD_MECHANISM="inagg+mcast")
    after = fabric.status()["switches"][0]["events"]
    counted = {name: after[name] - before[name] for name in after}
    assert all(seen["failures"] == [] for seen in each)
    gathered, scattered = [size for size in each[0]["gathered"] if size >= LEAST_BYTES], each[0]["scattered"]
    # Two layers before both passes, and the words' vectors before one; in the end those and matrices, each by itself.
    assert len(gathered) == 5 * STEPS + 5 and len(scattered) == 3 * STEPS
    assert counted["chunk"] == chunks(gathered)
    assert counted["replica"] == (RANKS - 1) * counted["chunk"]
    # Sums of a shard and of its prologues leave the switch once, for the owner; what the others send of it meets there.
    assert counted["sent_up"] == RANKS * sum(CUT.positions(size // 4 // RANKS) for size in scattered)
    assert counted["absorbed"] == (RANKS - 2) * counted["sent_up"]
    # Nothing is left for all-reduces to do.
    assert counted["completed"] == counted["down"] == 0
    small = [size for size in each[0]["gathered"] if size < LEAST_BYTES]
    for seen in each:
        assert seen["traffic"]["reduce_scatter"] == {"fabric": {"calls": len(scattered), "bytes": sum(scattered)}}
        assert seen["traffic"]["all_gather"]["fabric"] == {"calls": len(gathered), "bytes": sum(gathered)}
        assert seen["traffic"]["all_gather"]["gloo"] == {"calls": len(small), "bytes": sum(small)}
    _, by_ring, _ = trained(forks, fabric, tmp_path / "ring", NETFOLD_MECHANISM="ring")
    # Other orders of floating-point sums, and 28 bits for the largest value of each block.
    torch.testing.assert_close(weights, by_ring, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("slots", "refused"), [("512", ["reduce-scatter"]), ("1024", ["all-gather", "reduce-scatter"])]
)
def test_shards_leave_sums_their_room(
    slots: str, refused: list[str], fabric: Fabric, forks: ForkServer, tmp_path: Path
) -> None:
    _, weights, errors = trained(forks, fabric, tmp_path / "full", NETFOLD_SLOTS=slots)
    for collective in ("all-gather", "reduce-scatter"):
        said = f"no place on the switch for a group's {collective}: {slots} slots are needed, with {slots} left"
        assert (said in errors) == (collective in refused)
    _, by_gloo, _ = trained(forks, fabric, tmp_path / "gloo", NETFOLD_MECHANISM="gloo")
    torch.testing.assert_close(weights, by_gloo, rtol=1e-4, atol=1e-4)


def test_a_killed_switch_changes_no_bit(fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    """The last of a fabric: its controller starts the switch again, but not in no time."""
    undisturbed, _, _ = seen_by(started(forks, fabric, tmp_path / "whole", LONG), fabric, tmp_path / "whole")
    before = fabric.status()["switches"][0]["events"]["chunk"]
    ranks = started(forks, fabric, tmp_path / "killed", LONG)
    give_up = time.monotonic() + PATIENCE_S
    while fabric.status()["switches"][0]["events"]["chunk"] < before + 10_000:  # of some 3,600 in each step
        assert time.monotonic() < give_up and ranks.poll() is None
        time.sleep(0.05)
    state = json.loads((fabric.state_dir / "controller.json").read_text())
    os.kill(next(iter(state["processes"].values()))["pid"], signal.SIGKILL)
    each, _, errors = seen_by(ranks, fabric, tmp_path / "killed")
    assert each[0]["weights"] == undisturbed[0]["weights"]
    for seen in each:
        # Gathers and reduce-scatters are jobs of their own. A busy machine's switch may be left once more at the end.
        assert sum(failure["returned"] for failure in seen["failures"]) >= 2
        assert seen["metrics"] == {
            "netfold_rank_fabric_failures_total": len(seen["failures"]),
            "netfold_rank_fallback_bytes_total": sum(failure["bytes_by_hosts"] for failure in seen["failures"]),
        }
    assert "it multicasts again" in errors and "reduce-scatters go through it again" in errors
