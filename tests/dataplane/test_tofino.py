"""What only the TNA program does: results that pass twice, and headers that a chip may or may not take for whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scapy.layers.l2 import Ether

from controller.jobs.switch_share import SwitchShare
from hostlib.protocol import constants
from hostlib.protocol.header import Header
from tests.checks import checks
from tests.dataplane.packets import RANKS, SERVER, Bench, packet, share, vector
from tests.dataplane.scapy_layer import Netfold
from tests.dataplane.target import Frames, absent
from tests.dataplane.test_contributions import result
from tests.dataplane.tofino import RECIRCULATION, Tofino

Make = Callable[..., Bench]


@pytest.fixture
def tofino() -> Make:
    """Makes a switch with the fabric's address."""
    reason = absent("tna")
    if reason is not None:
        pytest.skip(reason)
    return lambda elements, **arguments: Bench(Tofino(elements, **arguments))


def once(bench: Bench, port: int, frame: bytes) -> Frames:
    """What leaves in one pass, also what comes again."""
    assert isinstance(bench.target, Tofino)
    return list(bench.target.once(port, frame))


def leaves(bench: Bench, job: SwitchShare, rank: int, **fields: Any) -> list[int]:
    """Where a rank's packet goes in its first pass."""
    member = job.members[rank]
    made = packet(job, member, vector(bench.elements, rank), **fields)
    return [port for port, _ in once(bench, member.port, made.frame())]


def test_with_32_elements_nothing_passes_twice(tofino: Make) -> None:
    bench, job = tofino(32), share(2)
    bench.install(job)
    assert [leaves(bench, job, rank) for rank in (0, 1, 1)] == [[], [1, 2], [2]]


def test_with_64_elements_only_stored_values_pass_twice(tofino: Make) -> None:
    bench, job, up, chunks = (
        tofino(64),
        share(2),
        share(2, first_slot=128, above=SERVER),
        share(2, first_slot=256, above=SERVER, policy="chunk"),
    )
    bench.install_entities([e for each in (job, up, chunks) for e in bench.target.names.job([each])])
    twice = [RECIRCULATION]
    assert [leaves(bench, job, rank) for rank in (0, 0, 1, 1)] == [[], [], twice, twice]
    assert [leaves(bench, up, rank) for rank in (0, 1, 1)] == [[], twice, twice]
    for above in (packet(up, SERVER, vector(64, 9), of=2), packet(chunks, SERVER, vector(64, 9))):
        assert [port for port, _ in once(bench, SERVER.port, above.frame())] == [1, 2]
    assert leaves(bench, up, 1) == leaves(bench, chunks, 0) == twice
    assert leaves(bench, chunks, 0, generation=2) == [SERVER.port]


def test_a_mixture_of_two_generations_is_told_by_its_check_word(tofino: Make) -> None:
    """A set that starts afresh between the two passes of an answer."""
    bench, job = tofino(64), share(1)
    bench.install(job)
    (only,) = job.members
    old, new = vector(64, 1), vector(64, 2)
    bench.expect(
        only.port, packet(job, only, old), [result(packet(job, only, old), only, [old])], "completed", replica=1
    )
    ((_, again),) = once(bench, only.port, packet(job, only, old).frame())
    bench.target.send(only.port, packet(job, only, new, generation=2).frame())
    ((port, mixed),) = once(bench, RECIRCULATION, again)
    assert port == only.port
    got = Ether(mixed)[Netfold]
    assert np.array_equal(got.elements, np.concatenate([old[:32], new[32:]]))
    header = Header(**{name: getattr(got, name) for name in constants.HEADER_FIELDS})
    words = checks(RANKS, 64)
    assert got.check == words.word(header, old) != words.word(header, np.array(got.elements))


def test_a_result_that_passes_twice_is_counted_once(tofino: Make) -> None:
    bench, job = tofino(64), share(1)
    bench.install(job)
    (only,) = job.members
    frame = packet(job, only, vector(64, 1)).frame()
    assert len(bench.target.send(only.port, frame)) == 1
    assert bench.target.traffic() == {name: {only.port: (1, len(frame))} for name in ("port_in", "port_out")}


@pytest.mark.parametrize("elements", [32, 64])
@pytest.mark.parametrize("cut_counts", [False, True])
def test_a_packet_cut_anywhere_touches_nothing(tofino: Make, elements: int, cut_counts: bool) -> None:
    """Whether or not the header that the cut is in counts as one."""
    bench, job = tofino(elements, cut_counts=cut_counts), share(2)
    bench.install(job)
    vectors = [vector(elements, rank) for rank in range(2)]
    first, second = job.members
    bench.expect(first.port, packet(job, first, vectors[0]), [], "absorbed")
    frame = packet(job, second, vectors[1]).frame()
    for length in range(14, len(frame)):
        assert bench.target.send(second.port, frame[:length]) == [], length
    made = packet(job, second, vectors[1])
    bench.expect(second.port, made, [result(made, each, vectors) for each in job.members], "completed", replica=2)
