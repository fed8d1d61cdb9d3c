"""Mechanisms whose sums the switch takes for a server: the weights are the switch's own, links carry what the schedule
says, and a server that stops is named."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from hostlib._engine import Engine, Server
from hostlib.collectives.create import create_collective
from hostlib.errors import RunError
from hostlib.fabric import engine_checks
from hostlib.fabric.aggregation import POLICIES, configure
from hostlib.fabric.job_client import FabricSession, join
from hostlib.mechanisms.mechanism import find
from hostlib.protocol.constants import HEADER_BYTES
from hostlib.schedules.schedule import FabricUse, link_elements
from hostlib.transport.failure_detector import FailureDetector
from hostlib.transport.rank_context import RankContext
from tests.chaos.training import TrainingRun
from tests.conftest import Fabric
from tests.training_runs import trained

MECHANISMS = ["inagg+mcast:via_server", "inagg"]
ELEMENT_BYTES = 4
DEADLINE_S = 3
WORKERS, ELEMENTS = 3, 100_001


@pytest.fixture(scope="module")
def of_the_switch(fabric: Fabric) -> dict[str, Any]:
    """What a run ends with whose sums the switch multicasts by itself."""
    return trained("--controller", fabric.http, "--mechanism", "inagg+mcast", "--workers", "2", "--iterations", "20")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_servers_sums_train_as_the_switchs_own_do(
    mechanism: str, fabric: Fabric, of_the_switch: dict[str, Any]
) -> None:
    before = fabric.status()["events"]
    result = trained("--controller", fabric.http, "--mechanism", mechanism, "--workers", "2", "--iterations", "20")
    grown = {name: count - before[name] for name, count in fabric.status()["events"].items()}
    assert result["weights_sha256"] == of_the_switch["weights_sha256"]
    assert result["fabric_failures"] == [[], []]
    chunks = result["steps_chunks_total"]
    down = chunks if mechanism == "inagg+mcast:via_server" else 0
    assert (grown["sent_up"], grown["completed"], grown["down"]) == (chunks, 0, down)
    assert fabric.status()["jobs"] == []


def joined(fabric: Fabric, rank: int, end: Engine | Server, ports: list[int], use: FabricUse) -> FabricSession:
    who = None if rank == WORKERS else rank
    arguments = (fabric.http, f"bytes-{use.name}", who, WORKERS, end.address, ports, 20.0, lambda: 0)
    return join(*arguments, policy=POLICIES[use])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_links_carry_what_the_schedule_says(mechanism: str, fabric: Fabric) -> None:
    """The workers' and the server's, but for the headers and what is sent again."""
    use = find(mechanism).fabric_use
    assert use is not None
    to_workers = use is FabricUse.TO_SERVER
    engines, server = [Engine("127.0.0.1") for _ in range(WORKERS)], Server("127.0.0.1")
    tensors = [np.random.default_rng(rank).integers(-99, 99, ELEMENTS, np.int32) for rank in range(WORKERS)]
    wanted = sum(tensors)
    with ThreadPoolExecutor(WORKERS + 1) as pool:
        ends = [(engine, engine.ports) for engine in engines] + [(server, [server.port])]
        sessions = list(pool.map(lambda rank: joined(fabric, rank, *ends[rank], use), range(WORKERS + 1)))
        place = sessions[-1].place
        server.configure(
            place.fabric_address,
            place.fabric_port,
            place.job_id,
            place.epoch,
            place.world_size,
            place.pools[0].first_slot,
            place.pools[0].slots,
            place.elements,
            engine_checks.of_sums(place),
            workers=[worker.end(0) for worker in place.workers] if to_workers else [],
        )
        for engine, session in zip(engines, sessions, strict=False):
            configure(engine, session.place, to_workers)
        list(pool.map(lambda rank: engines[rank].allreduce(tensors[rank], False, 20.0), range(WORKERS)))
    assert all(np.array_equal(tensor, wanted) for tensor in tensors)
    server.halt()
    packet_bytes = HEADER_BYTES + ELEMENT_BYTES * place.elements
    predicted = link_elements(find(mechanism).schedule(WORKERS, ELEMENT_BYTES * ELEMENTS), ELEMENTS)
    each = [engine.stats() for engine in engines]
    asked_again = sum(stats["retransmits"] for stats in each)
    chunks = 1 + -(-ELEMENTS // place.elements)
    for node, stats in [*((f"worker{rank}", stats) for rank, stats in enumerate(each)), ("server0", server.stats())]:
        for elements, way in zip(predicted[node], ("sent", "received"), strict=True):
            carried, times = stats[f"bytes_{way}"], round(elements / ELEMENTS)
            assert ELEMENT_BYTES * elements < carried <= (times * chunks + asked_again * WORKERS) * packet_bytes, node
    for session in sessions:
        session.leave()


def test_a_server_that_stops_is_named(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric()  # of its own: nobody leaves the job
    mechanism = ("--mechanism", "inagg+mcast:via_server", "--workers", "2", "--controller", fabric.http)
    run = TrainingRun.start("--epochs", "2000", "--deadline", str(DEADLINE_S), *mechanism)
    try:
        run.wait_for_step()
        os.kill(run.ranks()[2], signal.SIGSTOP)
        assert run.end(within_s=DEADLINE_S + 15) == 1
        assert "server 0 is missing: no sign of life" in run.error()
    finally:
        run.stop()


def test_a_group_without_servers_is_told() -> None:
    ranks_alone = RankContext(0, 2, None, cast(FailureDetector, None), 1.0, lambda: None, lambda: None, cast(Any, None))
    with pytest.raises(RunError, match=r"^inagg needs servers beside the ranks"):
        create_collective(find("inagg"), ranks_alone, "", "")
