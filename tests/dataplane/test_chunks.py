"""A server's words for a whole group: docs/protocol.md, "Chunks"."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.jobs.switch_share import Member, SwitchShare, Upstream
from hostlib.protocol import constants
from tests.dataplane.packets import PARENT, SERVER, Bench, Made, codes, forwarded, packet, share, vector
from tests.dataplane.test_hierarchy import copies


@pytest.fixture(params=["parent", "server"])
def above(request: pytest.FixtureRequest) -> Upstream:
    return {"parent": PARENT, "server": SERVER}[request.param]


def chunks(above: Upstream, count: int = 3) -> SwitchShare:
    return share(count, above=above, policy="chunk")


def nack(bench: Bench, job: SwitchShare, member: Member, **fields: int) -> Made:
    return packet(job, member, vector(bench.elements, 77), **fields)


def passed_up(made: Made, member: Member, above: Upstream) -> tuple[int, Made]:
    rank = above.rank if above.kind == "parent" else member.rank
    return above.port, forwarded(made, replace(above, rank=rank), made.elements, made.header.check)


def repair(asked: Made, chunk: Made, member: Member) -> tuple[int, Made]:
    """The stored chunk, to the one who asked."""
    return member.port, forwarded(
        asked,
        member,
        chunk.elements,
        chunk.header.check,
        operation=constants.OPERATION_CHUNK,
        next_exponent=chunk.header.next_exponent,
        flags=0,
    )


def test_a_chunk_goes_to_everybody_once(bench: Bench, above: Upstream) -> None:
    job = chunks(above)
    bench.install(job)
    chunk = packet(job, above, vector(bench.elements, 1), next_exponent=codes(9)[0])
    bench.expect(above.port, chunk, copies(chunk, job), "chunk", replica=3)
    bench.expect(above.port, chunk, [], "duplicate")
    later = packet(job, above, vector(bench.elements, 2), generation=2)
    bench.expect(above.port, later, copies(later, job), "chunk", replica=3)
    bench.expect(above.port, chunk, [], "stale")
    bench.expect(above.port, packet(job, above, vector(bench.elements, 3), generation=6), [], "future")
    following = packet(job, above, vector(bench.elements, 3), generation=4)
    bench.expect(above.port, following, copies(following, job), "chunk", replica=3)


def test_a_nack_is_answered_from_the_store(bench: Bench, above: Upstream) -> None:
    job = chunks(above)
    bench.install(job)
    sent = {}
    for generation in (0, 1):
        chunk = packet(job, above, vector(bench.elements, generation), generation=generation, next_exponent=5)
        bench.expect(above.port, chunk, copies(chunk, job), "chunk", replica=3)
        sent[generation] = chunk
    for generation, chunk in sent.items():
        for member in job.members:
            asked = nack(bench, job, member, generation=generation, flags=constants.FLAG_AGAIN)
            bench.expect(member.port, asked, [repair(asked, chunk, member)], "answered")


def test_a_nack_for_what_is_not_here_goes_up(bench: Bench, above: Upstream) -> None:
    job = chunks(above)
    bench.install(job)
    for member in job.members:
        asked = nack(bench, job, member)
        bench.expect(member.port, asked, [passed_up(asked, member, above)], "nack_up")
    chunk = packet(job, above, vector(bench.elements, 1), generation=2)
    bench.expect(above.port, chunk, copies(chunk, job), "chunk", replica=3)
    first = job.members[0]
    for generation in (0, 1, 4):
        asked = nack(bench, job, first, generation=generation)
        bench.expect(first.port, asked, [passed_up(asked, first, above)], "nack_up")


def test_a_lost_chunk_costs_one_multicast_however_many_ask(bench: Bench) -> None:
    """Each of 8 ranks asks twice; the server answers every NACK it hears; one chunk reaches the group."""
    job = chunks(SERVER, 8)
    bench.install(job)
    heard = 0
    for _ in range(2):
        for member in job.members:
            heard += len(bench.answers(member.port, nack(bench, job, member)))
    assert heard == 16
    chunk = packet(job, SERVER, vector(bench.elements, 1))
    bench.expect(SERVER.port, chunk, copies(chunk, job), "chunk", replica=8)
    for _ in range(heard - 1):
        bench.expect(SERVER.port, chunk, [], "duplicate")


def test_a_nack_of_another_length(bench: Bench) -> None:
    job = chunks(SERVER)
    bench.install(job)
    chunk = packet(job, SERVER, vector(bench.elements, 1))
    bench.expect(SERVER.port, chunk, copies(chunk, job), "chunk", replica=3)
    first = job.members[0]
    asked = nack(bench, job, first)
    bench.expect(first.port, asked.frame(udp_length=40, ip_length=60)[:74], [], "truncated")
    bench.expect(first.port, asked.frame(ip_length=60), [], "malformed")
    bench.expect(first.port, asked, [repair(asked, chunk, first)], "answered")


def test_who_may_send_chunks_and_who_may_ask(bench: Bench) -> None:
    job = chunks(SERVER)
    bench.install(job)
    first = job.members[0]
    forged = packet(job, SERVER, vector(bench.elements, 1))
    bench.expect(first.port, forged, [], "source")
    own = packet(job, first, vector(bench.elements, 1), operation=constants.OPERATION_CHUNK)
    bench.expect(first.port, own, [], "operation")
    contribution = packet(job, first, vector(bench.elements, 1), operation=constants.OPERATION_CONTRIBUTION)
    bench.expect(first.port, contribution, [], "operation")
    result = packet(job, SERVER, vector(bench.elements, 1), operation=constants.OPERATION_RESULT)
    bench.expect(SERVER.port, result, [], "operation")
