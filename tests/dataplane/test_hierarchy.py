"""Sums that go up and results that come down: docs/protocol.md, "Contributions" and "Results from above"."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from controller.share import Above, Member, Share
from hostlib import layout
from hostlib.wire import check_word
from tests.dataplane.packets import (
    FABRIC_END,
    PARENT,
    SERVER,
    Bench,
    Made,
    codes,
    members,
    packet,
    share,
    told,
    total,
    vector,
)
from tests.dataplane.scapy_layer import Netfold
from tests.dataplane.target import FABRIC, INSERT, Embedded


def sum_up(made: Made, above: Above, vectors: list[np.ndarray], rank: int, **fields: int) -> tuple[int, Made]:
    """The sum on its way to the parent or server."""
    elements = total(vectors)
    operation = layout.OPERATION_CONTRIBUTION if above.kind == "parent" else layout.OPERATION_SUM
    check = check_word(made.header, elements, len(vectors))
    up = told(made, replace(above, rank=rank), elements, check, operation=operation, **fields)
    return above.port, up


def copies(made: Made, job: Share) -> list[tuple[int, Made]]:
    """A result from above, on its way to every member."""
    return [(member.port, told(made, member, made.elements, made.header.check)) for member in job.members]


@pytest.fixture(params=["parent", "server"])
def above(request: pytest.FixtureRequest) -> Above:
    return {"parent": PARENT, "server": SERVER}[request.param]


def rank_up(above: Above, member: Member) -> int:
    """A parent knows the switch as one rank; a server is told whose packet it was."""
    return above.rank if above.kind == "parent" else member.rank


def send_up(bench: Bench, job: Share) -> list[np.ndarray]:
    """Both members contribute; what they did."""
    first, second = job.members
    vectors = [vector(bench.elements, job.job_id + rank) for rank in range(2)]
    low, high = codes(3, 4)
    bench.expect(first.port, packet(job, first, vectors[0], exponent=2, next_exponent=high), [], "absorbed")
    made = packet(job, second, vectors[1], exponent=2, next_exponent=low)
    up = sum_up(made, job.above, vectors, rank_up(job.above, second), next_exponent=high)
    bench.expect(second.port, made, [up], "sent_up")
    return vectors


def test_partial_sent_up_done(bench: Bench, above: Above) -> None:
    job = share(2, above=above)
    bench.install(job)
    vectors = send_up(bench, job)
    # Sent up: whoever asks again makes the stored sum go up again.
    for member, own in zip(job.members, vectors, strict=True):
        again = packet(job, member, own, exponent=2, flags=layout.FLAG_AGAIN)
        up = sum_up(again, above, vectors, rank_up(above, member), next_exponent=codes(4)[0])
        bench.expect(member.port, again, [up], "up_again")
    # Down: stored, and on to the group as it came, whatever it is.
    whole = vector(bench.elements, 99)
    result = packet(job, above, whole, of=5, exponent=2, next_exponent=codes(7)[0])
    bench.expect(above.port, result, copies(result, job), "down", replica=2)
    # Done: whoever asks again gets it, and nothing goes up any more.
    for member, own in zip(job.members, vectors, strict=True):
        again = packet(job, member, own, exponent=2)
        answer = told(
            again,
            member,
            whole,
            result.header.check,
            operation=layout.OPERATION_RESULT,
            next_exponent=codes(7)[0],
        )
        bench.expect(member.port, again, [(member.port, answer)], "answered")
    bench.expect(above.port, result, [], "unasked")


def test_a_result_nobody_waits_for_is_dropped(bench: Bench, above: Above) -> None:
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


def test_the_next_generation_is_partial_again(bench: Bench, above: Above) -> None:
    job = share(2, above=above)
    bench.install(job)
    send_up(bench, job)
    first = job.members[0]
    bench.expect(first.port, packet(job, first, vector(bench.elements, 5), generation=2), [], "absorbed")
    late = packet(job, above, vector(bench.elements, 9), of=2)
    bench.expect(above.port, late, [], "unasked")
    again = packet(job, first, vector(bench.elements, 5), generation=2)
    bench.expect(first.port, again, [], "duplicate")


def test_a_leaf_of_one_rank(bench: Bench, above: Above) -> None:
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
        Member(0x8001 + n, 1 + n, 0x0200_0000_0001, f"10.255.255.{n + 1}", layout.NETFOLD_UDP_PORT, 900 + n)
        for n in range(2)
    )
    job = share(2, members=leaves)
    bench.install(job)
    vectors = [vector(bench.elements, n) for n in range(2)]
    # A leaf's sum of three ranks counts three times in the check word.
    made = [packet(job, leaf, vectors[n], of=3) for n, leaf in enumerate(leaves)]
    bench.expect(1, made[0], [], "absorbed")
    check = check_word(made[1].header, total(vectors), 6)
    result = [
        (leaf.port, told(made[1], leaf, total(vectors), check, operation=layout.OPERATION_RESULT)) for leaf in leaves
    ]
    bench.expect(2, made[1], result, "completed", replica=2)


@pytest.mark.parametrize(("leaves", "ranks"), [(2, 1), (4, 2), (16, 32)])
def test_a_tree_of_switches(leaves: int, ranks: int) -> None:
    """In one process: 16 leaves of 32 ranks are 512. Every rank gets the sum of all."""
    elements, root_port = 64, 9
    switches = [Embedded(elements) for _ in range(leaves + 1)]
    base = share(1)
    job = {"job_id": base.job_id, "epoch": base.epoch, "group": base.group}
    addresses = [FABRIC, *(f"10.255.254.{leaf}" for leaf in range(leaves))]
    below = []
    for leaf in range(leaves):
        own = tuple(replace(m, rank=m.rank + leaf * ranks) for m in members(ranks))
        parent = Above("parent", root_port, 0x0200_0000_0001, FABRIC, layout.NETFOLD_UDP_PORT, 0x8000 + leaf)
        below.append(share(1, members=own, above=parent, **job))
    tops = tuple(
        Member(0x8000 + leaf, 1 + leaf, 0x0200_0000_0001, addresses[1 + leaf], layout.NETFOLD_UDP_PORT, 500 + leaf)
        for leaf in range(leaves)
    )
    for switch, address, told_share in zip(switches, addresses, [share(1, members=tops, **job), *below], strict=True):
        names = switch.names
        switch.write(INSERT, [names.fabric_address(address), *names.job([told_share])])

    got: dict[int, np.ndarray] = {}
    queue: list[tuple[int, int, bytes]] = []  # switch, port, frame
    vectors = []
    for leaf, told_share in enumerate(below):
        for member in told_share.members:
            own = vector(elements, member.rank)
            vectors.append(own)
            made = replace(packet(told_share, member, own), destination=(*FABRIC_END[:1], addresses[1 + leaf], 4793))
            queue.append((1 + leaf, member.port, made.frame()))
    while queue:
        at, port, frame = queue.pop(0)
        for left, out in switches[at].send(port, frame):
            if at == 0:
                queue.append((left, root_port, out))
            elif left == root_port:
                queue.append((0, at, out))
            else:
                answer = Ether(out)[Netfold]
                assert Ether(out)[IP].src == addresses[at]
                elements_got = np.array(answer.elements, np.int32)
                header = packet(below[at - 1], below[at - 1].members[0], elements_got).header
                assert answer.check == check_word(header, elements_got, leaves * ranks)
                assert answer.rank not in got
                got[answer.rank] = elements_got
    for switch in switches:
        switch.close()
    assert sorted(got) == list(range(leaves * ranks))
    assert all(np.array_equal(each, total(vectors)) for each in got.values())
