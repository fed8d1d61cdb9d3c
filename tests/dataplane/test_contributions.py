"""Sums that become results in this switch: docs/protocol.md, "Contributions"."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from controller.jobs.switch_share import Member
from hostlib.protocol import constants
from tests.dataplane.packets import (
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

RESULT = {"operation": constants.OPERATION_RESULT}


def result(made: Made, receiver: Member, vectors: list[np.ndarray], **fields: int) -> tuple[int, Made]:
    """One receiver's copy of the sum, with the check word that the protocol demands."""
    elements = total(vectors)
    check = added_words(made.header, vectors)
    return receiver.port, forwarded(made, receiver, elements, check, **RESULT, **fields)


def test_the_last_contribution_becomes_everybodys_result(bench: Bench) -> None:
    job = share(3)
    bench.install(job)
    vectors = [vector(bench.elements, rank) for rank in range(3)]
    low, middle, high = codes(100, 200, 300)
    made = [
        packet(job, member, vectors[rank], exponent=7, next_exponent=code)
        for rank, (member, code) in enumerate(zip(job.members, (middle, high, low), strict=True))
    ]
    bench.expect(job.members[0].port, made[0], [], "absorbed")
    bench.expect(job.members[1].port, made[1], [], "absorbed")
    leaves = [result(made[2], member, vectors, next_exponent=high) for member in job.members]
    bench.expect(job.members[2].port, made[2], leaves, "completed", replica=3)


@pytest.mark.parametrize("ranks", ["one", "two", "all"])
def test_from_one_rank_to_all_of_a_switch(bench: Bench, ranks: str) -> None:
    count = {"one": 1, "two": 2, "all": bench.target.ranks}[ranks]
    job = share(count)
    bench.install(job)
    vectors = [vector(bench.elements, rank) for rank in range(count)]
    for rank, member in enumerate(job.members[:-1]):
        bench.expect(member.port, packet(job, member, vectors[rank]), [], "absorbed")
    last = job.members[-1]
    made = packet(job, last, vectors[-1])
    bench.expect(last.port, made, [result(made, member, vectors) for member in job.members], "completed", replica=count)
    again = packet(job, last, vectors[-1])
    bench.expect(last.port, again, [result(again, last, vectors)], "answered")


def test_a_duplicate_is_dropped_while_open_and_answered_when_finished(bench: Bench) -> None:
    job = share(2)
    bench.install(job)
    first, second = job.members
    vectors = [vector(bench.elements, seed) for seed in (1, 2)]
    made = [packet(job, member, vectors[rank], exponent=5) for rank, member in enumerate(job.members)]
    bench.expect(first.port, made[0], [], "absorbed")
    # Whatever the duplicate carries: it is not looked at.
    other = packet(
        job, first, vector(bench.elements, 9), exponent=5, flags=constants.FLAG_AGAIN, next_exponent=0xFFFFFFFF
    )
    bench.expect(first.port, other, [], "duplicate")
    bench.expect(
        second.port, made[1], [result(made[1], member, vectors) for member in job.members], "completed", replica=2
    )
    bench.expect(first.port, other, [result(other, first, vectors, flags=0, next_exponent=0)], "answered")
    bench.expect(second.port, made[1], [result(made[1], second, vectors)], "answered")


def test_a_newer_generation_starts_the_set_afresh_and_an_older_one_is_stale(bench: Bench) -> None:
    job = share(2)
    bench.install(job)
    first, second = job.members
    old, new = vector(bench.elements, 1), [vector(bench.elements, seed) for seed in (2, 3)]
    bench.expect(first.port, packet(job, first, old), [], "absorbed")
    bench.expect(first.port, packet(job, first, new[0], generation=2), [], "absorbed")
    bench.expect(second.port, packet(job, second, old), [], "stale")
    made = packet(job, second, new[1], generation=2)
    bench.expect(second.port, made, [result(made, member, new) for member in job.members], "completed", replica=2)
    bench.expect(second.port, packet(job, second, old), [], "stale")


def test_two_sets_lie_side_by_side(bench: Bench) -> None:
    job = share(2)
    bench.install(job)
    first, second = job.members
    even = [vector(bench.elements, seed) for seed in (1, 2)]
    odd = [vector(bench.elements, seed) for seed in (3, 4)]
    bench.expect(first.port, packet(job, first, even[0]), [], "absorbed")
    bench.expect(first.port, packet(job, first, odd[0], generation=1), [], "absorbed")
    for generation, vectors in ((1, odd), (0, even)):
        made = packet(job, second, vectors[1], generation=generation)
        leaves = [result(made, member, vectors) for member in job.members]
        bench.expect(second.port, made, leaves, "completed", replica=2)


@pytest.mark.parametrize(
    "generations", [(0, 2, 4), (0x7FFFFFFE, 0x80000000), (0xFFFFFFFE, 0, 2), (0xFFFFFFFD, 0xFFFFFFFF, 1)]
)
def test_generations_are_serial_numbers(bench: Bench, generations: tuple[int, ...]) -> None:
    """Also across 2^31 and 2^32; what was newer makes what was before stale."""
    job = share(1)
    bench.install(job)
    (only,) = job.members
    for generation in generations:
        ones = np.ones(bench.elements, np.int32)
        made = packet(job, only, ones, generation=generation)
        bench.expect(only.port, made, [result(made, only, [ones])], "completed", replica=1)
    stale = packet(job, only, np.ones(bench.elements, np.int32), generation=generations[-1] - 2 & 0xFFFFFFFF)
    bench.expect(only.port, stale, [], "stale")


@pytest.mark.parametrize("last", [0, 1, 0x7FFFFFFE, 0xFFFFFFFC])
def test_only_a_sets_next_generation_starts_it_afresh(bench: Bench, last: int) -> None:
    """However far ahead a packet is: the slot goes on where it was."""
    job = share(1)
    bench.install(job)
    (only,) = job.members
    own = vector(bench.elements, 1)
    made = packet(job, only, own, generation=last)
    bench.expect(only.port, made, [result(made, only, [own])], "completed", replica=1)
    for ahead, reason in ((4, "future"), (6, "future"), (0x7FFFFFFE, "future"), (0x80000002, "stale")):
        far = packet(job, only, vector(bench.elements, 2), generation=last + ahead & 0xFFFFFFFF)
        bench.expect(only.port, far, [], reason)
    bench.expect(only.port, made, [result(made, only, [own])], "answered")
    following = packet(job, only, vector(bench.elements, 3), generation=last + 2 & 0xFFFFFFFF)
    leaves = [result(following, only, [vector(bench.elements, 3)])]
    bench.expect(only.port, following, leaves, "completed", replica=1)


def test_a_new_epoch_needs_no_clearing(bench: Bench) -> None:
    """An aborted job's slots are used by the next one, in generations that the old one had passed."""
    old, new = share(2), share(2)
    bench.install(old)
    for generation in (6, 7):
        member = old.members[0]
        made = packet(old, member, vector(bench.elements, generation), generation=generation)
        bench.expect(member.port, made, [], "absorbed")
    bench.remove_last()
    bench.install(new)
    for generation in (0, 1):
        vectors = [vector(bench.elements, 10 * generation + rank) for rank in range(2)]
        first, second = new.members
        bench.expect(first.port, packet(new, first, vectors[0], generation=generation), [], "absorbed")
        made = packet(new, second, vectors[1], generation=generation)
        leaves = [result(made, member, vectors) for member in new.members]
        bench.expect(second.port, made, leaves, "completed", replica=2)


def test_jobs_side_by_side_do_not_meet(bench: Bench) -> None:
    jobs = [share(2, first_slot=128 * n) for n in range(4)]
    bench.install_entities([e for job in jobs for e in bench.target.names.job([job])])
    vectors = {job.job_id: [vector(bench.elements, job.job_id + rank) for rank in range(2)] for job in jobs}
    for rank in range(2):
        for job in jobs:
            member = job.members[rank]
            made = packet(job, member, vectors[job.job_id][rank], slot=job.first_slot + 3)
            if rank == 0:
                bench.expect(member.port, made, [], "absorbed")
            else:
                leaves = [result(made, each, vectors[job.job_id]) for each in job.members]
                bench.expect(member.port, made, leaves, "completed", replica=2)


def test_pools_of_one_job_have_groups_of_their_own(bench: Bench) -> None:
    first = share(2)
    second = share(2, job_id=first.job_id, epoch=first.epoch, first_slot=256, slots=64, members=members(2))
    bench.install(first, second)
    for pool in (first, second):
        vectors = [vector(bench.elements, pool.group + rank) for rank in range(2)]
        one, other = pool.members
        slot = pool.first_slot + pool.slots - 1
        bench.expect(one.port, packet(pool, one, vectors[0], slot=slot), [], "absorbed")
        made = packet(pool, other, vectors[1], slot=slot)
        bench.expect(
            other.port, made, [result(made, member, vectors) for member in pool.members], "completed", replica=2
        )
    beyond = packet(first, first.members[0], vector(bench.elements, 1), slot=320)
    bench.expect(first.members[0].port, beyond, [], "slot")


def test_pools_of_several_kinds_in_one_job(bench: Bench) -> None:
    """The same ranks in three pools: the slot says whose turn it is."""
    own = share(2)
    same = {"job_id": own.job_id, "epoch": own.epoch, "members": own.members, "above": SERVER}
    served, chunks = share(2, first_slot=128, **same), share(2, first_slot=256, policy="chunk", **same)
    bench.install(own, served, chunks)
    first, second = own.members
    vectors = [vector(bench.elements, seed) for seed in (1, 2)]
    for pool in (own, served):
        bench.expect(first.port, packet(pool, first, vectors[0]), [], "absorbed")
    made = packet(own, second, vectors[1])
    bench.expect(second.port, made, [result(made, each, vectors) for each in own.members], "completed", replica=2)
    made = packet(served, second, vectors[1])
    check = added_words(made.header, vectors)
    up = forwarded(made, replace(SERVER, rank=second.rank), total(vectors), check, operation=constants.OPERATION_SUM)
    bench.expect(second.port, made, [(SERVER.port, up)], "sent_up")
    chunk = packet(chunks, SERVER, vectors[0])
    copies = [(each.port, forwarded(chunk, each, vectors[0], chunk.header.check)) for each in own.members]
    bench.expect(SERVER.port, chunk, copies, "chunk", replica=2)
    # Right for another pool of the job.
    bench.expect(first.port, packet(own, first, vectors[0], slot=256), [], "slot")
    bench.expect(first.port, packet(chunks, first, vectors[0], slot=0), [], "slot")
    bench.expect(SERVER.port, packet(served, SERVER, vectors[0], slot=256), [], "slot")
    bench.expect(SERVER.port, packet(chunks, SERVER, vectors[0], slot=128), [], "slot")


def test_ranks_of_one_host_are_told_apart(bench: Bench) -> None:
    """One port, one address: only the rank and the UDP port differ."""
    base = share(4)
    here = base.members[0]
    job = replace(
        base, members=tuple(replace(m, port=here.port, mac=here.mac, address=here.address) for m in base.members)
    )
    bench.install(job)
    vectors = [vector(bench.elements, rank) for rank in range(4)]
    for member in job.members[:-1]:
        bench.expect(here.port, packet(job, member, vectors[member.rank]), [], "absorbed")
    made = packet(job, job.members[-1], vectors[-1])
    bench.expect(here.port, made, [result(made, each, vectors) for each in job.members], "completed", replica=4)
    again = packet(job, job.members[1], vectors[1])
    bench.expect(here.port, again, [result(again, job.members[1], vectors)], "answered")


def test_slots_do_not_touch_their_neighbours(bench: Bench) -> None:
    """Slots all over the switch, with every bit of their numbers, both sets, filled crosswise: each finds its own."""
    slots = bench.target.slots
    job = share(2, slots=slots)
    bench.install(job)
    first, second = job.members
    chosen = {*range(0, slots, slots // 73), *(1 << bit for bit in range(slots.bit_length() - 1))}
    rows = [(slot, generation) for slot in chosen for generation in (0, 1)]
    numbers = {row: vector(bench.elements, 1000 + n) for n, row in enumerate(rows)}
    for (slot, generation), own in numbers.items():
        made = packet(job, first, own, slot=slot, generation=generation, next_exponent=slot)
        assert bench.target.send(first.port, made.frame()) == []
    for (slot, generation), own in reversed(numbers.items()):
        vectors = [own, vector(bench.elements, 5)]
        made = packet(job, second, vectors[1], slot=slot, generation=generation)
        leaves = [result(made, each, vectors, next_exponent=slot) for each in job.members]
        bench.expect(second.port, made, leaves, "completed", replica=2)


@pytest.mark.parametrize("position", [0, 1, 31, 32, 63, -1])
def test_every_element_wraps_by_itself(bench: Bench, position: int) -> None:
    """Carries stay inside their 32 bits."""
    job = share(2)
    bench.install(job)
    first, second = job.members
    position %= bench.elements
    vectors = [np.zeros(bench.elements, np.int32), np.zeros(bench.elements, np.int32)]
    vectors[0][position], vectors[1][position] = -1, 1
    bench.expect(first.port, packet(job, first, vectors[0]), [], "absorbed")
    made = packet(job, second, vectors[1])
    bench.expect(second.port, made, [result(made, each, vectors) for each in job.members], "completed", replica=2)
    assert not total(vectors).any()


def test_the_index_is_masked(bench: Bench) -> None:
    """An entry that lets a slot beyond the switch in does not let it out of the registers."""
    slots = bench.target.slots
    job = share(1, first_slot=slots, slots=128)
    bench.install(job)
    (only,) = job.members
    ones = np.ones(bench.elements, np.int32)
    made = packet(job, only, ones, slot=slots + 5)
    bench.expect(only.port, made, [result(made, only, [ones])], "completed", replica=1)
    # It is slot 5 that was used.
    here = packet(job, only, ones, slot=slots + 5)
    bench.expect(only.port, here, [result(here, only, [ones])], "answered")


def test_a_member_without_a_replica_gets_no_copy_but_an_answer(bench: Bench) -> None:
    base = share(2)
    job = replace(base, members=(base.members[0], replace(base.members[1], replica=0)))
    bench.install(job)
    first, second = job.members
    vectors = [vector(bench.elements, rank) for rank in range(2)]
    bench.expect(first.port, packet(job, first, vectors[0]), [], "absorbed")
    made = packet(job, second, vectors[1])
    bench.expect(second.port, made, [result(made, first, vectors)], "completed", replica=1)
    bench.expect(second.port, made, [result(made, second, vectors)], "answered")


def test_a_replica_that_nobody_describes_is_dropped(bench: Bench) -> None:
    job = share(2)
    entities = bench.target.names.job([job])
    nameless = job.members[1]
    kept = [
        e
        for e in entities
        if not (
            e.table_entry.match
            and e.table_entry.match[0].HasField("exact")
            and int.from_bytes(e.table_entry.match[0].exact.value, "big") == nameless.replica
        )
    ]
    assert len(kept) == len(entities) - 1
    bench.install_entities(kept)
    vectors = [vector(bench.elements, seed) for seed in (1, 2)]
    first = job.members[0]
    bench.expect(first.port, packet(job, first, vectors[0]), [], "absorbed")
    made = packet(job, nameless, vectors[1])
    bench.expect(nameless.port, made, [result(made, first, vectors)], "completed", replica=1, no_replica=1)
