"""A switch of docs/protocol.md (one switch, policies `sum` and `server`) on loopback, behind a wire as bad as a test
asks for.

One thread of the test process, so that a campaign costs no start of a process per example. Written from the page, as
tests/property/model.py is; that one speaks whole Ethernet frames and sums only 64 elements.
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hostlib._engine import Engine, Server
from hostlib.protocol import constants
from hostlib.schedules.schedule import FabricUse
from tests.checks import engine_checks

_HEADER = struct.Struct(constants.HEADER_FORMAT)
_BATCH = 256  # packets per wakeup, before held ones are looked at again
_DELAYS_S = (0.0005, 0.002, 0.01, 0.05)

# Bits of a contribution whose damage the switch's own checks drop, or that mean nothing on their way up: all before
# `generation`, and element_count, exponent and flags. The others get into a sum, which is then nobody's.
HARMLESS_UP = (*range(0, 8 * 12), *range(8 * 18, 8 * 24))

End = tuple[str, int]
totals: Counter[str] = Counter()  # of all fabrics of this process, and what tests add: a campaign's figures


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad one direction of the wire is; each a probability per packet.

    Attributes:
        corrupt: bits of the datagram are flipped.
        bits: which may be; None for any.
        flips: how many, at least and at most.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    bits: tuple[int, ...] | None = None
    flips: tuple[int, int] = (1, 1)

    @property
    def any(self) -> bool:
        return max(self.loss, self.duplicate, self.reorder, self.corrupt) > 0


@dataclass(frozen=True, slots=True)
class Pool:
    """Slots of a lane, and where each rank's lane is; by rank. Sums go to the server, if there is one."""

    first_slot: int
    slots: int
    ends: tuple[End, ...]
    server: End | None = None


@dataclass(slots=True)
class Set:
    """One of a slot's two sets."""

    epoch: int
    generation: int
    seen: set[int]
    words: np.ndarray
    check: int
    next_exponent: int
    done: bool = False


class FakeFabric:
    """The switch. `counts` are of what it dropped and did, by the names of docs/protocol.md in lower case.

    Args:
        elements: per packet.
        up, down: what the wire does to what arrives here, and to what leaves.
    """

    def __init__(self, elements: int, up: Faults, down: Faults, seed: int) -> None:
        self.elements, self.up, self.down = elements, up, down
        self.counts: Counter[str] = Counter()
        # For a test to look at every contribution that arrives, and to change or drop (None) it.
        self.tap: Callable[[bytes, End], bytes | None] = lambda data, source: data
        # For a test to set: how long a packet waits in a queue, by direction (upwards) and host.
        self.queued_s: Callable[[bool, End], float] | None = None
        self._jobs: dict[tuple[int, int], tuple[Pool, ...]] = {}
        self._sets: dict[tuple[int, int], Set] = {}
        self._random = random.Random(seed)
        self._held: list[tuple[float, int, bool, bytes, End]] = []
        self._number = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.address: str = self._socket.getsockname()[0]
        self.port: int = self._socket.getsockname()[1]
        self._ended = threading.Event()
        self.broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fake fabric", daemon=True)
        self._thread.start()

    def admit(self, job: int, epoch: int, pools: tuple[Pool, ...]) -> None:
        self._jobs[job, epoch] = pools

    def expel(self, job: int, epoch: int) -> None:
        del self._jobs[job, epoch]

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)
        self._socket.close()
        totals.update(self.counts)
        totals["fabrics"] += 1
        if self.broken is not None:
            raise self.broken

    # ---- the wire ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                select.select([self._socket], [], [], 0.0005 if self._held else 0.02)
                for _ in range(_BATCH):
                    try:
                        data, source = self._socket.recvfrom(65535)
                    except BlockingIOError:
                        break
                    except ConnectionRefusedError:
                        continue  # an engine that is gone
                    self._carry(True, data, source)
                now = time.monotonic()
                while self._held and self._held[0][0] <= now:
                    _, _, upwards, data, end = heapq.heappop(self._held)
                    self._deliver(upwards, data, end)
        except BaseException as error:
            self.broken = error

    def _carry(self, upwards: bool, data: bytes, end: End) -> None:
        faults, draw = self.up if upwards else self.down, self._random.random
        if self.queued_s is not None:
            self._number += 1
            due = time.monotonic() + self.queued_s(upwards, end)
            heapq.heappush(self._held, (due, self._number, upwards, data, end))
            return
        if not faults.any:
            self._deliver(upwards, data, end)
            return
        if draw() < faults.loss:
            self.counts["lost"] += 1
            return
        for _ in range(2 if draw() < faults.duplicate else 1):
            copy = self._damaged(data, faults) if draw() < faults.corrupt else data
            if draw() < faults.reorder:
                self._number += 1
                due = time.monotonic() + self._random.choice(_DELAYS_S)
                heapq.heappush(self._held, (due, self._number, upwards, copy, end))
            else:
                self._deliver(upwards, copy, end)

    def _damaged(self, data: bytes, faults: Faults) -> bytes:
        self.counts["damaged"] += 1
        bits = faults.bits if faults.bits is not None else range(8 * len(data))
        return flipped(data, *self._random.sample(bits, self._random.randint(*faults.flips)))

    def _deliver(self, upwards: bool, data: bytes, end: End) -> None:
        if upwards:
            self.process(data, end)
        else:
            try:
                self._socket.sendto(data, end)
            except (BlockingIOError, ConnectionRefusedError):
                self.counts["lost"] += 1

    # ---- the switch --------------------------------------------------------------------------------------------------

    def process(self, data: bytes, source: End) -> None:
        tapped = self.tap(data, source)
        if tapped is not None:
            self.counts[self._judged(tapped, source)] += 1

    def _judged(self, data: bytes, source: End) -> str:
        if len(data) != constants.HEADER_BYTES + 4 * self.elements:
            return "truncated"
        fields = _HEADER.unpack_from(data)
        magic, version, operation, job, rank, epoch, generation, slot, count, _, _, next_exponent, check = fields
        if magic != constants.NETFOLD_MAGIC:
            return "malformed"
        if version != constants.NETFOLD_VERSION:
            return "version"
        if count != self.elements:
            return "size"
        pools = self._jobs.get((job, epoch))
        if pools is None:
            return "epoch"
        if operation == constants.OPERATION_RESULT:
            return self._result(fields, data, [pool for pool in pools if pool.server == source])
        if operation != constants.OPERATION_CONTRIBUTION:
            return "operation"
        if rank >= len(pools[0].ends):
            return "rank"
        pools = tuple(pool for pool in pools if pool.ends[rank] == source)
        if not pools:
            return "source"
        (pool,) = pools
        if not pool.first_slot <= slot < pool.first_slot + pool.slots:
            return "slot"
        words = np.frombuffer(data, ">u4", self.elements, constants.HEADER_BYTES)
        key = slot, generation & 1
        held = self._sets.get(key)
        ahead = 1 if held is None or held.epoch != epoch else (generation - held.generation) & 0xFFFFFFFF
        if ahead >= 1 << 31:
            return "stale"
        if ahead > 2:
            return "future"
        if held is None or ahead:
            held = self._sets[key] = Set(epoch, generation, {rank}, words.astype(np.uint32), check, next_exponent)
        elif rank in held.seen:
            if len(held.seen) < len(pool.ends):
                return "duplicate"
            if pool.server is not None and not held.done:
                self._send(fields, held, constants.OPERATION_SUM, rank, pool.server)
                return "up_again"
            self._send(fields, held, constants.OPERATION_RESULT, rank, source)
            return "answered"
        else:
            held.seen.add(rank)
            held.words += words
            held.check = (held.check + check) & 0xFFFFFFFF
            held.next_exponent = max(held.next_exponent, next_exponent)
        if len(held.seen) < len(pool.ends):
            return "absorbed"
        if pool.server is not None:
            self._send(fields, held, constants.OPERATION_SUM, rank, pool.server)
            return "sent_up"
        self._to_all(fields, held, pool)
        return "completed"

    def _result(self, fields: tuple[int, ...], data: bytes, pools: list[Pool]) -> str:
        epoch, generation, slot, next_exponent, check = (*fields[5:8], *fields[11:13])
        if not pools:
            return "source"
        if not pools[0].first_slot <= slot < pools[0].first_slot + pools[0].slots:
            return "slot"
        held = self._sets.get((slot, generation & 1))
        if held is None or (held.epoch, held.generation) != (epoch, generation) or held.done:
            return "unasked"
        if len(held.seen) < len(pools[0].ends):
            return "unasked"
        words = np.frombuffer(data, ">u4", self.elements, constants.HEADER_BYTES).astype(np.uint32)
        held.words, held.check, held.next_exponent, held.done = words, check, next_exponent, True
        self._to_all(fields, held, pools[0])
        return "down"

    def _to_all(self, fields: tuple[int, ...], held: Set, pool: Pool) -> None:
        for receiver, end in enumerate(pool.ends):
            self._send(fields, held, constants.OPERATION_RESULT, receiver, end)

    def _send(self, fields: tuple[int, ...], held: Set, operation: int, rank: int, end: End) -> None:
        magic, version, _, job, _, epoch, generation, slot, count, exponent, _, _, _ = fields
        front = (magic, version, operation, job, rank, epoch, generation, slot, count, exponent, 0)
        header = _HEADER.pack(*front, held.next_exponent, held.check)
        self._carry(False, header + held.words.astype(">u4").tobytes(), end)


def flipped(data: bytes, *bits: int) -> bytes:
    """The data with these bits the other way round."""
    changed = bytearray(data)
    for bit in bits:
        changed[bit // 8] ^= 0x80 >> bit % 8
    return bytes(changed)


@dataclass(slots=True)
class Ranks:
    """The engines of one job at a fabric.

    Attributes:
        slots: of each lane.
        windows: by rank; 0 for all slots.
        servers: the job's, one for each lane, or none.
        use: whom they answer.
    """

    fabric: FakeFabric
    engines: list[Engine]
    lanes: int
    slots: int
    windows: list[int]
    servers: list[Server]
    use: FabricUse
    job: int = 7
    epoch: int = 0

    @property
    def world_size(self) -> int:
        return len(self.engines)

    def configure(self, epoch: int) -> None:
        """A new life of the job; the one before is forgotten by the switch."""
        pools = tuple(
            Pool(
                lane * self.slots,
                self.slots,
                tuple((e.address, e.ports[lane]) for e in self.engines),
                (self.servers[lane].address, self.servers[lane].port) if self.servers else None,
            )
            for lane in range(self.lanes)
        )
        if self.epoch:
            self.fabric.expel(self.job, self.epoch)
        self.epoch = epoch
        self.fabric.admit(self.job, epoch, pools)
        to_workers = self.use is FabricUse.TO_SERVER
        check = engine_checks(self.world_size, self.fabric.elements, f"{epoch:032x}")
        for server, pool in zip(self.servers, pools, strict=False):
            server.configure(
                self.fabric.address,
                self.fabric.port,
                self.job,
                epoch,
                self.world_size,
                pool.first_slot,
                pool.slots,
                self.fabric.elements,
                check,
                workers=pool.ends if to_workers else [],
            )
        for rank, (engine, window) in enumerate(zip(self.engines, self.windows, strict=True)):
            engine.configure(
                self.fabric.address,
                self.fabric.port,
                self.job,
                epoch,
                rank,
                self.world_size,
                [(pool.first_slot, pool.slots) for pool in pools],
                self.fabric.elements,
                check,
                window,
                [pool.server for pool in pools] if to_workers else [],
            )

    def stats(self, name: str) -> int:
        return sum(engine.stats()[name] for engine in self.engines)


@contextmanager
def ranks_at_a_fabric(
    windows: list[int],
    elements: int,
    slots: int,
    lanes: int = 1,
    up: Faults | None = None,
    down: Faults | None = None,
    seed: int = 0,
    epoch: int = 1,
    use: FabricUse = FabricUse.SUM,
) -> Iterator[Ranks]:
    """One rank per window, configured; the fabric's `broken` is raised at the end."""
    fabric = FakeFabric(elements, up or Faults(), down or Faults(), seed)
    engines = [Engine("127.0.0.1", [0] * lanes) for _ in windows]
    servers = [Server("127.0.0.1") for _ in range(lanes)] if use is not FabricUse.SUM else []
    ranks = Ranks(fabric, engines, lanes, slots, windows, servers, use)
    try:
        ranks.configure(epoch)
        yield ranks
    finally:
        for end in [*ranks.engines, *ranks.servers]:
            end.halt()
        fabric.close()
