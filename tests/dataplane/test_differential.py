"""The embedded switch against BMv2: the same packets in, the same packets out, the same counters.

NETFOLD_DIFFERENTIAL_PACKETS sets how many (per number of elements), NETFOLD_SEED replays a run that failed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from controller.share import Above, Share
from hostlib import layout
from tests.dataplane.packets import PARENT, SERVER, Bench, packet, share, vector
from tests.dataplane.target import Bmv2, Embedded, absent

PACKETS = int(os.environ.get("NETFOLD_DIFFERENTIAL_PACKETS", "1500"))
POOL = 384


def jobs() -> list[Share]:
    """Every kind of job at once; two of them share slots."""
    return [
        share(3),
        share(2, above=PARENT, first_slot=128),
        share(3, above=SERVER, first_slot=256, slots=64),
        share(2, above=SERVER, policy="chunk", first_slot=320, slots=64),
        share(2, above=SERVER, policy="shared", offset=POOL),
        share(3, above=SERVER, policy="shared", offset=POOL + 1),
    ]


def random_packet(draw: random.Random, job: Share, elements: int) -> tuple[int, bytes]:
    """Mostly right: few slots and generations, so that packets meet; sometimes another sender's, or damaged."""
    senders = [*job.members, *([job.above] if job.above is not None else [])]
    sender = draw.choice(senders)
    fields = {
        "slot": job.first_slot + draw.choice([0, 0, 1, job.slots - 1]),
        "generation": draw.choice([0, 0, 0, 1, 2, 3, 0xFFFFFFFE]),
        "flags": draw.choice([0, 0, layout.FLAG_AGAIN]),
        "exponent": draw.randrange(4),
        "next_exponent": draw.randrange(1 << 32),
    }
    if draw.random() < 0.1:
        fields["operation"] = draw.randrange(7)
    made = packet(job, sender, vector(elements, draw.randrange(50)), **fields)
    port = sender.port
    if draw.random() < 0.05:
        port = draw.randrange(1, 10)
    if draw.random() < 0.05:
        made = replace(made, ttl=draw.randrange(3))
    frame = bytearray(made.frame(checksum=0x1234 if draw.random() < 0.02 else None))
    if draw.random() < 0.1:
        for _ in range(draw.randrange(1, 4)):
            bit = draw.randrange(8 * 106)
            frame[bit // 8] ^= 1 << bit % 8
    if draw.random() < 0.05:
        del frame[draw.randrange(15, len(frame)) :]
    if draw.random() < 0.02:
        frame += bytes(draw.randrange(1, 40))
    return port, bytes(frame)


@pytest.fixture(params=[64, 256])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Bench, Bench]]:
    reason = absent("bmv2")
    if reason is not None:
        pytest.skip(reason)
    with closing(Embedded(request.param)) as embedded, closing(Bmv2(request.param)) as bmv2:
        yield Bench(embedded), Bench(bmv2)


@pytest.mark.timeout(max(120, PACKETS // 50))
def test_the_embedded_switch_does_what_bmv2_does(pair: tuple[Bench, Bench]) -> None:
    seed = int(os.environ.get("NETFOLD_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"NETFOLD_SEED={seed}")  # shown by pytest when the test fails
    draw = random.Random(seed)
    embedded, bmv2 = pair
    living = jobs()
    for job in living:
        for bench in pair:
            bench.install(job)
    base = bmv2.target.counts()
    left = 0
    for number in range(PACKETS):
        if number % 300 == 299:  # A job ends, and another one takes its slots.
            for bench in pair:
                bench.remove_last()
            living[-1] = replace(living[-1], epoch=living[-1].epoch + 100_000 + number)
            for bench in pair:
                bench.install(living[-1])
        port, frame = random_packet(draw, draw.choice(living), embedded.elements)
        mine, theirs = (sorted(bench.target.send(port, frame)) for bench in pair)
        assert mine == theirs, f"packet {number} on port {port}: {frame[:106].hex(' ', 4)}"
        left += len(mine)
    assert left > PACKETS // 10
    theirs = bmv2.target.counts()
    grown = {
        name: {i: n - base[name].get(i, 0) for i, n in cells.items() if n != base[name].get(i, 0)}
        for name, cells in theirs.items()
    }
    assert embedded.target.counts() == grown
    # It met most of what there is: an event that never happened was not compared.
    met = {name for name, index in [*layout.EVENTS.items(), *layout.DROPS.items()] if grown["events"].get(index)}
    assert len(met) > 15, met


def test_both_kinds_of_above_are_met() -> None:
    assert {job.above.kind for job in jobs() if isinstance(job.above, Above)} == {"parent", "server"}
