"""The packet engine against a real switch process, several ranks as threads of one process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from hostlib import _engine
from hostlib._engine import Engine
from hostlib.protocol import block_float
from tests.checks import engine_checks
from tests.conftest import Fabric, running_fabric
from tests.packet_sizes import elements

ELEMENTS, SLOTS = elements(64), 128
FAULTS = ("--loss", "0.05", "--duplicate", "0.05", "--reorder", "0.05", "--seed", "11")


@pytest.fixture(scope="module", params=[(), FAULTS], ids=["good", "bad"])
def fabric(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """A good network, and one that loses, duplicates and reorders."""
    with running_fabric(tmp_path_factory.mktemp("fabric"), "--elements", str(ELEMENTS), *request.param) as fabric:
        yield fabric


class Ranks:
    """The engines of one job."""

    def __init__(self, fabric: Fabric, job: str, world_size: int, window: int = 0) -> None:
        self.engines = [Engine("127.0.0.1") for _ in range(world_size)]
        self.path, self.fabric = f"/v1/jobs/{job}/ranks", fabric
        for rank, engine in enumerate(self.engines):
            body = {"world_size": world_size, "address": engine.address, "udp_ports": engine.ports}
            assert fabric.call("POST", f"{self.path}/{rank}", body)[0] == 200
        for rank, engine in enumerate(self.engines):
            place = fabric.call("GET", f"{self.path}/{rank}")[1]
            engine.configure(
                place["fabric"]["address"],
                place["fabric"]["port"],
                place["job_id"],
                place["epoch"],
                rank,
                world_size,
                [(pool["first_slot"], pool["slots"]) for pool in place["pools"]],
                place["elements"],
                engine_checks(world_size, place["elements"], place["secret"]),
                window,
            )

    def allreduce(
        self, tensors: list[np.ndarray], average: bool = False, deadline_s: float = 20.0
    ) -> list[BaseException | None]:
        """All ranks at once; what each raised."""
        raised: list[BaseException | None] = [None] * len(tensors)

        def reduce(rank: int) -> None:
            try:
                self.engines[rank].allreduce(tensors[rank], average, deadline_s)
            except BaseException as error:
                raised[rank] = error

        threads = [threading.Thread(target=reduce, args=(rank,)) for rank in range(len(tensors))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return raised

    def leave(self) -> None:
        for rank in range(len(self.engines)):
            self.fabric.call("DELETE", f"{self.path}/{rank}")


@pytest.mark.parametrize(("world_size", "window"), [(1, 0), (2, 1), (3, 7), (5, 0)])
def test_back_to_back_tensors_are_the_oracles_bit_for_bit(fabric: Fabric, world_size: int, window: int) -> None:
    ranks = Ranks(fabric, f"oracle-{world_size}-{window}", world_size, window)
    random = np.random.default_rng(world_size)
    for number, count in enumerate(
        [0, 1, ELEMENTS - 1, ELEMENTS, ELEMENTS + 1, 2, SLOTS * ELEMENTS, SLOTS * ELEMENTS + 1, 30_000]
    ):
        spread = random.integers(-30, 30, count)
        tensors = [np.ldexp(random.standard_normal(count), spread).astype(np.float32) for _ in range(world_size)]
        wanted = block_float.allreduce(tensors, ELEMENTS, SLOTS, average=bool(number % 2))
        assert ranks.allreduce(tensors, average=bool(number % 2)) == [None] * world_size
        for tensor in tensors:
            assert np.array_equal(tensor.view(np.uint32), wanted.view(np.uint32)), count
    ranks.leave()


def test_int32_is_exact_and_what_might_overflow_is_refused_by_all(fabric: Fabric) -> None:
    ranks = Ranks(fabric, "integers", 3)
    random = np.random.default_rng(5)
    tensors = [random.integers(-(2**29), 2**29, 1000, dtype=np.int32) for _ in range(3)]
    wanted = sum(t.astype(np.int64) for t in tensors)
    assert ranks.allreduce(tensors) == [None] * 3
    assert all(np.array_equal(tensor, wanted) for tensor in tensors)
    large = [np.full(300, 2**31 - 1 if rank == 1 else 1, np.int32) for rank in range(3)]
    raised = ranks.allreduce(large)
    assert all(isinstance(error, OverflowError) for error in raised)
    assert [int(t[0]) for t in large] == [1, 2**31 - 1, 1]
    # The stream goes on where it was.
    again = [np.ones(100, np.int32) for _ in range(3)]
    assert ranks.allreduce(again) == [None] * 3
    assert all((tensor == 3).all() for tensor in again)
    ranks.leave()


def test_nan_and_inf_reach_every_rank(fabric: Fabric) -> None:
    ranks = Ranks(fabric, "specials", 2)
    tensors = [np.ones(200 * ELEMENTS, np.float32) for _ in range(2)]
    tensors[0][150 * ELEMENTS + 3], tensors[0][150 * ELEMENTS + 4] = np.nan, np.inf
    assert ranks.allreduce(tensors) == [None, None]
    for tensor in tensors:
        assert np.isnan(tensor[150 * ELEMENTS + 3]) and tensor[150 * ELEMENTS + 4] == np.inf
        assert (tensor[: 150 * ELEMENTS] == 2).all() and (tensor[151 * ELEMENTS :] == 2).all()
    ranks.leave()


def test_a_missing_rank_is_a_stall_within_the_deadline(fabric: Fabric) -> None:
    ranks = Ranks(fabric, "stall", 2)
    started = time.monotonic()
    with pytest.raises(_engine.Stalled, match="no result from the fabric"):
        ranks.engines[0].allreduce(np.ones(10, np.float32), False, 0.5)
    assert 0.5 <= time.monotonic() - started < 3
    ranks.leave()


def test_after_a_stall_the_engine_refuses_rather_than_mixing_tensors(fabric: Fabric) -> None:
    ranks = Ranks(fabric, "after-stall", 2)
    with pytest.raises(_engine.Stalled):
        ranks.engines[0].allreduce(np.ones(6400, np.float32), False, 0.3)
    around = np.full(2000, 7.0, np.float32)
    with pytest.raises(RuntimeError, match="configure"):
        ranks.engines[0].allreduce(around[:1], False, 0.3)
    assert (around == 7).all()
    ranks.leave()


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_deadline_that_is_none_is_refused(fabric: Fabric, deadline_s: float) -> None:
    ranks = Ranks(fabric, "deadline", 1)
    with pytest.raises(ValueError, match="the deadline must be"):
        ranks.engines[0].allreduce(np.ones(1, np.float32), False, deadline_s)
    ranks.leave()


def test_another_thread_can_cancel(fabric: Fabric) -> None:
    ranks = Ranks(fabric, "cancel", 2)
    timer = threading.Timer(0.2, ranks.engines[0].cancel)
    timer.start()
    with pytest.raises(_engine.Cancelled):
        ranks.engines[0].allreduce(np.ones(10, np.float32), False, 30.0)
    timer.join()
    ranks.leave()


class DamagingWire:
    """Between a rank and the fabric: flips one bit of every `every`-th packet, up or down."""

    def __init__(self, fabric_address: tuple[str, int], source: tuple[str, int], every: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(0.05)
        self.fabric, self.source, self.every, self.damaged = fabric_address, source, every, 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._carry, daemon=True)
        self.thread.start()

    def _carry(self) -> None:
        seen = 0
        while not self.ended.is_set():
            try:
                data, sender = self.socket.recvfrom(1 << 16)
            except TimeoutError:
                continue
            down = sender == self.fabric
            if down:
                seen += 1
                if seen % self.every == 0:
                    packet = bytearray(data)
                    bit = seen * 97 % (8 * len(packet))
                    packet[bit // 8] ^= 1 << bit % 8
                    data, self.damaged = bytes(packet), self.damaged + 1
            self.socket.sendto(data, self.source if down else self.fabric)

    def close(self) -> None:
        self.ended.set()
        self.thread.join()
        self.socket.close()


def test_damaged_results_are_noticed_and_asked_for_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_fabric(tmp_path_factory.mktemp("fabric"), "--elements", str(ELEMENTS)) as fabric:
        engines = [Engine("127.0.0.1") for _ in range(2)]
        wires = []
        for rank, engine in enumerate(engines):
            body = {"world_size": 2, "address": "127.0.0.1", "udp_ports": [1]}
            place = fabric.call("POST", f"/v1/jobs/damage/ranks/{rank}", body)[1]
            wire = DamagingWire(
                (place["fabric"]["address"], place["fabric"]["port"]), ("127.0.0.1", engine.ports[0]), 10
            )
            wires.append(wire)
            # The controller is told the wire's port: results go through it, too.
            body["udp_ports"] = [wire.socket.getsockname()[1]]
            fabric.call("POST", f"/v1/jobs/damage/ranks/{rank}", body)
        for rank, engine in enumerate(engines):
            place = fabric.call("GET", f"/v1/jobs/damage/ranks/{rank}")[1]
            address, port = wires[rank].socket.getsockname()
            engine.configure(
                address,
                port,
                place["job_id"],
                place["epoch"],
                rank,
                2,
                [(pool["first_slot"], pool["slots"]) for pool in place["pools"]],
                place["elements"],
                engine_checks(2, place["elements"], place["secret"]),
            )
        tensors = [np.random.default_rng(rank).standard_normal(300 * ELEMENTS).astype(np.float32) for rank in range(2)]
        wanted = block_float.allreduce(tensors, ELEMENTS, SLOTS)
        threads = [
            threading.Thread(target=e.allreduce, args=(t, False, 20.0)) for e, t in zip(engines, tensors, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for wire in wires:
            wire.close()
        assert all(np.array_equal(tensor, wanted) for tensor in tensors)
        assert min(wire.damaged for wire in wires) > 20
        assert min(engine.stats()["damaged"] for engine in engines) > 0
