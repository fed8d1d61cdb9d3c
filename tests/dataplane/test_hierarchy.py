"""Sums that go up and results that come down: docs/protocol.md, "Contributions" and "Results from above"."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
import pytest
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from controller.jobs.switch_share import Member, SwitchShare, Upstream
from hostlib.protocol import constants
from tests.dataplane.packets import (
    FABRIC_END,
    PARENT,
    SERVER,
    Bench,
    Made,
    added_words,
    codes,
    forwarded,
    members,
    packet,
    share,
    total,
    vector,
)
from tests.dataplane.scapy_layer import Netfold
from tests.dataplane.target import FABRIC, INSERT, Embedded


def sum_up(made: Made, above: Upstream, vectors: list[np.ndarray], rank: int, **fields: int) -> tuple[int, Made]:
    """The sum on its way to the parent or server."""
    elements = total(vectors)
    operation = constants.OPERATION_CONTRIBUTION if above.kind == "parent" else constants.OPERATION_SUM
    check = added_words(made.header, vectors)
    up = forwarded(made, replace(above, rank=rank), elements, check, operation=operation, **fields)
    return above.port, up


def copies(made: Made, job: SwitchShare) -> list[tuple[int, Made]]:
    """A result from above, on its way to every member."""
    return [(member.port, forwarded(made, member, made.elements, made.header.check)) for member in job.members]


@pytest.fixture(params=["parent", "server"])
def above(request: pytest.FixtureRequest) -> Upstream:
    return {"parent": PARENT, "server": SERVER}[request.param]


def rank_up(above: Upstream, member: Member) -> int:
    """A parent knows the switch as one rank; a server is told whose packet it was."""
    return above.rank if above.kind == "parent" else member.rank


def send_up(bench: Bench, job: SwitchShare) -> list[np.ndarray]:
    """Both members contribute; what they did."""
    first, second = job.members
    vectors = [vector(bench.elements, job.job_id + rank) for rank in range(2)]
    low, high = codes(3, 4)
    bench.expect(first.port, packet(job, first, vectors[0], exponent=2, next_exponent=high), [], "absorbed")
    made = packet(job, second, vectors[1], exponent=2, next_exponent=low)
    up = sum_up(made, job.above, vectors, rank_up(job.above, second), next_exponent=high)
    bench.expect(second.port, made, [up], "sent_up")
    return vectors


def test_partial_sent_up_done(bench: Bench, above: Upstream) -> None:
    job = share(2, above=above)
    bench.install(job)
    vectors = send_up(bench, job)
    # Sent up: whoever asks again makes the stored sum go up again.
    for member, own in zip(job.members, vectors, strict=True):
        again = packet(job, member, own, exponent=2, flags=constants.FLAG_AGAIN)
        up = sum_up(again, above, vectors, rank_up(above, member), next_exponent=codes(4)[0])
        bench.expect(member.port, again, [up], "up_again")
    # Down: stored, and on to the group as it came, whatever it is.
    whole = vector(bench.elements, 99)
    result = packet(job, above, whole, of=5, exponent=2, next_exponent=codes(7)[0])
    bench.expect(above.port, result, copies(result, job), "down", replica=2)
    # Done: whoever asks again gets it, and nothing goes up any more.
    for member, own in zip(job.members, vectors, strict=True):
        again = packet(job, member, own, exponent=2)
        answer = forwarded(
            again,
            member,
            whole,
            result.header.check,
            operation=constants.OPERATION_RESULT,
            next_exponent=codes(7)[0],
        )
        bench.expect(member.port, again, [(member.port, answer)], "answered")
    bench.expect(above.port, result, [], "unasked")


def test_a_result_nobody_waits_for_is_dropped(bench: Bench, above: Upstream) -> None:
    job = share(2, above=above)
    bench.install(job)
    first, second = job.members
    result = packet(job, above, vector(bench.elements, 9), of=2)
    bench.expect(above.port, result, [], "unasked")  # empty
    bench.expect(first.port, packet(job, first, vector(bench.elements, 1)), [], "absorbed")
    bench.expect(above.port, result, [], "unasked")  # partial
    made = packet(job, second, vector(bench.elements, 2))
    vectors = [vector(bench.elements, seed) for seed in (1, 2)]
    bench.expect(second.port, made, [sum_up(made, above, vectors, rank_up(above, second))], "sent_up")
    for generation in (2, 0xFFFFFFFE, 1):
        other = packet(job, above, vector(bench.elements, 9), of=2, generation=generation)
        bench.expect(above.port, other, [], "unasked")  # another generation, newer or older, and the other set
    bench.expect(above.port, packet(job, above, vector(bench.elements, 9), of=2, slot=1), [], "unasked")
    bench.expect(above.port, result, copies(result, job), "down", replica=2)


def test_the_next_generation_is_partial_again(bench: Bench, above: Upstream) -> None:
    job = share(2, above=above)
    bench.install(job)
    send_up(bench, job)
    first = job.members[0]
    bench.expect(first.port, packet(job, first, vector(bench.elements, 5), generation=2), [], "absorbed")
    late = packet(job, above, vector(bench.elements, 9), of=2)
    bench.expect(above.port, late, [], "unasked")
    again = packet(job, first, vector(bench.elements, 5), generation=2)
    bench.expect(first.port, again, [], "duplicate")


def test_a_leaf_of_one_rank(bench: Bench, above: Upstream) -> None:
    job = share(1, above=above)
    bench.install(job)
    (only,) = job.members
    own = vector(bench.elements, 1)
    made = packet(job, only, own)
    bench.expect(only.port, made, [sum_up(made, above, [own], rank_up(above, only))], "sent_up")
    result = packet(job, above, own)
    bench.expect(above.port, result, copies(result, job), "down", replica=1)


def test_the_parent_treats_leaves_as_ranks(bench: Bench) -> None:
    leaves = tuple(
        Member(0x8001 + n, 1 + n, 0x0200_0000_0001, f"10.255.255.{n + 1}", constants.NETFOLD_UDP_PORT, 900 + n)
        for n in range(2)
    )
    job = share(2, members=leaves)
    bench.install(job)
    vectors = [vector(bench.elements, n) for n in range(2)]
    # A leaf's sum of three ranks has three ranks' check words; they are added as they are.
    made = [packet(job, leaf, vectors[n], of=3) for n, leaf in enumerate(leaves)]
    bench.expect(1, made[0], [], "absorbed")
    check = sum(each.header.check for each in made)
    result = [
        (leaf.port, forwarded(made[1], leaf, total(vectors), check, operation=constants.OPERATION_RESULT))
        for leaf in leaves
    ]
    bench.expect(2, made[1], result, "completed", replica=2)


@pytest.mark.parametrize("fewer", [0, 1])
def test_a_leaf_of_all_the_ranks_that_a_switch_takes(bench: Bench, above: Upstream, fewer: int) -> None:
    """The highest rank's bit and the one beside it, that says where the values came from."""
    count = bench.target.ranks - fewer
    job = share(count, above=above)
    bench.install(job)
    vectors = [vector(bench.elements, rank) for rank in range(count)]
    last = job.members[-1]
    bench.expect(last.port, packet(job, last, vectors[-1]), [], "absorbed")
    bench.expect(last.port, packet(job, last, vectors[-1]), [], "duplicate")
    for member in job.members[1:-1]:
        bench.target.send(member.port, packet(job, member, vectors[member.rank]).frame())
    bench.expect(above.port, packet(job, above, vectors[0]), [], "unasked")
    first = job.members[0]
    made = packet(job, first, vectors[0])
    up = sum_up(made, above, vectors, rank_up(above, first))
    bench.expect(first.port, made, [up], "sent_up")
    bench.expect(first.port, made, [up], "up_again")
    down = packet(job, above, vector(bench.elements, 99))
    bench.expect(above.port, down, copies(down, job), "down", replica=count)
    again = packet(job, last, vectors[-1])
    answer = forwarded(again, last, down.elements, down.header.check, operation=constants.OPERATION_RESULT)
    bench.expect(last.port, again, [(last.port, answer)], "answered")


# ---- trees, in one process ----------------------------------------------------------------------------------------

ROOT_PORT = 9  # of every leaf; the root's port n leads to leaf n
Link = tuple[int, str]  # (leaf, "up" | "down" | "host")


class Tree:
    """A root (switch 0) and leaves with one job over all; what is sent travels on until hosts have it."""

    def __init__(self, leaves: int, ranks: int, policy: str = "sum") -> None:
        self.elements, self.ranks = 64, ranks
        self.switches = [Embedded(self.elements) for _ in range(leaves + 1)]
        self._before: list[dict[int, int]] = [{} for _ in self.switches]
        self.addresses = [FABRIC, *(f"10.255.254.{leaf}" for leaf in range(1, leaves + 1))]
        base = share(1, policy=policy, above=SERVER if policy == "chunk" else None)
        job = {"job_id": base.job_id, "epoch": base.epoch, "group": base.group, "policy": policy}
        tops = tuple(
            Member(0x8000 + leaf, leaf, 0x0200_0000_0001, self.addresses[leaf], constants.NETFOLD_UDP_PORT, 500 + leaf)
            for leaf in range(1, leaves + 1)
        )
        self.shares = [replace(base, members=tops)]
        for leaf in range(1, leaves + 1):
            own = tuple(replace(m, rank=m.rank + (leaf - 1) * ranks) for m in members(ranks))
            up = Upstream("parent", ROOT_PORT, 0x0200_0000_0001, FABRIC, constants.NETFOLD_UDP_PORT, 0x8000 + leaf)
            self.shares.append(share(1, members=own, above=up, **job))
        for number, (switch, address, each) in enumerate(zip(self.switches, self.addresses, self.shares, strict=True)):
            others = {
                other: there if number == 0 else ROOT_PORT
                for there, other in enumerate(self.addresses)
                if other != address
            }
            own = [switch.names.fabric_address(address), *switch.names.fabric_sources(address, others)]
            switch.write(INSERT, [*own, *switch.names.job([each])])

    def member(self, rank: int) -> tuple[int, Member]:
        """A rank's switch, and what that knows of it."""
        return 1 + rank // self.ranks, self.shares[1 + rank // self.ranks].members[rank % self.ranks]

    def send(self, rank: int, elements: np.ndarray, lost: Collection[Link] = (), **fields: int) -> dict[int, Netfold]:
        """A rank's packet, and what hosts got because of it. What takes a `lost` link is lost."""
        leaf, member = self.member(rank)
        made = packet(self.shares[leaf], member, elements, **fields)
        made = replace(made, destination=(*FABRIC_END[:1], self.addresses[leaf], constants.NETFOLD_UDP_PORT))
        return self.travel(leaf, member.port, made.frame(), lost)

    def travel(self, at: int, port: int, frame: bytes, lost: Collection[Link] = ()) -> dict[int, Netfold]:
        queue = [(at, port, frame)]
        got: dict[int, Netfold] = {}
        while queue:
            at, port, frame = queue.pop(0)
            for left, out in self.switches[at].send(port, frame):
                assert Ether(out)[IP].src == self.addresses[at]
                if at == 0 and left < len(self.switches):
                    hop, link = (left, ROOT_PORT, out), (left, "down")
                elif at and left == ROOT_PORT:
                    hop, link = (0, at, out), (at, "up")
                else:
                    hop, link = None, (at, "host")
                if link in lost:
                    continue
                if hop is not None:
                    queue.append(hop)
                else:
                    rank = Ether(out)[Netfold].rank
                    assert rank not in got, "two copies"
                    got[rank] = Ether(out)[Netfold]
        return got

    def counted(self) -> list[dict[str, int]]:
        """By switch: ingress events by name, since the last call."""
        names = {index: name for name, index in [*constants.EVENTS.items(), *constants.DROPS.items()]}
        now = [switch.counts()["events"] for switch in self.switches]
        before, self._before = self._before, now
        return [
            {names[i]: n - old.get(i, 0) for i, n in new.items() if n != old.get(i, 0)}
            for new, old in zip(now, before, strict=True)
        ]

    def close(self) -> None:
        for switch in self.switches:
            switch.close()


@pytest.fixture
def two_by_two() -> Iterator[Tree]:
    """Two leaves of two ranks, of which all but rank 3 have contributed."""
    tree = Tree(2, 2)
    for rank in range(3):
        assert tree.send(rank, vector(tree.elements, rank)) == {}
    assert tree.counted() == [{"absorbed": 1}, {"absorbed": 1, "sent_up": 1}, {"absorbed": 1}]
    yield tree
    tree.close()


def check_results(got: dict[int, Netfold], ranks: Collection[int], tree: Tree, count: int = 4) -> None:
    """These ranks got the sum of all, under a right check word."""
    vectors = [vector(tree.elements, rank) for rank in range(count)]
    expected = total(vectors)
    assert sorted(got) == sorted(ranks)
    for rank, answer in got.items():
        assert np.array_equal(answer.elements, expected), rank
        header = packet(tree.shares[1], tree.shares[1].members[0], expected).header
        assert (answer.operation, answer.check) == (constants.OPERATION_RESULT, added_words(header, vectors))


@pytest.mark.parametrize("asks", range(4))
def test_a_sum_lost_on_the_way_up_is_sent_again_by_any_rank(two_by_two: Tree, asks: int) -> None:
    tree = two_by_two
    assert tree.send(3, vector(tree.elements, 3), lost=[(2, "up")]) == {}
    assert tree.counted() == [{}, {}, {"sent_up": 1}]
    again = tree.send(asks, vector(tree.elements, asks), flags=constants.FLAG_AGAIN)
    if asks < 2:  # It knows of no loss: its leaf's sum has arrived, the other's has not.
        assert again == {}
        assert tree.counted() == [{"duplicate": 1}, {"up_again": 1}, {}]
        again = tree.send(2, vector(tree.elements, 2), flags=constants.FLAG_AGAIN)
    check_results(again, range(4), tree)
    assert tree.counted() == [{"completed": 1}, {"down": 1}, {"down": 1, "up_again": 1}]


@pytest.mark.parametrize("leaf", [1, 2])
def test_a_result_lost_on_the_way_down_is_asked_for_by_its_leaf(two_by_two: Tree, leaf: int) -> None:
    tree = two_by_two
    own = {1: [0, 1], 2: [2, 3]}
    got = tree.send(3, vector(tree.elements, 3), lost=[(leaf, "down")])
    check_results(got, own[3 - leaf], tree)
    tree.counted()
    for asks in own[leaf]:
        again = tree.send(asks, vector(tree.elements, asks), flags=constants.FLAG_AGAIN)
        # The first one brings it to both; the second finds it here.
        check_results(again, own[leaf] if asks == own[leaf][0] else [asks], tree)
    counted = tree.counted()
    assert counted[0] == {"answered": 1}
    assert counted[leaf] == {"up_again": 1, "down": 1, "answered": 1}
    assert counted[3 - leaf] == {}


def test_a_lost_replica_is_answered_by_the_leaf_alone(two_by_two: Tree) -> None:
    tree = two_by_two
    check_results(tree.send(3, vector(tree.elements, 3), lost=[(1, "host")]), [2, 3], tree)
    tree.counted()
    for asks in (1, 0, 1):
        check_results(tree.send(asks, vector(tree.elements, asks), flags=constants.FLAG_AGAIN), [asks], tree)
    assert tree.counted() == [{}, {"answered": 3}, {}]


def test_a_result_that_comes_twice_or_late_reaches_nobody(two_by_two: Tree) -> None:
    """The parent's answer to a sum that was only slow, and one from a generation that has passed."""
    tree = two_by_two
    check_results(tree.send(3, vector(tree.elements, 3), lost=[(1, "down")]), [2, 3], tree)
    frame = tree.switches[0].send(1, sum_of_leaf(tree, 1))[0][1]
    tree.counted()
    check_results(tree.travel(1, ROOT_PORT, frame), [0, 1], tree)
    assert tree.travel(1, ROOT_PORT, frame) == {}
    tree.send(0, vector(tree.elements, 0), generation=2)
    assert tree.travel(1, ROOT_PORT, frame) == {}
    assert tree.counted() == [{}, {"down": 1, "unasked": 2, "absorbed": 1}, {}]


def sum_of_leaf(tree: Tree, leaf: int) -> bytes:
    """A leaf's sum of two ranks as it goes up again."""
    above = tree.shares[leaf].above
    first = 2 * leaf - 2
    elements = total([vector(tree.elements, first), vector(tree.elements, first + 1)])
    made = packet(tree.shares[0], tree.shares[0].members[leaf - 1], elements, of=2)
    assert (made.header.rank, made.header.operation) == (above.rank, constants.OPERATION_CONTRIBUTION)
    return made.frame()


def test_a_chunk_lost_between_switches_is_repaired_once() -> None:
    """One rank of the leaf that missed it asks: the root answers that leaf, and the leaf has it for all."""
    tree = Tree(2, 2, "chunk")
    try:
        chunk = packet(tree.shares[0], SERVER, vector(tree.elements, 8), next_exponent=codes(5)[0])
        got = tree.travel(0, SERVER.port, chunk.frame(), lost=[(2, "down")])
        assert sorted(got) == [0, 1]
        tree.counted()
        repaired = tree.send(3, vector(tree.elements, 1))
        assert sorted(repaired) == [2, 3]
        got |= repaired | tree.send(2, vector(tree.elements, 2)) | tree.send(0, vector(tree.elements, 3))
        assert tree.counted() == [{"answered": 1}, {"answered": 1}, {"nack_up": 1, "chunk": 1, "answered": 1}]
        for answer in got.values():
            assert answer.elements == chunk.elements.tolist()
            assert (answer.operation, answer.exponent, answer.flags) == (constants.OPERATION_CHUNK, 0, 0)
            assert (answer.check, answer.next_exponent) == (chunk.header.check, chunk.header.next_exponent)
    finally:
        tree.close()


@pytest.mark.parametrize(("leaves", "ranks"), [(2, 1), (4, 2), pytest.param(16, 32, marks=pytest.mark.slow)])
def test_a_tree_of_switches(leaves: int, ranks: int) -> None:
    """16 leaves of 32 ranks are 512. Every rank gets the sum of all, once."""
    tree = Tree(leaves, ranks)
    try:
        got: dict[int, Netfold] = {}
        for rank in range(leaves * ranks):
            assert got == {}
            got = tree.send(rank, vector(tree.elements, rank))
        check_results(got, range(leaves * ranks), tree, leaves * ranks)
    finally:
        tree.close()
