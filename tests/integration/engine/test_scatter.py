"""A rank's end of reduce-scatters, packet by packet: plain sockets are the switch and the other ranks."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hostlib._engine import Scatter, SumOverflow, TensorsDiffer
from hostlib.protocol import constants
from hostlib.protocol.constants import HEADER_BYTES
from hostlib.protocol.header import Header
from tests.checks import checks, engine_checks, packed
from tests.marking_fabric import CE, ECT_0
from tests.packet_sizes import elements

ELEMENTS, WORLD_SIZE, RANK, SLOTS = elements(16), 3, 1, 4
OTHERS = (0, 2)
POOLS = [(16 * rank, SLOTS) for rank in range(WORLD_SIZE)]
SOON_S, NEVER_S = 5.0, 0.15
WORDS, CHECK = checks(WORLD_SIZE, ELEMENTS), engine_checks(WORLD_SIZE, ELEMENTS)
JOB, EPOCH = 7, 9
CODE = constants.EXPONENT_BIAS + 1  # of values below 2
LEVEL, CODE_OF_LEVEL = 32, constants.EXPONENT_BIAS + 4  # that CODE has
KIND_DIFFERS = 1
MARKED = 2  # a flag of acknowledgements


def header(**fields: int) -> Header:
    of_job = Header(operation=0, job=JOB, rank=0, epoch=EPOCH, generation=0, slot=0, element_count=ELEMENTS)
    return replace(of_job, **fields)


@dataclass
class Bench:
    """Rank 1 of 3; the switch and the other ranks are sockets of the test's."""

    scatter: Scatter
    switch: socket.socket
    ranks: dict[int, dict[int, socket.socket]]  # rank, pool -> socket

    def configure(self, window: int = 0) -> None:
        here = self.scatter.ports
        ends = [
            [
                (self.scatter.address, here[pool]) if rank == RANK else self.ranks[rank][pool].getsockname()
                for pool in range(WORLD_SIZE)
            ]
            for rank in range(WORLD_SIZE)
        ]
        place = (*self.switch.getsockname(), JOB, EPOCH, RANK, WORLD_SIZE, POOLS, ELEMENTS, CHECK, ends)
        self.scatter.configure(*place, window)

    def contributions(self, within_s: float = NEVER_S) -> list[tuple[Header, np.ndarray]]:
        """What this rank has sent to the switch, each once.

        Without its questions for the round trip, which it asks where answers come late. Their check word is wrong on
        purpose (hostlib/native/aggregation/lane.cpp, `probe`).
        """
        found: dict[tuple[int, int], tuple[Header, np.ndarray]] = {}
        give_up = time.monotonic() + within_s
        while (left := give_up - time.monotonic()) > 0:
            self.switch.settimeout(left)
            try:
                data = self.switch.recv(1 << 16)
            except TimeoutError:
                break
            its, words = Header.unpack(data[:HEADER_BYTES]), np.frombuffer(data[HEADER_BYTES:], ">i4").astype(np.int32)
            assert (its.operation, its.rank) == (constants.OPERATION_CONTRIBUTION, RANK)
            word = WORDS.word(its, words, [RANK])
            if its.flags == constants.FLAG_AGAIN and not words.any() and its.check == word ^ 1:
                continue
            assert its.check == word
            found[its.slot, its.generation] = its, words
        return sorted(found.values(), key=lambda each: (each[0].slot, each[0].generation))

    def acknowledge(
        self, owner: int, *entries: tuple[int, int, int, int], levels: tuple[int, ...] = (), **changes: int
    ) -> None:
        """Tell rank 1 what an owner has: (slot, generation, exponent, code of the next), and a prologue's levels."""
        data = b"".join(
            struct.pack(">IIHH", generation, WORDS.next_word(code), slot, exponent)
            for slot, generation, exponent, code in entries
        )
        data += struct.pack(f"{len(levels)}b{-len(levels) % 4}x", *levels)
        words = np.frombuffer(data, ">i4").astype(np.int32)
        fields = {"operation": constants.OPERATION_ACKNOWLEDGEMENT, "rank": owner, "element_count": len(entries)}
        fields["exponent"] = len(levels)
        of = header(**{**fields, **changes})
        lane = (self.scatter.address, self.scatter.ports[owner])
        self.ranks[owner][owner].sendto(packed(of, words, WORDS, [of.rank]), lane)

    def sum(self, slot: int, generation: int, words: np.ndarray, **changes: int) -> None:
        """Give the owner what the others have summed of its shard."""
        fields = {
            "operation": constants.OPERATION_SUM,
            "rank": 0,
            "slot": POOLS[RANK][0] + slot,
            "generation": generation,
        }
        of = header(**{"next_exponent": WORDS.next_word(CODE), **fields, **changes})
        at = (self.scatter.address, self.scatter.ports[RANK])
        self.switch.sendto(packed(of, words, WORDS, OTHERS), at)

    def acknowledgement(self, rank: int, within_s: float = SOON_S) -> tuple[Header, bytes] | None:
        """The next one that another rank gets: its header, and what follows it."""
        where = self.ranks[rank][RANK]
        where.settimeout(within_s)
        try:
            data = where.recv(1 << 16)
        except TimeoutError:
            return None
        its, rest = Header.unpack(data[:HEADER_BYTES]), data[HEADER_BYTES:]
        assert (its.operation, its.rank) == (constants.OPERATION_ACKNOWLEDGEMENT, RANK)
        assert its.check == WORDS.word(its, np.frombuffer(rest, ">i4").astype(np.int32), [RANK])
        return its, rest

    def told(self, rank: int, within_s: float = SOON_S) -> list[tuple[int, ...]]:
        """(slot, generation, exponent, levels ...) of each entry of the next acknowledgement that another rank gets."""
        found = self.acknowledgement(rank, within_s)
        if found is None:
            return []
        its, rest = found
        entries = [struct.unpack_from(">IIHH", rest, 12 * n) for n in range(its.element_count)]
        levels = struct.unpack_from(f"{its.exponent}b", rest, 12 * its.element_count)
        return [(slot - POOLS[RANK][0], generation, exponent, *levels) for generation, _, slot, exponent in entries]


def end() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made


@pytest.fixture
def bench() -> Iterator[Bench]:
    ranks = {rank: {pool: end() for pool in range(WORLD_SIZE)} for rank in OTHERS}
    made = Bench(Scatter("127.0.0.1", RANK, WORLD_SIZE), end(), ranks)
    made.configure()
    yield made
    made.scatter.halt()
    for each in (made.switch, *(pool for rank in ranks.values() for pool in rank.values())):
        each.close()


def begun(bench: Bench, shard: int = ELEMENTS, dtype: type = np.float32) -> tuple[int, np.ndarray]:
    """Submit a tensor of ones; the ticket, and where the sums come."""
    sums = np.zeros(shard, dtype)
    return bench.scatter.submit(np.ones(shard * WORLD_SIZE, dtype), sums, False), sums


def counted(*levels: int) -> list[int]:
    """A block's words: fifteen levels in each, with two bits for up to three ranks."""
    words = [0] * 5
    for level in levels:
        words[level // 15] += 1 << 2 * (level % 15)
    return words


UNUSED = [0] * (ELEMENTS - 2 - 2 * len(counted()))  # words of a prologue of two blocks, after its kind's and theirs


def kind(bench: Bench) -> np.ndarray:
    """The prologue's words of this rank, from what it sends to others."""
    return bench.contributions()[0][1]


def test_a_shard_goes_to_its_owner_once_its_prologue_is_acknowledged(bench: Bench) -> None:
    ticket, _ = begun(bench, 2 * ELEMENTS)
    prologues = bench.contributions()
    assert [each.slot for each, _ in prologues] == [POOLS[owner][0] for owner in OTHERS]
    for each, words in prologues:
        assert each.next_exponent == WORDS.next_word(0)
        assert words[2:].tolist() == [*counted(LEVEL), *counted(LEVEL), *UNUSED]
    bench.acknowledge(0, (POOLS[0][0], 0, 0, 0), levels=(LEVEL, LEVEL + 1))
    chunks = [each for each, _ in bench.contributions() if each.slot != POOLS[2][0]]
    codes = [CODE_OF_LEVEL, CODE_OF_LEVEL + 4]
    assert [(each.slot, each.exponent) for each in chunks if each.slot != POOLS[0][0]] == [
        *zip((1, 2), codes, strict=True)
    ]
    bench.acknowledge(0, (1, 0, codes[0], 0), (2, 0, codes[1], 0))
    assert not bench.scatter.wait(ticket, NEVER_S)  # the other owner has nothing yet, nor has this one
    assert {each.slot for each, _ in bench.contributions()} <= {POOLS[2][0]}


@pytest.mark.parametrize("levels", [(), (LEVEL,), (LEVEL,) * 3, (LEVEL, -2), (65, LEVEL)], ids=str)
def test_levels_that_are_none_open_nothing(bench: Bench, levels: tuple[int, ...]) -> None:
    begun(bench, 2 * ELEMENTS)
    bench.contributions()
    bench.acknowledge(0, (POOLS[0][0], 0, 0, CODE), levels=levels)
    assert all(each.slot in (POOLS[0][0], POOLS[2][0]) for each, _ in bench.contributions())
    assert bench.scatter.stats()["damaged"] == 1


def test_an_owner_tells_the_others_the_levels_of_its_shard(bench: Bench) -> None:
    begun(bench, 2 * ELEMENTS)
    (_, words), *_ = bench.contributions()
    total = 2 * words
    total[2:] = [*counted(LEVEL, 64), *counted(), *UNUSED]  # another rank has infinities, and both have zeros
    bench.sum(0, 0, total, next_exponent=WORDS.next_word(0))
    assert [bench.told(rank) for rank in OTHERS] == [[(0, 0, 0, 64, -1)]] * 2
    bench.sum(0, 0, total, rank=2)
    assert (bench.told(2), bench.told(0, NEVER_S)) == ([(0, 0, 0, 64, -1)], [])


@pytest.mark.parametrize(
    ("entry", "changes", "counted"),
    [
        ((0, 0, 0, CODE), {"check": 1}, "damaged"),
        ((0, 0, 0, CODE), {"epoch": EPOCH + 1}, "foreign"),
        ((0, 0, 0, CODE), {"job": JOB + 1}, "foreign"),
        ((0, 0, 0, CODE), {"operation": constants.OPERATION_RESULT}, "foreign"),
        ((0, 0, 0, CODE), {"element_count": 2}, "foreign"),
        ((0, 0, 0, CODE), {"rank": WORLD_SIZE, "check": 1}, "damaged"),
        ((0, 1, 0, CODE), {}, "duplicates"),
        ((3, 0, 0, CODE), {}, "duplicates"),
        ((SLOTS, 0, 0, CODE), {}, "foreign"),
        ((0, 0, 2, CODE), {}, "damaged"),
        ((0, 0, 0, 0), {}, "damaged"),  # a smaller scale than this rank's own
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_what_is_no_acknowledgement_moves_nothing(
    bench: Bench, entry: tuple[int, int, int, int], changes: dict[str, int], counted: str
) -> None:
    begun(bench)
    bench.contributions()
    before = bench.scatter.stats()[counted]
    bench.acknowledge(0, entry, **changes)
    assert all(each.slot in (POOLS[0][0], POOLS[2][0]) for each, _ in bench.contributions())
    assert bench.scatter.stats()[counted] == before + 1


def test_an_owner_tells_the_others_what_it_has(bench: Bench) -> None:
    ticket, sums = begun(bench)
    bench.sum(0, 0, 2 * kind(bench))
    assert [bench.told(rank) for rank in OTHERS] == [[(0, 0, 0)]] * 2
    unit = 2 ** (30 - 2 - 1)  # of 1.0: h is 2 for three ranks, e is 1
    bench.sum(1, 0, np.full(ELEMENTS, 2 * unit), exponent=CODE)
    assert [bench.told(rank) for rank in OTHERS] == [[(1, 0, CODE)]] * 2
    for owner in OTHERS:
        bench.acknowledge(owner, (POOLS[owner][0], 0, 0, CODE))
        bench.contributions()
        bench.acknowledge(owner, (POOLS[owner][0] + 1, 0, CODE, CODE))
    assert bench.scatter.wait(ticket, SOON_S)
    assert sums.tolist() == [2.0] * ELEMENTS
    # Again for whom the switch names, or for all if it names itself; not of what was never said.
    bench.sum(1, 0, np.zeros(ELEMENTS), rank=2)
    assert (bench.told(2), bench.told(0, NEVER_S)) == ([(1, 0, CODE)], [])
    bench.sum(1, 0, np.zeros(ELEMENTS), rank=600)
    assert [bench.told(rank) for rank in OTHERS] == [[(1, 0, CODE)]] * 2
    bench.sum(1, 2, np.zeros(ELEMENTS))
    assert [bench.told(rank, NEVER_S) for rank in OTHERS] == [[]] * 2


def test_an_owner_tells_of_marks_once(bench: Bench) -> None:
    """On a queue's way to it."""
    begun(bench)
    words = 2 * kind(bench)
    for slot, exponent, sums, type_of_service, flags in ((0, 0, words, CE, MARKED), (1, CODE, 0 * words, ECT_0, 0)):
        bench.switch.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, type_of_service)
        bench.sum(slot, 0, sums, exponent=exponent)
        assert [found and found[0].flags for found in map(bench.acknowledgement, OTHERS)] == [flags] * 2
    assert bench.scatter.stats()["marked"] == 1


@pytest.mark.parametrize(("flags", "window", "goes_on"), [(0, 0, True), (MARKED, 0, False), (MARKED, SLOTS, True)])
def test_a_mark_that_an_owner_tells_of_cuts_the_window(bench: Bench, flags: int, window: int, goes_on: bool) -> None:
    """Of four packets two are left, so none takes the place of the first. Not if the window is a given one."""
    bench.configure(window)
    begun(bench, 8 * ELEMENTS, np.int32)
    bench.contributions()
    bench.acknowledge(0, (0, 0, 0, CODE))
    assert len([each for each, _ in bench.contributions() if each.slot < SLOTS]) >= SLOTS
    bench.acknowledge(0, (1, 0, constants.EXPONENT_BIAS, 0), flags=flags)
    sent = {(each.slot, each.generation) for each, _ in bench.contributions()}
    assert ((1, 1) in sent) == goes_on


def test_contributions_say_that_marks_count_and_acknowledgements_do_not(bench: Bench) -> None:
    other = bench.ranks[0][RANK]
    for each in (bench.switch, other):
        each.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        each.settimeout(SOON_S)
    begun(bench)
    data, control, _, _ = bench.switch.recvmsg(1 << 16, 64)
    assert [each[2][0] for each in control if each[1] == socket.IP_TOS] == [ECT_0]
    its, words = Header.unpack(data[:HEADER_BYTES]), np.frombuffer(data[HEADER_BYTES:], ">i4").astype(np.int32)
    assert its.operation == constants.OPERATION_CONTRIBUTION
    bench.sum(0, 0, 2 * words)
    _, control, _, _ = other.recvmsg(1 << 16, 64)
    assert [each[2][0] for each in control if each[1] == socket.IP_TOS] == [0]


@pytest.mark.parametrize("window", [-1, SLOTS + 1])
def test_an_impossible_window_is_refused(bench: Bench, window: int) -> None:
    with pytest.raises(ValueError, match="window must be in"):
        bench.configure(window)


def test_sums_that_come_early_are_acknowledged_when_the_tensor_is_there(bench: Bench) -> None:
    begun(bench)
    words = 2 * kind(bench)
    bench.configure()
    bench.sum(0, 0, words)
    assert bench.told(0, NEVER_S) == []
    begun(bench)
    assert bench.told(0) == [(0, 0, 0)]


def test_a_damaged_sum_is_not_acknowledged_and_shows_when_it_stays(bench: Bench) -> None:
    begun(bench)
    words = 2 * kind(bench)
    for check in (11, 12, 13):
        bench.sum(0, 0, words, check=check)
        assert bench.told(0, NEVER_S) == []
    assert bench.scatter.stats()["damaged"] == 3 and bench.scatter.stats()["spoiled"] == 0
    for _ in range(3):
        bench.sum(0, 0, words, check=5)
        assert bench.told(0, NEVER_S) == []
    assert bench.scatter.stats()["spoiled"] == 1
    bench.sum(0, 0, words)
    assert bench.told(0) == [(0, 0, 0)]


def test_who_sums_something_else_is_told_by_owners(bench: Bench) -> None:
    ticket, _ = begun(bench)
    bench.sum(0, 0, kind(bench))  # of two ranks that agree, and not with this one
    assert bench.told(2) == [(0, 0, KIND_DIFFERS)]
    with pytest.raises(TensorsDiffer):
        bench.scatter.wait(ticket, SOON_S)


def test_an_owners_word_that_tensors_differ_is_taken(bench: Bench) -> None:
    ticket, _ = begun(bench)
    bench.contributions()
    bench.acknowledge(2, (POOLS[2][0], 0, KIND_DIFFERS, CODE))
    with pytest.raises(TensorsDiffer):
        bench.scatter.wait(ticket, SOON_S)


def test_an_owners_largest_integer_counts_for_all(bench: Bench) -> None:
    ticket, _ = begun(bench, dtype=np.int32)
    words = kind(bench)
    large = constants.EXPONENT_BIAS + 31
    bench.sum(0, 0, 2 * words)
    for owner in OTHERS:
        bench.acknowledge(owner, (POOLS[owner][0], 0, 0, large))
        assert not any(words.any() for each, words in bench.contributions() if each.slot == POOLS[owner][0] + 1)
        bench.acknowledge(owner, (POOLS[owner][0] + 1, 0, constants.EXPONENT_BIAS, 0))
    bench.sum(1, 0, np.zeros(ELEMENTS), exponent=constants.EXPONENT_BIAS)
    with pytest.raises(SumOverflow):
        bench.scatter.wait(ticket, SOON_S)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (2, 2), (-1, 3)])
def test_impossible_ranks_are_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ValueError, match="rank must be in"):
        Scatter("127.0.0.1", rank, world_size)
