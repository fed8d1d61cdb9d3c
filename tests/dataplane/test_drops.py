"""What is dropped, each under its own counter, and that nothing else is touched by it."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from controller.jobs.switch_share import Member, SwitchShare, Upstream
from hostlib.protocol import constants
from tests.dataplane.packets import PARENT, SERVER, Bench, Made, mac, packet, share, total, vector
from tests.dataplane.scapy_layer import Netfold
from tests.dataplane.target import FABRIC, NEIGHBOUR, NEIGHBOUR_PORT, SWITCH_MAC
from tests.dataplane.test_chunks import repair
from tests.dataplane.test_contributions import result
from tests.dataplane.test_hierarchy import copies, rank_up, sum_up

HEADER = constants.HEADER_BYTES

WRONG_FIELDS = {
    "magic": ({"magic": 0x1234}, "malformed"),
    "version 0": ({"version": 0}, "version"),
    "version 2": ({"version": 2}, "version"),
    "operation 0": ({"operation": 0}, "operation"),
    "operation 6": ({"operation": 6}, "operation"),
    "operation 255": ({"operation": 255}, "operation"),
    "a result from a rank": ({"operation": constants.OPERATION_RESULT}, "operation"),
    "a sum from a rank": ({"operation": constants.OPERATION_SUM}, "operation"),
    "a chunk from a rank": ({"operation": constants.OPERATION_CHUNK}, "operation"),
    "element count": ({"element_count": 16}, "size"),
    "element count 0": ({"element_count": 0}, "size"),
    "job": ({"job": 0xFFFF}, "job"),
    "epoch before": ({"epoch": 1}, "epoch"),
    "epoch after": ({"epoch": 0xFFFFFFFF}, "epoch"),
    "rank": ({"rank": 3}, "rank"),
    "rank of a leaf": ({"rank": 0x8000}, "rank"),
    "rank of everybody": ({"rank": constants.RANK_ALL}, "rank"),
    "another's rank": ({"rank": 1}, "source"),
    "slot after": ({"slot": 128}, "slot"),
    "slot far": ({"slot": 0xFFFF}, "slot"),
    "stale": ({"generation": 0xFFFFFFFE}, "stale"),
    "the next but one": ({"generation": 4}, "future"),
    "far ahead": ({"generation": 0x7FFFFFFE}, "future"),
}


@pytest.fixture
def half(bench: Bench) -> SwitchShare:
    """A job of two, of which rank 0 has contributed."""
    job = share(2)
    bench.install(job)
    bench.expect(job.members[0].port, packet(job, job.members[0], vector(bench.elements, 0)), [], "absorbed")
    return job


def finish(bench: Bench, job: SwitchShare) -> None:
    """Nothing was touched: the other rank's contribution completes the sum."""
    second = job.members[1]
    vectors = [vector(bench.elements, 0), vector(bench.elements, 1)]
    made = packet(job, second, vectors[1])
    bench.expect(second.port, made, [result(made, each, vectors) for each in job.members], "completed", replica=2)


@pytest.mark.parametrize("case", WRONG_FIELDS)
def test_a_wrong_field(bench: Bench, half: SwitchShare, case: str) -> None:
    fields, reason = WRONG_FIELDS[case]
    first = half.members[0]
    bench.expect(first.port, packet(half, first, vector(bench.elements, 5), **fields), [], reason)
    finish(bench, half)


TWICE_WRONG = [
    ({"magic": 0x1234, "version": 2}, "malformed"),
    ({"version": 2, "operation": 9}, "version"),
    ({"operation": 9, "element_count": 16}, "operation"),
    ({"operation": 9}, "operation"),
    ({"element_count": 16, "job": 0xFFFF}, "size"),
    ({"job": 0xFFFF}, "truncated"),
]


@pytest.mark.parametrize(("fields", "reason"), TWICE_WRONG)
def test_the_first_reason_counts(bench: Bench, half: SwitchShare, fields: dict[str, int], reason: str) -> None:
    """Of what is wrong with its fields, and cut short on top of that."""
    first = half.members[0]
    frame = packet(half, first, vector(bench.elements, 5), **fields).frame()
    bench.expect(first.port, frame[:-8], [], reason)
    finish(bench, half)


def test_a_spoofed_address_and_a_wrong_port(bench: Bench, half: SwitchShare) -> None:
    first, second = half.members
    bad = packet(half, first, vector(bench.elements, 5))
    bench.expect(first.port, replace(bad, source=(mac(first.mac), "10.0.1.77", first.udp_port)), [], "source")
    bench.expect(second.port, bad, [], "source")
    bench.expect(9, packet(half, second, vector(bench.elements, 5)), [], "source")
    for udp_port in (0, first.udp_port + 1, second.udp_port, constants.NETFOLD_UDP_PORT, 0xFFFF):
        bench.expect(first.port, replace(bad, source=(*bad.source[:2], udp_port)), [], "source")
    finish(bench, half)


# ---- who speaks as the fabric -------------------------------------------------------------------------------------

SAID = {
    "a result": UDP(sport=constants.NETFOLD_UDP_PORT, dport=5001) / Raw(bytes(100)),
    "to the protocol's port": UDP(sport=constants.NETFOLD_UDP_PORT, dport=constants.NETFOLD_UDP_PORT) / Raw(bytes(9)),
    "any datagram": UDP(sport=1, dport=53) / Raw(b"x"),
    "not UDP": ICMP(),
}


@pytest.fixture
def hosts(bench: Bench) -> tuple[Bench, str]:
    """A switch that forwards frames to a host on port 2."""
    victim = 0x0200_0001_0002
    bench.install_entities([bench.target.names.entry("l2", {"dst_mac": victim}, "l2_forward", {"port": 2})])
    return bench, mac(victim)


@pytest.mark.parametrize("said", SAID)
def test_no_port_speaks_as_the_fabric(hosts: tuple[Bench, str], said: str) -> None:
    """To other hosts it would only be forwarded."""
    bench, victim = hosts
    for address in (FABRIC, NEIGHBOUR):
        forged = Ether(src=SWITCH_MAC, dst=victim) / IP(src=address, dst="10.0.1.2") / SAID[said]
        for port in (1, 2, 3):
            bench.expect(port, bytes(forged), [], "forged")
    honest = bytes(Ether(src=SWITCH_MAC, dst=victim) / IP(src="10.0.1.1", dst="10.0.1.2") / SAID[said])
    bench.expect(1, honest, [(2, honest)])


def test_another_switch_is_heard_where_its_cable_is(hosts: tuple[Bench, str]) -> None:
    bench, victim = hosts
    passing = bytes(Ether(src=SWITCH_MAC, dst=victim) / IP(src=NEIGHBOUR, dst="10.0.1.2") / SAID["a result"])
    bench.expect(NEIGHBOUR_PORT, passing, [(2, passing)])
    own = bytes(Ether(src=SWITCH_MAC, dst=victim) / IP(src=FABRIC, dst="10.0.1.2") / SAID["a result"])
    bench.expect(NEIGHBOUR_PORT, own, [], "forged")


@pytest.mark.parametrize(
    "fields", [{"flags": "MF"}, {"frag": 185}, {"options": b"\x01" * 4}, {"chksum": 1}, {"ttl": 0}]
)
def test_what_is_wrong_with_it_besides_does_not_help_a_forgery(
    hosts: tuple[Bench, str], fields: dict[str, Any]
) -> None:
    bench, victim = hosts
    forged = Ether(src=SWITCH_MAC, dst=victim) / IP(src=FABRIC, dst="10.0.1.2", **fields) / SAID["a result"]
    bench.expect(1, bytes(forged), [], "forged")


@pytest.mark.parametrize("ether_type", [0x8100, 0x88A8])
@pytest.mark.parametrize("tag", [0, 0xE000, 1, 0x6FFF], ids=["priority 0", "priority 7", "VLAN 1", "VLAN 4095"])
def test_nothing_hides_behind_a_tag(hosts: tuple[Bench, str], ether_type: int, tag: int) -> None:
    """A host's kernel takes a tag of VLAN 0 off, and believes the rest."""
    bench, victim = hosts
    for inner in (
        IP(src=FABRIC, dst="10.0.1.2") / SAID["a result"],
        IP(src="10.0.1.1", dst="10.0.1.2") / SAID["not UDP"],
    ):
        whole = bytes(Ether(src=SWITCH_MAC, dst=victim) / inner)
        for port in (1, NEIGHBOUR_PORT):
            tags = struct.pack(">HH", ether_type, tag)
            bench.expect(port, whole[:12] + tags + whole[12:], [], "tagged")
            bench.expect(port, whole[:12] + 2 * tags + whole[12:], [], "tagged")


@pytest.mark.parametrize("address", [FABRIC, NEIGHBOUR])
def test_what_claims_to_be_the_fabrics_gets_into_no_sum(bench: Bench, half: SwitchShare, address: str) -> None:
    first, second = half.members
    bad = packet(half, second, vector(bench.elements, 5))
    for port in (first.port, second.port):
        forged = replace(bad, source=(SWITCH_MAC, address, constants.NETFOLD_UDP_PORT))
        bench.expect(port, forged, [], "forged")
    finish(bench, half)


def test_a_leaf_is_heard_from_below_and_from_nowhere_else(bench: Bench) -> None:
    """At its parent it is a rank like others, with the address of a switch."""
    leaf = Member(0x8001, NEIGHBOUR_PORT, 0x0200_0000_0001, NEIGHBOUR, constants.NETFOLD_UDP_PORT, 1022)
    job = share(1, members=(leaf,))
    bench.install(job)
    own = vector(bench.elements, 1)
    made = packet(job, leaf, own)
    bench.expect(1, made, [], "forged")
    bench.expect(NEIGHBOUR_PORT, replace(made, source=(*made.source[:2], 5000)), [], "source")
    ((port, answer),) = bench.answers(NEIGHBOUR_PORT, made)
    assert port == NEIGHBOUR_PORT and np.array_equal(answer[Netfold].elements, own)


def test_a_nack_where_there_are_no_chunks(bench: Bench, half: SwitchShare) -> None:
    first = half.members[0]
    nack = packet(half, first, vector(bench.elements, 5), operation=constants.OPERATION_NACK)
    bench.expect(first.port, nack, [], "operation")
    finish(bench, half)


def test_a_truncated_packet(bench: Bench, half: SwitchShare) -> None:
    """Cut in the header, between header and vector, inside the vector - with lengths that say so."""
    first = half.members[0]
    whole = packet(half, first, vector(bench.elements, 5)).frame()
    for payload in (0, 1, HEADER - 1, HEADER, HEADER + 4, HEADER + 4 * bench.elements - 1):
        made = packet(half, first, vector(bench.elements, 5))
        frame = made.frame(udp_length=8 + payload, ip_length=28 + payload)[: 42 + payload]
        bench.expect(first.port, frame, [], "truncated")
    # The frame ends early, its lengths do not know.
    to_vector = 42 + HEADER
    for bytes_ in (42, 43, to_vector - 1, to_vector, to_vector + 3, to_vector + 4, 200, len(whole) - 1):
        bench.expect(first.port, whole[:bytes_], [], "truncated")
    finish(bench, half)


def test_lengths_that_leave_a_part_of_the_vector_out(bench: Bench, half: SwitchShare) -> None:
    """The bytes are there, but behind the datagram's end."""
    first = half.members[0]
    made = packet(half, first, vector(bench.elements, 5))
    empty = 8 + HEADER
    for udp in (0, 7, 8, empty - 1, empty, empty + 1, empty + 4 * bench.elements - 4, empty + 4 * bench.elements - 1):
        bench.expect(first.port, made.frame(udp_length=udp, ip_length=20 + udp), [], "truncated")
    finish(bench, half)


def test_lengths_that_promise_more_than_there_is(bench: Bench, half: SwitchShare) -> None:
    first = half.members[0]
    made = packet(half, first, vector(bench.elements, 5))
    for more in (1, 4, 4 * bench.elements):
        udp = 8 + HEADER + 4 * bench.elements + more
        bench.expect(first.port, made.frame(udp_length=udp, ip_length=20 + udp), [], "malformed")
    finish(bench, half)


def test_what_follows_the_datagram_is_not_looked_at(bench: Bench, half: SwitchShare) -> None:
    """Ethernet pads and some NICs leave a trailer: the lengths say where the datagram ends."""
    second = half.members[1]
    vectors = [vector(bench.elements, 0), vector(bench.elements, 1)]
    made = packet(half, second, vectors[1])
    wanted = sorted((port, each.frame()) for port, each in (result(made, m, vectors) for m in half.members))
    with bench.counting({"completed": 1}, {"replica": 2}):
        got = bench.target.send(second.port, made.frame() + b"trailer")
    assert sorted((port, frame[: len(made.frame())]) for port, frame in got) == wanted


def test_another_udp_port_of_the_fabric_is_not_the_protocols(bench: Bench, half: SwitchShare) -> None:
    first = half.members[0]
    made = packet(half, first, vector(bench.elements, 5))
    for port in (constants.NETFOLD_UDP_PORT - 1, constants.NETFOLD_UDP_PORT + 1):
        bench.expect(first.port, replace(made, destination=(*made.destination[:2], port)), [], "no_route")
    finish(bench, half)


def test_a_packet_with_a_tail(bench: Bench, half: SwitchShare) -> None:
    first = half.members[0]
    made = packet(half, first, vector(bench.elements, 5))
    size = HEADER + 4 * bench.elements
    bench.expect(first.port, made.frame(12 + size, 32 + size) + bytes(4), [], "malformed")
    finish(bench, half)


@pytest.mark.parametrize("difference", [-4, -1, 1, 4, 200])
def test_lengths_that_contradict_each_other(bench: Bench, half: SwitchShare, difference: int) -> None:
    first = half.members[0]
    made = packet(half, first, vector(bench.elements, 5))
    bench.expect(first.port, made.frame(ip_length=60 + 4 * bench.elements + difference), [], "malformed")
    finish(bench, half)


def test_a_wrong_header_checksum(bench: Bench, half: SwitchShare) -> None:
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


@pytest.mark.parametrize("fields", [{"flags": "MF"}, {"frag": 185}, {"version": 6}, {"options": b"\x01" * 4}])
def test_what_is_not_a_whole_plain_datagram_is_not_the_fabrics(
    bench: Bench, half: SwitchShare, fields: dict[str, Any]
) -> None:
    """It is forwarded like anything else, if somebody has its MAC."""
    first = half.members[0]
    made = Ether(packet(half, first, vector(bench.elements, 5)).frame())
    for name, value in fields.items():
        setattr(made[IP], name, value)
    del made[IP].chksum, made[IP].len, made[IP].ihl
    bench.expect(first.port, bytes(made), [], "no_route")
    finish(bench, half)


# ---- the same under every policy ----------------------------------------------------------------------------------

UP = {
    "up to a parent": {"above": PARENT},
    "up to a server": {"above": SERVER},
    "from shared slots": {"above": SERVER, "policy": "shared", "offset": 384},
}


def wrong_packets(
    elements: int, job: SwitchShare, sender: Member | Upstream, other: Member | Upstream
) -> list[tuple[int, Made, str]]:
    """What `sender` must not send: (port, packet, reason)."""
    good = packet(job, sender, vector(elements, 5))
    known = {sender.rank, other.rank, job.above.rank}
    packets = [
        (sender.port, packet(job, sender, vector(elements, 5), **fields), reason)
        for name, (fields, reason) in WRONG_FIELDS.items()
        if "generation" not in fields and "from a rank" not in name and fields.get("rank") not in known
    ]
    packets += [
        (sender.port, packet(job, sender, vector(elements, 5), operation=operation), "operation")
        for operation in range(1, 6)
        if operation != good.header.operation
    ]
    packets += [
        (sender.port, packet(job, sender, vector(elements, 5), rank=other.rank), "source"),
        (other.port, good, "source"),
        (sender.port, replace(good, source=(mac(sender.mac), "10.0.1.77", sender.udp_port)), "source"),
        (sender.port, replace(good, source=(mac(sender.mac), sender.address, sender.udp_port ^ 1)), "source"),
        (sender.port, replace(good, source=(mac(sender.mac), FABRIC, sender.udp_port)), "forged"),
    ]
    return packets


@pytest.mark.parametrize("kind", UP)
def test_wrong_contributions_do_not_touch_a_sum_that_goes_up(bench: Bench, kind: str) -> None:
    bench.reset()
    job = share(2, **UP[kind])
    bench.install(job)
    first, second = job.members
    vectors = [vector(bench.elements, 0), vector(bench.elements, 1)]
    bench.expect(first.port, packet(job, first, vectors[0]), [], "absorbed")
    for port, made, reason in wrong_packets(bench.elements, job, second, first):
        bench.expect(port, made, [], reason)
    made = packet(job, second, vectors[1])
    bench.expect(second.port, made, [sum_up(made, job.above, vectors, rank_up(job.above, second))], "sent_up")


@pytest.mark.parametrize("kind", UP)
def test_wrong_results_do_not_touch_a_slot_that_waits_for_one(bench: Bench, kind: str) -> None:
    bench.reset()
    job = share(2, **UP[kind])
    bench.install(job)
    vectors = [vector(bench.elements, rank) for rank in range(2)]
    for member in job.members:
        bench.target.send(member.port, packet(job, member, vectors[member.rank]).frame())
    for port, made, reason in wrong_packets(bench.elements, job, job.above, job.members[0]):
        bench.expect(port, made, [], reason)
    # It still waits, with its sum.
    again = packet(job, job.members[0], vectors[0], flags=constants.FLAG_AGAIN)
    up = sum_up(again, job.above, vectors, rank_up(job.above, job.members[0]))
    bench.expect(job.members[0].port, again, [up], "up_again")
    good = packet(job, job.above, total(vectors), of=2)
    event = "relayed" if job.policy == "shared" else "down"
    bench.expect(job.above.port, good, copies(good, job), event, replica=2)


@pytest.mark.parametrize("above", [PARENT, SERVER], ids=["parent", "server"])
def test_wrong_chunks_and_nacks_do_not_touch_a_chunk(bench: Bench, above: Upstream) -> None:
    job = share(2, above=above, policy="chunk")
    bench.install(job)
    chunk = packet(job, above, vector(bench.elements, 1))
    bench.expect(above.port, chunk, copies(chunk, job), "chunk", replica=2)
    first = job.members[0]
    for sender, other in ((above, first), (first, job.members[1])):
        for port, made, reason in wrong_packets(bench.elements, job, sender, other):
            bench.expect(port, made, [], reason)
    asked = packet(job, first, vector(bench.elements, 2))
    bench.expect(first.port, asked, [repair(asked, chunk, first)], "answered")


def test_results_that_only_a_parent_may_send(bench: Bench) -> None:
    job = share(2, above=PARENT)
    bench.install(job)
    first = job.members[0]
    forged = packet(job, PARENT, np.zeros(bench.elements, np.int32))
    bench.expect(first.port, forged, [], "source")
    bench.expect(first.port, packet(job, first, vector(bench.elements, 1), rank=PARENT.rank), [], "source")
    bench.expect(PARENT.port, packet(job, PARENT, vector(bench.elements, 1), operation=1), [], "operation")
    bench.expect(PARENT.port, packet(job, PARENT, vector(bench.elements, 1), slot=300), [], "slot")
