"""What is dropped, each under its own counter, and that nothing else is touched by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from controller.share import Share
from hostlib import layout
from tests.dataplane.packets import PARENT, Bench, mac, packet, share, vector
from tests.dataplane.test_contributions import result

WRONG = {
    "magic": ({"magic": 0x1234}, "malformed"),
    "version 0": ({"version": 0}, "version"),
    "version 2": ({"version": 2}, "version"),
    "operation 0": ({"operation": 0}, "operation"),
    "operation 6": ({"operation": 6}, "operation"),
    "operation 255": ({"operation": 255}, "operation"),
    "a result from a rank": ({"operation": layout.OPERATION_RESULT}, "operation"),
    "a sum from a rank": ({"operation": layout.OPERATION_SUM}, "operation"),
    "a chunk from a rank": ({"operation": layout.OPERATION_CHUNK}, "operation"),
    "element count": ({"element_count": 32}, "size"),
    "element count 0": ({"element_count": 0}, "size"),
    "job": ({"job": 0xFFFF}, "job"),
    "epoch before": ({"epoch": 1}, "epoch"),
    "epoch after": ({"epoch": 0xFFFFFFFF}, "epoch"),
    "rank": ({"rank": 3}, "rank"),
    "rank of a leaf": ({"rank": 0x8000}, "rank"),
    "rank of everybody": ({"rank": layout.RANK_ALL}, "rank"),
    "another's rank": ({"rank": 1}, "source"),
    "slot after": ({"slot": 128}, "slot"),
    "slot far": ({"slot": 0xFFFF}, "slot"),
    "stale": ({"generation": 0xFFFFFFFE}, "stale"),
}


@pytest.fixture
def half(bench: Bench) -> Share:
    """A job of two, of which rank 0 has contributed."""
    job = share(2)
    bench.install(job)
    bench.expect(job.members[0].port, packet(job, job.members[0], vector(bench.elements, 0)), [], "absorbed")
    return job


def finish(bench: Bench, job: Share) -> None:
    """Nothing was touched: the other rank's contribution completes the sum."""
    second = job.members[1]
    vectors = [vector(bench.elements, 0), vector(bench.elements, 1)]
    made = packet(job, second, vectors[1])
    bench.expect(second.port, made, [result(made, each, vectors) for each in job.members], "completed", replica=2)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_field(bench: Bench, half: Share, case: str) -> None:
    fields, reason = WRONG[case]
    first = half.members[0]
    bench.expect(first.port, packet(half, first, vector(bench.elements, 5), **fields), [], reason)
    finish(bench, half)


def test_a_spoofed_address_and_a_wrong_port(bench: Bench, half: Share) -> None:
    first, second = half.members
    bad = packet(half, first, vector(bench.elements, 5))
    bench.expect(first.port, replace(bad, source=(mac(first.mac), "10.0.1.77", first.udp_port)), [], "source")
    bench.expect(second.port, bad, [], "source")
    bench.expect(9, packet(half, second, vector(bench.elements, 5)), [], "source")
    finish(bench, half)


def test_a_nack_where_there_are_no_chunks(bench: Bench, half: Share) -> None:
    first = half.members[0]
    nack = packet(half, first, vector(bench.elements, 5), operation=layout.OPERATION_NACK)
    bench.expect(first.port, nack, [], "operation")
    finish(bench, half)


def test_a_truncated_packet(bench: Bench, half: Share) -> None:
    """Cut in the header, between header and vector, inside the vector - with lengths that say so."""
    first = half.members[0]
    whole = packet(half, first, vector(bench.elements, 5)).frame()
    for payload in (0, 1, 31, 32, 36, 32 + 4 * bench.elements - 1):
        made = packet(half, first, vector(bench.elements, 5))
        frame = made.frame(udp_length=8 + payload, ip_length=28 + payload)[: 42 + payload]
        bench.expect(first.port, frame, [], "truncated")
    # The frame ends early, its lengths do not know.
    bench.expect(first.port, whole[:200], [], "truncated")
    finish(bench, half)


def test_a_packet_with_a_tail(bench: Bench, half: Share) -> None:
    first = half.members[0]
    made = packet(half, first, vector(bench.elements, 5))
    size = 32 + 4 * bench.elements
    bench.expect(first.port, made.frame(12 + size, 32 + size) + bytes(4), [], "malformed")
    finish(bench, half)


@pytest.mark.parametrize("difference", [-4, -1, 1, 4, 200])
def test_lengths_that_contradict_each_other(bench: Bench, half: Share, difference: int) -> None:
    first = half.members[0]
    made = packet(half, first, vector(bench.elements, 5))
    bench.expect(first.port, made.frame(ip_length=60 + 4 * bench.elements + difference), [], "malformed")
    finish(bench, half)


def test_a_wrong_header_checksum(bench: Bench, half: Share) -> None:
    first = half.members[0]
    bench.expect(first.port, packet(half, first, vector(bench.elements, 5)).frame(checksum=0x1234), [], "checksum")
    finish(bench, half)


def test_a_packet_of_an_ended_job(bench: Bench) -> None:
    job = share(2)
    bench.install(job)
    first = job.members[0]
    bench.expect(first.port, packet(job, first, vector(bench.elements, 0)), [], "absorbed")
    bench.remove_last()
    bench.expect(first.port, packet(job, first, vector(bench.elements, 0)), [], "job")
    # Its next life has another epoch: the packets of the first are told from it.
    again = replace(job, epoch=job.epoch + 500_000)
    bench.install(again)
    bench.expect(first.port, packet(job, first, vector(bench.elements, 0)), [], "epoch")
    bench.expect(first.port, packet(again, first, vector(bench.elements, 0)), [], "absorbed")


def test_results_that_only_a_parent_may_send(bench: Bench) -> None:
    job = share(2, above=PARENT)
    bench.install(job)
    first = job.members[0]
    forged = packet(job, PARENT, np.zeros(bench.elements, np.int32))
    bench.expect(first.port, forged, [], "source")
    bench.expect(first.port, packet(job, first, vector(bench.elements, 1), rank=PARENT.rank), [], "source")
    bench.expect(PARENT.port, packet(job, PARENT, vector(bench.elements, 1), operation=1), [], "operation")
    bench.expect(PARENT.port, packet(job, PARENT, vector(bench.elements, 1), slot=300), [], "slot")
