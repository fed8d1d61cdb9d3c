"""Slots that jobs overbook: docs/protocol.md, "Shared slots"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from controller.jobs.switch_share import Member, SwitchShare
from hostlib.protocol import constants
from tests.dataplane.packets import SERVER, Bench, Made, forwarded, packet, share, vector
from tests.dataplane.target import Target
from tests.dataplane.test_hierarchy import copies, sum_up

AGAIN = {"flags": constants.FLAG_AGAIN}
POOL = 256  # an offset's high bits: where the pool begins


@pytest.fixture
def bench(target: Target) -> Iterator[Bench]:
    """A pool that nobody has owned yet."""
    made = Bench(target)
    made.reset()
    yield made
    made.clear()


def shared(count: int = 2, offset: int = POOL) -> SwitchShare:
    return share(count, above=SERVER, policy="shared", offset=offset)


def passed_on(made: Made) -> tuple[int, Made]:
    """A contribution that found its slot taken: only its addresses change."""
    up = forwarded(made, replace(SERVER, rank=made.header.rank), made.elements, made.header.check)
    return SERVER.port, up


def contribute(bench: Bench, job: SwitchShare, member: Member, seed: int, **fields: int) -> Made:
    made = packet(job, member, vector(bench.elements, seed), **fields)
    bench.expect(member.port, made, [], "absorbed")
    return made


def test_a_free_slot_is_claimed_and_given_back_by_the_result(bench: Bench) -> None:
    mine, other = shared(), shared()
    bench.install_entities([e for job in (mine, other) for e in bench.target.names.job([job])])
    first, second = mine.members
    contribute(bench, mine, first, 1)
    vectors = [vector(bench.elements, seed) for seed in (1, 2)]
    made = packet(mine, second, vectors[1])
    bench.expect(second.port, made, [sum_up(made, SERVER, vectors, second.rank)], "sent_up")
    # Not done before the result has passed: the other job is sent on, and this one's sum again.
    blocked = packet(other, other.members[0], vector(bench.elements, 7))
    bench.expect(other.members[0].port, blocked, [passed_on(blocked)], "collision")
    again = packet(mine, first, vectors[0], **AGAIN)
    bench.expect(first.port, again, [sum_up(again, SERVER, vectors, first.rank)], "up_again")
    result = packet(mine, SERVER, vector(bench.elements, 9), of=2)
    bench.expect(SERVER.port, result, copies(result, mine), "relayed", replica=2)
    contribute(bench, other, other.members[0], 7)
    # It is the other's now; a late result of the first is passed on and frees nothing.
    bench.expect(SERVER.port, result, copies(result, mine), "relayed", replica=2)
    late = packet(mine, second, vectors[1])
    bench.expect(second.port, late, [passed_on(late)], "collision")


def test_a_collision_passes_unchanged(bench: Bench) -> None:
    owner, other = shared(1), shared(1)
    owner_job, other_job = (bench.target.names.job([job]) for job in (owner, other))
    bench.install_entities([*owner_job, *other_job])
    one = owner.members[0]
    made = packet(owner, one, vector(bench.elements, 1))
    bench.expect(one.port, made, [sum_up(made, SERVER, [made.elements], one.rank)], "sent_up")
    fields = {"exponent": 17, "next_exponent": 0x12345678, "check": 0xDEADBEEF, "flags": 0x8000}
    two = other.members[0]
    blocked = packet(other, two, vector(bench.elements, 2), **fields)
    bench.expect(two.port, blocked, [passed_on(blocked)], "collision")


def test_what_was_sent_before_never_claims(bench: Bench) -> None:
    job = shared()
    bench.install(job)
    first, second = job.members
    late = packet(job, first, vector(bench.elements, 1), **AGAIN)
    bench.expect(first.port, late, [passed_on(late)], "collision")
    # In a set that its job owns it counts.
    contribute(bench, job, second, 2)
    made = packet(job, first, vector(bench.elements, 1), **AGAIN)
    vectors = [vector(bench.elements, seed) for seed in (1, 2)]
    bench.expect(first.port, made, [sum_up(made, SERVER, vectors, first.rank)], "sent_up")


def test_what_waits_for_others_too_long_goes_to_the_server_too(bench: Bench) -> None:
    """Its set may be the claim of a late packet. It stays there, so that the sum can still get complete here."""
    job = shared(3)
    bench.install(job)
    for member in job.members[:2]:
        contribute(bench, job, member, member.rank)
        bench.expect(member.port, packet(job, member, vector(bench.elements, member.rank)), [], "duplicate")
        again = packet(job, member, vector(bench.elements, 50 + member.rank), exponent=3, **AGAIN)
        bench.expect(member.port, again, [passed_on(again)], "collision")
    last = job.members[2]
    vectors = [vector(bench.elements, rank) for rank in range(3)]
    made = packet(job, last, vectors[2], **AGAIN)
    bench.expect(last.port, made, [sum_up(made, SERVER, vectors, last.rank)], "sent_up")
    bench.expect(last.port, made, [sum_up(made, SERVER, vectors, last.rank)], "up_again")


def test_only_one_of_the_flags_counts(bench: Bench) -> None:
    job = shared()
    bench.install(job)
    first = job.members[0]
    late = packet(job, first, vector(bench.elements, 1), flags=0xFFFF)
    bench.expect(first.port, late, [passed_on(late)], "collision")
    contribute(bench, job, first, 1, flags=0xFFFF ^ constants.FLAG_AGAIN)


def test_another_generation_in_its_own_set_is_a_collision(bench: Bench) -> None:
    job = shared()
    bench.install(job)
    first, second = job.members
    contribute(bench, job, first, 1, generation=4)
    for generation in (2, 6):
        made = packet(job, second, vector(bench.elements, 2), generation=generation)
        bench.expect(second.port, made, [passed_on(made)], "collision")
    contribute(bench, job, second, 3, generation=5)  # the other set
    vectors = [vector(bench.elements, seed) for seed in (1, 2)]
    made = packet(job, second, vectors[1], generation=4)
    bench.expect(second.port, made, [sum_up(made, SERVER, vectors, second.rank)], "sent_up")


def test_an_owner_that_is_gone_loses_its_slot(bench: Bench) -> None:
    gone, job = shared(), shared()
    bench.install_entities([e for each in (gone, job) for e in bench.target.names.job([each])])
    contribute(bench, gone, gone.members[0], 1)
    first = job.members[0]
    made = packet(job, first, vector(bench.elements, 2))
    for _ in range(constants.CREDIT):
        bench.expect(first.port, made, [passed_on(made)], "collision")
    again = packet(job, first, vector(bench.elements, 2), **AGAIN)
    bench.expect(first.port, again, [passed_on(again)], "collision")  # neither claims nor counts
    contribute(bench, job, first, 2)
    late = packet(gone, gone.members[1], vector(bench.elements, 3))
    bench.expect(gone.members[1].port, late, [passed_on(late)], "collision")


def test_an_owner_that_speaks_keeps_its_slot(bench: Bench) -> None:
    owner, job = shared(), shared()
    bench.install_entities([e for each in (owner, job) for e in bench.target.names.job([each])])
    one = owner.members[0]
    contribute(bench, owner, one, 1)
    first = job.members[0]
    made = packet(job, first, vector(bench.elements, 2))
    for _ in range(3):
        for _ in range(constants.CREDIT - 1):
            bench.target.send(first.port, made.frame())
        bench.expect(one.port, packet(owner, one, vector(bench.elements, 1)), [], "duplicate")
    bench.expect(first.port, made, [passed_on(made)], "collision")


def collide(bench: Bench, job: SwitchShare, times: int, **fields: int) -> None:
    """A packet of the job's first rank, that many times; each is passed on."""
    first = job.members[0]
    made = packet(job, first, vector(bench.elements, 2), **fields)
    with bench.counting({"collision": times}):
        for _ in range(times):
            ((port, _),) = bench.target.send(first.port, made.frame())
            assert port == SERVER.port


def test_what_an_owner_sends_again_does_not_renew_its_credit(bench: Bench) -> None:
    owner, job = shared(), shared()
    bench.install_entities([e for each in (owner, job) for e in bench.target.names.job([each])])
    one = owner.members[0]
    contribute(bench, owner, one, 1)
    collide(bench, job, constants.CREDIT - 1)
    again = packet(owner, one, vector(bench.elements, 1), **AGAIN)
    bench.expect(one.port, again, [passed_on(again)], "collision")
    collide(bench, job, 1)
    contribute(bench, job, job.members[0], 2)


def test_what_another_sends_again_does_not_cost_the_owner_credit(bench: Bench) -> None:
    owner, job = shared(), shared()
    bench.install_entities([e for each in (owner, job) for e in bench.target.names.job([each])])
    contribute(bench, owner, owner.members[0], 1)
    collide(bench, job, 3, **AGAIN)
    collide(bench, job, constants.CREDIT)
    contribute(bench, job, job.members[0], 2)


@pytest.mark.parametrize("fields", [{}, AGAIN], ids=["once", "again"])
def test_a_collision_leaves_the_owners_sum_as_it_is(bench: Bench, fields: dict[str, int]) -> None:
    """Also of the rank that the owner still waits for, in the same generation."""
    owner, other = shared(), shared()
    bench.install_entities([e for each in (owner, other) for e in bench.target.names.job([each])])
    contribute(bench, owner, owner.members[0], 0)
    for member in other.members:
        made = packet(other, member, vector(bench.elements, 7), exponent=9, next_exponent=0xFFFFFFFF, **fields)
        bench.expect(member.port, made, [passed_on(made)], "collision")
    last = owner.members[1]
    made = packet(owner, last, vector(bench.elements, 1))
    vectors = [vector(bench.elements, rank) for rank in range(2)]
    bench.expect(last.port, made, [sum_up(made, SERVER, vectors, last.rank)], "sent_up")


def test_an_owners_next_generation_renews_its_credit(bench: Bench) -> None:
    """It is a collision, but a sign of life."""
    owner, job = shared(), shared()
    bench.install_entities([e for each in (owner, job) for e in bench.target.names.job([each])])
    one = owner.members[0]
    contribute(bench, owner, one, 1)
    collide(bench, job, constants.CREDIT - 1)
    ahead = packet(owner, one, vector(bench.elements, 1), generation=2)
    bench.expect(one.port, ahead, [passed_on(ahead)], "collision")
    collide(bench, job, constants.CREDIT)
    contribute(bench, job, job.members[0], 2)


def test_a_result_frees_only_its_own_jobs_set(bench: Bench) -> None:
    """The other set of the slot, and another's set, stay owned."""
    mine, other = shared(), shared()
    bench.install_entities([e for job in (mine, other) for e in bench.target.names.job([job])])
    contribute(bench, mine, mine.members[0], 1)
    contribute(bench, mine, mine.members[0], 1, generation=1)
    for job, generation in ((other, 0), (other, 1), (mine, 1)):
        result = packet(job, SERVER, vector(bench.elements, 9), of=2, generation=generation)
        bench.expect(SERVER.port, result, copies(result, job), "relayed", replica=2)
    collide(bench, other, 1)
    contribute(bench, other, other.members[0], 7, generation=1)


def test_a_claim_starts_the_set_afresh(bench: Bench) -> None:
    """Also in the very generation that lies there, of the same job: given back, it counts for nothing."""
    job = shared()
    bench.install(job)
    first, second = job.members
    contribute(bench, job, first, 1)
    result = packet(job, SERVER, vector(bench.elements, 9), of=2)
    bench.expect(SERVER.port, result, copies(result, job), "relayed", replica=2)
    contribute(bench, job, second, 2)
    bench.expect(second.port, packet(job, second, vector(bench.elements, 2)), [], "duplicate")
    made = packet(job, first, vector(bench.elements, 3), **AGAIN)
    vectors = [vector(bench.elements, seed) for seed in (3, 2)]  # of ranks 0 and 1
    bench.expect(first.port, made, [sum_up(made, SERVER, vectors, first.rank)], "sent_up")


@pytest.mark.parametrize("offset", [POOL, POOL + 1, POOL + 127])
def test_the_offset_moves_the_slots(bench: Bench, offset: int) -> None:
    """Slot k of one job and slot k xor offset of another are the same."""
    owner, other = shared(1, POOL), shared(1, offset)
    bench.install_entities([e for each in (owner, other) for e in bench.target.names.job([each])])
    one, two = owner.members[0], other.members[0]
    made = packet(owner, one, vector(bench.elements, 1), slot=5)
    bench.expect(one.port, made, [sum_up(made, SERVER, [made.elements], one.rank)], "sent_up")
    for slot in range(128):
        made = packet(other, two, vector(bench.elements, slot), slot=slot)
        if slot == 5 ^ (offset - POOL):
            bench.expect(two.port, made, [passed_on(made)], "collision")
        else:
            bench.expect(two.port, made, [sum_up(made, SERVER, [made.elements], two.rank)], "sent_up")
    outside = packet(other, two, vector(bench.elements, 1), slot=128)
    bench.expect(two.port, outside, [], "slot")


def test_slots_of_ones_own_are_not_the_pool(bench: Bench) -> None:
    """A job under the sum policy takes no notice of owners, and the other way round."""
    own, other = share(2, first_slot=POOL), shared(2)
    bench.install_entities([e for each in (own, other) for e in bench.target.names.job([each])])
    contribute(bench, other, other.members[0], 1)
    made = packet(own, own.members[0], np.ones(bench.elements, np.int32))
    bench.expect(own.members[0].port, made, [], "absorbed")
