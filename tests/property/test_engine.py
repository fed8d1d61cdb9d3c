"""The packet engine on wires as bad as can be: whatever happens, the oracle's bits or none.

An example is a job of 2 to 32 ranks with several tensors under way at once, at a switch of its own
(tests/property/fabric.py). NETFOLD_ENGINE_EXAMPLES sets how many, of recovery twice as many; a campaign takes hundreds.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hostlib import _engine
from hostlib.protocol import block_float, constants
from hostlib.protocol.openings import TensorCut
from hostlib.schedules.schedule import FabricUse
from hostlib.transport.waits import PATIENCE_S
from tests.property.fabric import HARMLESS_UP, End, Faults, Ranks, flipped, ranks_at_a_fabric, totals
from tests.property.recovery import Summing, recover
from tests.property.tensor import STYLES, Kind, bits, handed

EXAMPLES = int(os.environ.get("NETFOLD_ENGINE_EXAMPLES", "8"))
DEADLINE_S = 60.0
# Of all examples that a test draws: each has deadlines of its own, and loss on all of many ranks' links may take seconds.
pytestmark = pytest.mark.timeout(600)
SUMMING = (FabricUse.SUM, FabricUse.VIA_SERVER, FabricUse.TO_SERVER)

# Threads and clocks take part: a failing example is told as it was drawn, not shrunk into one that passes.
bounded = settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


@dataclass(frozen=True)
class Case:
    """One example."""

    windows: list[int]
    elements: int
    slots: int
    lanes: int
    kinds: list[Kind]
    up: Faults
    down: Faults
    seed: int
    use: FabricUse = FabricUse.SUM

    @property
    def world_size(self) -> int:
        return len(self.windows)

    def running(self):
        return ranks_at_a_fabric(
            self.windows,
            self.elements,
            self.slots,
            self.lanes,
            self.up,
            self.down,
            self.seed,
            1 + self.seed % 2**31,
            self.use,
        )

    def tensors(self) -> list[list[Summing]]:
        """By tensor and rank; what the oracle says comes along."""
        rows = []
        for kind in self.kinds:
            inputs = [kind.values(rank, self.world_size) for rank in range(self.world_size)]
            wanted = kind.wanted(inputs, self.elements, self.slots, self.lanes)
            rows.append([Summing(kind, x, x.copy(), wanted) for x in inputs])
        return rows


_rates = st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.2])


@st.composite
def cases(draw: st.DrawFn, packets: int = 2000) -> Case:
    """packets: about how many contributions an example may cost; a bad wire makes each dearer."""
    world_size = draw(st.sampled_from([2, 2, 2, 3, 3, 4, 5, 8, 17, 32]))
    elements = draw(st.sampled_from([1, 16, 16, 64, 256, 2048]))
    slots = 1 << draw(st.integers(0, 10))
    lanes = draw(st.integers(1, 3))
    rates = [draw(_rates) for _ in range(7)]
    flips = (1, draw(st.integers(1, 4)))
    up, down = Faults(*rates[:3], rates[6], HARMLESS_UP, flips), Faults(*rates[3:], flips=flips)
    same = draw(st.booleans())
    windows = [draw(st.integers(0, slots)) for _ in range(1 if same else world_size)]
    windows = windows * world_size if same else windows
    # A round through a bad wire takes tens of milliseconds, whatever is in it.
    narrowest = min(window or slots for window in windows) * lanes
    worst = max(rates)
    blocks = min(packets // world_size, narrowest * (8 if worst > 0.05 else 40 if worst else 1000))
    kinds = []
    for left in range(draw(st.integers(1, 5)), 0, -1):
        part = max(2, blocks // left)
        edge = draw(st.sampled_from([0, 1, slots - 1, slots, slots + 1, 2 * slots, lanes, lanes * slots]))
        chunks = draw(st.one_of(st.integers(0, 4), st.just(edge), st.integers(0, part)))
        chunks = min(chunks, part, 10**6 // elements)
        count = max(0, chunks * elements + draw(st.sampled_from([0, 0, -1, 1])))
        blocks -= chunks
        dtype = draw(st.sampled_from(["float32", "float32", "float16", "bfloat16", "int32"]))
        average = dtype != "int32" and draw(st.booleans())
        kinds.append(Kind(dtype, count, draw(st.sampled_from(STYLES)), average, draw(st.integers(0, 2**32 - 1))))
    seed, use = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from(SUMMING))
    return Case(windows, elements, slots, lanes, kinds, up, down, seed, use)


class Rank:
    """A thread that submits one rank's tensors, now and then late, and one that waits for them in an order of its own."""

    def __init__(self, engine: _engine.Engine, tensors: list[Summing], seed: int, last: int | None = None) -> None:
        self.engine, self.tensors, self.errors = engine, tensors, []
        self._draw = random.Random(seed)
        self._last = len(tensors) if last is None else last
        self._stop, self._submitted = threading.Event(), threading.Condition()
        order = list(range(len(tensors)))
        if self._draw.random() < 0.5:
            self._draw.shuffle(order)
        self._threads = [threading.Thread(target=self._guard, args=(self._submit,))]
        self._threads.append(threading.Thread(target=self._guard, args=(lambda: self._wait(order),)))
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def stop(self) -> None:
        self._stop.set()

    def _guard(self, work) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)
            self._stop.set()

    def _submit(self) -> None:
        for summing in self.tensors[: self._last]:
            if self._draw.random() < 0.3:
                time.sleep(self._draw.choice([0.0005, 0.002, 0.01]))
            try:
                ticket = self.engine.submit(handed(summing.kind.dtype, summing.values), summing.kind.average)
            except RuntimeError:
                assert self.engine.halted
                return
            with self._submitted:
                summing.ticket = ticket
                self._submitted.notify_all()

    def _wait(self, order: list[int]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        for number in order:
            summing = self.tensors[number]
            while not self._stop.is_set() and not summing.settled:
                assert time.monotonic() < deadline, f"tensor {number} hangs: {self.engine.stats()}"
                if summing.ticket is None:
                    with self._submitted:
                        self._submitted.wait(0.005)
                else:
                    summing.wait(self.engine, 0.02)


def _submit_all(ranks: Ranks, rows: list[list[Summing]]) -> None:
    for row in rows:
        for summing, engine in zip(row, ranks.engines, strict=True):
            summing.ticket = engine.submit(handed(summing.kind.dtype, summing.values), summing.kind.average)


def _wait_for_all(ranks: Ranks, row: list[Summing]) -> None:
    for summing, engine in zip(row, ranks.engines, strict=True):
        assert summing.wait(engine, DEADLINE_S), engine.stats()
        untouched_or_summed(summing)


def untouched_or_summed(summing: Summing) -> None:
    """A tensor that is through, or was refused."""
    if summing.wanted is None:
        assert summing.refused, "summed what may not fit"
        assert np.array_equal(summing.values, summing.own), "refused, but not left as it was"
    else:
        assert summing.over and not summing.refused
        assert np.array_equal(bits(summing.values), bits(summing.wanted)), summing.difference()


# ---- through the switch ----------------------------------------------------------------------------------------------


@bounded
@given(case=cases())
def test_all_ranks_end_with_the_oracles_bits(case: Case) -> None:
    rows = case.tensors()
    with case.running() as ranks:
        threads = [Rank(e, [row[r] for row in rows], case.seed + r) for r, e in enumerate(ranks.engines)]
        for thread in threads:
            thread.join()
        # The lanes' threads tell who waits before they have put everything down themselves.
        deadline = time.monotonic() + 5
        while any(engine.silent() for engine in ranks.engines) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not any(engine.silent() for engine in ranks.engines)
    for summing in (summing for row in rows for summing in row):
        untouched_or_summed(summing)
    totals["tensors by the switch"] += len(rows)


@pytest.mark.parametrize(("world_size", "window"), [(2, 0), (8, 0), (8, 1), (32, 2)])
def test_loss_is_not_silence(world_size: int, window: int) -> None:
    """One packet in five is lost each way: something comes all the same, before the switch counts as dead."""
    silences_s: list[float] = []
    # Pauses of the machine count as silence, too, but hardly three times.
    while min(silences_s, default=PATIENCE_S) >= PATIENCE_S:
        assert len(silences_s) < 3, silences_s
        silences_s.append(_longest_silence(world_size, window, seed=1 + len(silences_s)))


def _longest_silence(world_size: int, window: int, seed: int) -> float:
    """Seconds in which no result came to some rank that waited for one."""
    kind = Kind("float32", 16 * (400 // world_size), "narrow", False, 1)
    case = Case([window] * world_size, 16, 64, 1, [kind], Faults(loss=0.2), Faults(loss=0.2), seed)
    rows, longest_s = case.tensors(), 0.0
    with case.running() as ranks:
        _submit_all(ranks, rows)
        while silent_s := max(engine.silent() for engine in ranks.engines):
            longest_s = max(longest_s, silent_s)
            time.sleep(0.002)
        _wait_for_all(ranks, rows[0])
        assert ranks.fabric.counts["lost"] > 20 and ranks.stats("retransmits") > 20
    return longest_s


class BusyLinks:
    """Links of so many packets a second, each with a queue; now and then other traffic gets in at one of them."""

    def __init__(self, rate: float, seed: int) -> None:
        self._packet_s, self._draw = 1 / rate, random.Random(seed)
        self._free: dict[tuple[bool, End], float] = {}
        self._next_s = time.monotonic()

    def queued_s(self, upwards: bool, end: End) -> float:
        now, link = time.monotonic(), (upwards, end)
        others_s = 0.0
        if now > self._next_s:
            self._next_s, others_s = now + 0.15, self._draw.choice([0.02, 0.15, 0.28])
        self._free[link] = max(now, self._free.get(link, 0.0)) + others_s + self._packet_s
        return self._free[link] - now


def test_a_queue_is_no_loss() -> None:
    """A standing queue of all slots' packets, and other traffic in between: what is sent again too soon stays the
    exception. It once had more sent again, until links carried little else.
    """
    packets, again = 4 * 4000, list[int]()
    # Pauses of the machine are queues, too, but hardly three times.
    while min(again, default=packets) >= packets / 2:
        assert len(again) < 3, again
        again.append(_sent_again(packets // 4, seed=1 + len(again)))


def _sent_again(blocks: int, seed: int) -> int:
    """Packets that four ranks sent again, of so many each, without loss."""
    case = Case([0] * 4, 16, 128, 1, [Kind("float32", 16 * blocks, "narrow", False, 1)], Faults(), Faults(), seed)
    (row,) = case.tensors()
    with case.running() as ranks:
        ranks.fabric.queued_s = BusyLinks(rate=1000, seed=seed).queued_s
        _submit_all(ranks, [row])
        _wait_for_all(ranks, row)
        return ranks.stats("retransmits")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_million_elements_and_the_errors_bound(dtype: str) -> None:
    kind = Kind(dtype, 10**6 if dtype == "float32" else 10**5 + 1, "narrow", False, 3)
    case = Case([0, 100], 256, 1024, 2, [kind], Faults(loss=0.001), Faults(loss=0.001), 5)
    (row,) = case.tensors()
    with case.running() as ranks:
        threads = [Rank(e, [row[r]], r) for r, e in enumerate(ranks.engines)]
        for thread in threads:
            thread.join()
    for summing in row:
        untouched_or_summed(summing)
    inputs = [block_float.widened(dtype, summing.own).astype(np.float64) for summing in row]
    got = block_float.widened(dtype, row[0].values).astype(np.float64)
    codes = np.max([_engine.own_codes(handed(dtype, summing.own), 256, 1024, 2, 2) for summing in row], axis=0)
    bounds = np.repeat([block_float.error_bound(code, 2) for code in codes.tolist()], 256)[: len(got)]
    digits = {"float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    rounding = np.ldexp(1.0, np.frexp(np.abs(got))[1] - digits)  # half a unit is enough but at powers of two
    assert (np.abs(got - sum(inputs)) <= bounds + rounding).all()


@pytest.mark.parametrize("average", [False, True])
def test_specials_are_what_the_page_says(average: bool) -> None:
    """Two slots and blocks of four: each of blocks 0 and 1 has a prologue."""
    nan, inf, largest, tiny = np.nan, np.inf, 3.4028235e38, 2.0**-149
    own = [
        [1, 2, 3, 4] * 2 + [nan, inf, -inf, inf] + [-0.0, 0, -0.0, 0] + [largest, -largest, 1, 0] + [tiny, -tiny, 0, 0],
        [1, 2, 3, 4] * 2 + [1.0, 1.0, -inf, -inf] + [-0.0, -0.0, 0, 0] + [largest, largest, 1, 0] + [tiny, tiny, 0, 0],
    ]
    sums = [2, 4, 6, 8] * 2 + [nan, inf, -inf, nan] + [0] * 4 + [inf, 0, 0, 0] + [2 * tiny, 0, 0, 0]
    inputs = [np.array(values, np.float32) for values in own]
    wanted = np.array(sums, np.float32) / np.float32(2 if average else 1)
    with Case([0, 0], 4, 2, 1, [], Faults(), Faults(), 1).running() as ranks:
        tickets = [engine.submit(x, average) for engine, x in zip(ranks.engines, inputs, strict=True)]
        assert all(engine.wait(ticket, DEADLINE_S) for engine, ticket in zip(ranks.engines, tickets, strict=True))
        # A finite value among infinities comes out as NaN; other blocks are not concerned.
        inputs.append(np.array([1.0, inf, 1.0] + [1.0] * 9, np.float32))
        inputs.append(np.ones(12, np.float32))
        tickets = [engine.submit(x, average) for engine, x in zip(ranks.engines, inputs[2:], strict=True)]
        assert all(engine.wait(ticket, DEADLINE_S) for engine, ticket in zip(ranks.engines, tickets, strict=True))
    for x in inputs[:2]:
        np.testing.assert_array_equal(x, wanted)
        assert not np.signbit(x[12:16]).any()  # no negative zero comes back
    for x in inputs[2:]:
        np.testing.assert_array_equal(x, [nan, inf, nan, nan] + [1.0 if average else 2.0] * 8)


# ---- damage ----------------------------------------------------------------------------------------------------------

DATAGRAM_BITS = 8 * (constants.HEADER_BYTES + 4 * 16)
# The receiver and the flags of a result are not looked at: the sum is everybody's. Another slot or generation may make it the duplicate of another result.
UNCOUNTED = len(range(8 * 6, 8 * 8)) + len(range(8 * 22, 8 * 24)) + len(range(8 * 12, 8 * 18))


@pytest.mark.parametrize(("world_size", "everybody"), [(2, True), (32, False)])
def test_no_flipped_bit_of_a_result_is_believed(world_size: int, everybody: bool) -> None:
    """Every position's true result comes after one with a flipped bit. Eight slots: a wrong next code shows, too."""
    kind = Kind("float32", 16 * (DATAGRAM_BITS + 8), "spread", False, world_size)
    case = Case([0] * world_size, 16, 8, 1, [kind], Faults(), Faults(), 1)
    (row,) = case.tensors()
    with case.running() as ranks:
        _flip_first_results(ranks, everybody)
        _submit_all(ranks, [row])
        _wait_for_all(ranks, row)
        stats = ranks.engines[0].stats()
        counted = stats["damaged"] + stats["foreign"]
    assert counted >= DATAGRAM_BITS - UNCOUNTED


def test_no_flipped_bit_of_a_prologues_result_is_believed() -> None:
    """One after the other; the tensor's values show whether a rank took a wrong code for its opening blocks."""
    with Case([0, 0], 16, 2, 1, [], Faults(), Faults(), 1).running() as ranks:
        _flip_first_results(ranks, False, every=3)
        for bit in range(DATAGRAM_BITS):
            kind = Kind("float32", 20, "spread", False, bit)
            (row,) = Case([0, 0], 16, 2, 1, [kind], Faults(), Faults(), 1).tensors()
            _submit_all(ranks, [row])
            _wait_for_all(ranks, row)
        stats = ranks.engines[0].stats()
        assert stats["damaged"] + stats["foreign"] >= DATAGRAM_BITS - UNCOUNTED


def _flip_first_results(ranks: Ranks, everybody: bool, every: int = 1) -> None:
    """Position k's first result has bit k / `every` flipped when k is a multiple of it; then comes the true one."""
    fabric, true_carry, flipped_already = ranks.fabric, ranks.fabric._carry, set()
    first = (ranks.engines[0].address, ranks.engines[0].ports[0])

    def carry(upwards: bool, data: bytes, end: End) -> None:
        if not upwards and (everybody or end == first):
            generation, slot = struct.unpack_from(">IH", data, 12)
            position = generation * ranks.slots + slot
            bit = position // every
            if position % every == 0 and bit < 8 * len(data) and (position, end) not in flipped_already:
                flipped_already.add((position, end))
                true_carry(False, flipped(data, bit), end)
        true_carry(upwards, data, end)

    fabric._carry = carry


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world_size", [2, 32])
def test_a_flipped_bit_of_a_contribution_is_nobodys_sum(world_size: int) -> None:
    """Chunk k of rank 0 goes up with bit k flipped, the first time. What gets into the sum, no rank may believe."""
    apart = {*range(8 * 12, 8 * 18), *range(8 * 24, 8 * 28)}  # below, one by one: generation, slot, next_exponent
    harmless = {*HARMLESS_UP, *apart}
    kind = Kind("float32", 16 * DATAGRAM_BITS, "narrow", False, 1)
    case = Case([0] * world_size, 16, 1024, 1, [kind], Faults(), Faults(), 1)
    prologues = TensorCut(16, 1024, 1, world_size).openings("float32", DATAGRAM_BITS).prologues
    with case.running() as ranks:
        flipped_already = set()

        def tap(data: bytes, source: End) -> bytes:
            rank, generation, slot = struct.unpack_from(">6xH4xIH", data)
            bit = generation * 1024 + slot - prologues
            if rank or bit in flipped_already or bit < 0 or bit in apart:
                return data
            flipped_already.add(bit)
            return flipped(data, bit)

        ranks.fabric.tap = tap
        rows = case.tensors()
        _submit_all(ranks, rows)
        # What can be believed is, and then all ask again for the others, and get the same. That many ranks take their
        # time on a busy machine, so it is over once there is no progress.
        believed, moved = 0, time.monotonic()
        while believed < world_size * (prologues + len(harmless)) and time.monotonic() < moved + DEADLINE_S:
            time.sleep(0.01)
            if (now := ranks.stats("chunks")) > believed:
                believed, moved = now, time.monotonic()
        time.sleep(0.3)
        assert min(engine.silent() for engine in ranks.engines) > 0.2
        left = recover(ranks, rows)
    assert {int(chunk) for chunk in np.flatnonzero(left[0])} == harmless


@pytest.mark.parametrize("position", [0, 3], ids=["prologue", "chunk"])
def test_a_flipped_generation_slot_or_next_code_ends_in_the_oracles_bits(position: int) -> None:
    """The fields whose damage reaches beyond their own sum: what follows it is what the hosts finish."""
    for bit in (*range(8 * 12, 8 * 18, 4), *range(8 * 24, 8 * 28)):
        kinds = [Kind("float32", 16 * 9, "spread", False, bit), Kind("float16", 70, "spread", True, bit)]
        case = Case([0, 0], 16, 2, 1, kinds, Faults(), Faults(), 1)
        with case.running() as ranks:
            flipped_already = []

            def tap(data: bytes, source: End, bit: int = bit, flipped_already: list[int] = flipped_already) -> bytes:
                rank, generation, slot = struct.unpack_from(">6xH4xIH", data)
                if rank or flipped_already or generation * 2 + slot != position:
                    return data
                flipped_already.append(bit)
                return flipped(data, bit)

            ranks.fabric.tap = tap
            rows = case.tensors()
            _submit_all(ranks, rows)
            time.sleep(0.03)
            recover(ranks, rows)


@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_a_next_code_that_was_made_too_small_is_not_believed_by_who_needs_a_larger(position: int) -> None:
    """It is below the other rank's code, so that the maximum is that and looks sound."""
    inputs = [np.full(16 * 9, value, np.float32) for value in (7.5, 3.5)]  # codes 203 and 202
    kind = Kind("float32", 16 * 9, "narrow", False, 0)
    row = [Summing(kind, x, x.copy(), kind.wanted(inputs, 16, 2, 1)) for x in inputs]
    with Case([0, 0], 16, 2, 1, [], Faults(), Faults(), 1).running() as ranks:

        def tap(data: bytes, source: End) -> bytes:
            rank, generation, slot = struct.unpack_from(">6xH4xIH", data)
            spoil = rank == 0 and generation * 2 + slot == position
            return flipped(data, 8 * 24 + 7) if spoil else data  # 203 becomes 201

        ranks.fabric.tap = tap
        _submit_all(ranks, [row])
        deadline = time.monotonic() + DEADLINE_S
        while min(engine.silent() for engine in ranks.engines) < 0.1 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert ranks.engines[0].stats()["damaged"] > 1
        (done,) = recover(ranks, [row])
    # The other rank believes it, and its result is as good as any; what its slot would carry later is not.
    positions = range(1, 10)
    assert done.tolist() == [position > 0 and (each <= position or each % 2 != position % 2) for each in positions]


# ---- recovery --------------------------------------------------------------------------------------------------------


@settings(bounded, max_examples=2 * EXAMPLES)
@given(case=cases(packets=1000), data=st.data())
def test_what_a_halt_leaves_the_hosts_finish_with_the_oracles_bits(case: Case, data: st.DataObject) -> None:
    """The switch is left in the middle: after a drawn number of sums, or because a damaged one silenced it."""
    rows = case.tensors()
    blocks = sum(-(-kind.count // case.elements) + case.lanes for kind in case.kinds)
    after = data.draw(st.integers(0, blocks + 1), "sums before the halt")
    dies = data.draw(st.booleans(), "the switch says no more then")
    spoil = data.draw(st.sampled_from([0.0, 0.0, 0.02, 0.2]), "contributions damaged anywhere")
    lasts = [data.draw(st.integers(0, len(rows))) if data.draw(st.integers(0, 3)) == 0 else None for _ in case.windows]
    draw = random.Random(case.seed)
    with case.running() as ranks:
        fabric, spoilt = ranks.fabric, set()

        def tap(packet: bytes, source: End) -> bytes | None:
            if fabric.counts["completed"] >= after and dies:
                return None
            place = packet[12:18]
            if spoil and place not in spoilt and draw.random() < spoil:
                spoilt.add(place)
                return flipped(packet, *draw.sample(range(8 * len(packet)), draw.randint(1, 4)))
            return packet

        fabric.tap = tap
        threads = [Rank(e, [row[r] for row in rows], case.seed + r, lasts[r]) for r, e in enumerate(ranks.engines)]
        since, count = time.monotonic(), -1
        while fabric.counts["completed"] < after and time.monotonic() < since + (0.3 if not spoil else 0.1):
            if fabric.counts["completed"] != count:
                since, count = time.monotonic(), fabric.counts["completed"]
            time.sleep(0.0005)
        for engine in draw.sample(ranks.engines, len(ranks.engines)):
            engine.halt()
            if draw.random() < 0.3:
                time.sleep(draw.choice([0.0005, 0.005]))
        for thread in threads:
            thread.stop()
        for thread in threads:
            thread.join()
        totals.update({"halts": 1, "spoilt": len(spoilt)})
        done = recover(ranks, rows)
        totals["tensors left in the middle"] += sum(0 < int(each.sum()) < len(each) for each in done)
        _go_on(case, ranks)


@pytest.mark.parametrize("large_at", [0, 79])
@pytest.mark.parametrize("lanes", [1, 2])
def test_what_is_refused_in_the_middle_is_refused_by_the_hosts_too(lanes: int, large_at: int) -> None:
    """The blocks that showed the overflow may be through when the switch dies: nothing was summed all the same."""
    kind = Kind("int32", 80, "narrow", False, 1)
    for after in range(8):
        with Case([0, 0], 16, 2, lanes, [], Faults(), Faults(), 1).running() as ranks:
            fabric = ranks.fabric
            fabric.tap = lambda data, source, f=fabric, n=after: None if f.counts["completed"] >= n else data
            inputs = [kind.values(rank, 2) for rank in range(2)]
            inputs[0][large_at] = 2**31 - 1
            row = [Summing(kind, x, x.copy(), None) for x in inputs]
            _submit_all(ranks, [row])
            for summing, engine in zip(row, ranks.engines, strict=True):
                summing.wait(engine, 0.02)
            (done,) = recover(ranks, [row])
            assert not done.any()


def test_what_was_submitted_just_before_a_halt_is_not_done() -> None:
    """The lanes' threads may not have seen it yet."""
    with Case([0, 0], 16, 2, 2, [], Faults(), Faults(), 1).running() as ranks:
        for epoch in range(2, 50):
            x = np.ones(80, np.float32)
            ticket = ranks.engines[0].submit(x, False)
            ranks.engines[0].halt()
            ((left, done),) = ranks.engines[0].unfinished()
            assert left == ticket and len(done) == 5 and not done.any() and (x == 1).all()
            ranks.configure(epoch)


def _go_on(case: Case, ranks: Ranks) -> None:
    """Another life of the job; late packets of the one before may still be held back somewhere."""
    ranks.fabric.tap = lambda packet, source: packet
    ranks.configure(ranks.epoch + 1)
    kind = Kind("float32", 3 * case.elements + 1, "narrow", False, case.seed)
    (row,) = replace(case, kinds=[kind]).tensors()
    _submit_all(ranks, [row])
    _wait_for_all(ranks, row)
