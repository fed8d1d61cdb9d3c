"""A tree of switches with real packets and real engines: the sums are those of one switch, whatever gets lost."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from hostlib._engine import Engine
from hostlib.fabric.aggregation import configure
from hostlib.fabric.job_client import FabricSession, join
from tests.conftest import Fabric, controller
from tests.training_runs import trained

LEAVES, RANKS_PER_LEAF, ELEMENTS = 4, 2, 64
WORLD_SIZE = LEAVES * RANKS_PER_LEAF
DEADLINE_S = 60.0
SIZES = (1, ELEMENTS, ELEMENTS + 1, 128 * ELEMENTS, 40_000, 3)


def join_all(fabric: Fabric, job: str, world_size: int, stack: ExitStack) -> list[tuple[Engine, FabricSession]]:
    """Every rank's engine, configured."""

    def one(rank: int) -> tuple[Engine, FabricSession]:
        engine = Engine("127.0.0.1")
        session = join(
            fabric.http, job, rank, world_size, engine.address, engine.ports, DEADLINE_S, lambda: engine.position
        )
        configure(engine, session.place)
        return engine, session

    with ThreadPoolExecutor(world_size) as pool:
        joined = list(pool.map(one, range(world_size)))
    for _, session in joined:
        stack.callback(session.leave)
    return joined


def reduce_all(ranks: list[tuple[Engine, FabricSession]], tensors: list[np.ndarray]) -> list[np.ndarray]:
    """All-reduce rank by rank's tensor, at the same time; what each rank got."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        list(pool.map(lambda r: ranks[r][0].allreduce(tensors[r], False, DEADLINE_S), range(len(ranks))))
    return tensors


@pytest.mark.parametrize("loss", ["0", "0.05"])
def test_a_two_level_tree_sums_exactly_under_loss_on_every_link(start_fabric: Callable[..., Fabric], loss: str) -> None:
    options = ("--racks", str(LEAVES), "--ports", str(RANKS_PER_LEAF), "--elements", str(ELEMENTS))
    fabric = start_fabric(*options, "--loss", loss, "--seed", "3")
    draw = np.random.default_rng(11)
    with ExitStack() as stack:
        ranks = join_all(fabric, "tree", WORLD_SIZE, stack)
        assert [session.place.switch for _, session in ranks].count("leaf0") == RANKS_PER_LEAF
        cut = ranks[0][1].place.tensor_cut
        expected = 0
        for size in SIZES:
            own = [draw.integers(-(2**27), 2**27, size, dtype=np.int32) for _ in ranks]
            total = np.sum(own, axis=0, dtype=np.int32)
            for got in reduce_all(ranks, own):
                assert np.array_equal(got, total)
            reals = [draw.standard_normal(size).astype(np.float32) for _ in ranks]
            exact = np.sum(reals, axis=0, dtype=np.float64)
            first, *others = reduce_all(ranks, reals)
            assert np.allclose(first, exact, atol=1e-5)
            assert all(np.array_equal(first.view(np.int32), other.view(np.int32)) for other in others)
            expected += sum(cut.positions(size, dtype) for dtype in ("int32", "float32"))
        status = fabric.status()
        stats = [engine.stats() for engine, _ in ranks]
    root, *leaves = status["switches"]
    # Every slot's sum is made once at each leaf and once at the root, whatever came twice.
    assert root["events"]["completed"] == expected
    assert [leaf["events"]["sent_up"] for leaf in leaves] == [expected] * LEAVES
    assert [leaf["events"]["down"] for leaf in leaves] == [expected] * LEAVES
    retransmits = sum(stat["retransmits"] for stat in stats) / (expected * WORLD_SIZE)
    print(f"loss {loss}: {retransmits:.2f} retransmissions per chunk and rank; up again per leaf", end=" ")
    print([leaf["events"]["up_again"] for leaf in leaves], "answered by the root", root["events"]["answered"])
    if float(loss):
        # Between leaf and root both ways, too: a sum sent up again, and a result that came a second time.
        assert all(leaf["events"]["up_again"] > 0 for leaf in leaves)
        assert root["events"]["answered"] > 0
        # A slot loses nothing with 0.95 ^ 16 = 0.44; everybody waits for it and asks again, a few times in a row.
        assert 0.05 < retransmits < 6
    assert sum(stat["damaged"] for stat in stats) == 0


def test_strangers_do_not_turn_a_wire_round(start_fabric: Callable[..., Fabric]) -> None:
    """Nor when a switch was started again: its wires' ends are those that its neighbours believe."""
    fabric = start_fabric("--racks", "2", "--ports", "1", "--elements", str(ELEMENTS))

    def attacked_sum(job: str) -> None:
        ends = [end for switch in fabric.state["embedded"].values() for end in switch["wires"].values()]
        assert len(ends) == 4
        with ExitStack() as stack:
            stranger = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            stranger.bind(("127.0.0.1", 0))
            ranks = join_all(fabric, job, 2, stack)
            for end in ends:
                address, port = end.split(":")
                for data in (b"", bytes(100)):
                    stranger.sendto(data, (address, int(port)))
            for got in reduce_all(ranks, [np.full(5000, rank + 1, np.int32) for rank in range(2)]):
                assert np.array_equal(got, np.full(5000, 3, np.int32))
            stranger.setblocking(False)
            with pytest.raises(BlockingIOError):
                stranger.recv(1)

    attacked_sum("before")
    os.kill(fabric.state["processes"]["root"]["pid"], signal.SIGKILL)
    give_up = time.monotonic() + DEADLINE_S
    while not (root := fabric.status()["switches"][0])["up"] or root["restarts"] == 0:
        assert time.monotonic() < give_up, root
        time.sleep(0.1)
    attacked_sum("after")


def test_ranks_that_fit_under_one_leaf_do_not_use_the_root(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric("--racks", "2", "--ports", "2", "--elements", str(ELEMENTS))
    with ExitStack() as stack:
        ranks = join_all(fabric, "small", 2, stack)
        for got in reduce_all(ranks, [np.full(1000, rank + 1, np.int32) for rank in range(2)]):
            assert np.array_equal(got, np.full(1000, 3, np.int32))
        root, leaf, _ = fabric.status()["switches"]
    assert leaf["events"]["completed"] == ranks[0][1].place.tensor_cut.positions(1000, "int32")
    # The controller's own packets look after cables: NACKs that every switch passes on.
    assert {name for name, count in {**root["events"], **root["drops"]}.items() if count} <= {"nack_up"}


def test_training_over_a_tree_ends_with_the_weights_of_one_switch(
    start_fabric: Callable[..., Fabric],
) -> None:
    options = ["--workers", "4", "--epochs", "1", "--seed", "5"]
    weights = []
    for tree in ((), ("--racks", "2", "--ports", "2", "--loss", "0.01")):
        fabric = start_fabric(*tree)
        weights += trained("--controller", fabric.http, *options)["weights_sha256"]
    assert len(set(weights)) == 1


def test_a_restarted_controller_takes_the_whole_tree_over(
    start_fabric: Callable[..., Fabric],
) -> None:
    fabric = start_fabric("--racks", "2", "--ports", "1", "--elements", str(ELEMENTS))
    with ExitStack() as stack:
        ranks = join_all(fabric, "kept", 2, stack)
        os.kill(fabric.state["pid"], signal.SIGKILL)
        tensors = [np.full(500, rank + 1, np.int32) for rank in range(2)]
        assert all(np.array_equal(got, np.full(500, 3, np.int32)) for got in reduce_all(ranks, tensors))
        port = fabric.http.rpartition(":")[2]
        again = controller(
            "start", "--http", f"127.0.0.1:{port}", "--state-dir", fabric.state_dir, "--elements", str(ELEMENTS)
        )
        assert again.returncode == 0, again.stderr
        status = fabric.status()
        assert [switch["name"] for switch in status["switches"]] == ["root", "leaf0", "leaf1"] and status["up"]
        assert [job["name"] for job in status["jobs"]] == ["kept"]
        # What it found is what it goes on with: slots, entries, counters.
        tensors = [np.full(500, rank + 1, np.int32) for rank in range(2)]
        assert all(np.array_equal(got, np.full(500, 3, np.int32)) for got in reduce_all(ranks, tensors))
        assert fabric.status()["events"]["completed"] == 2 * ranks[0][1].place.tensor_cut.positions(500, "int32")
    assert fabric.status()["jobs"] == []
