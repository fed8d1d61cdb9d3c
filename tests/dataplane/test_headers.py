"""Whatever leaves the fabric is a right datagram in every header, whatever headers it came with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from controller.jobs.switch_share import SwitchShare
from hostlib.protocol import constants
from tests.dataplane.packets import PARENT, SERVER, Bench, Made, Sender, ends, mac, packet, share, vector
from tests.dataplane.scapy_layer import Netfold
from tests.dataplane.target import FABRIC, SWITCH_MAC, Frames

SHARED = {"above": SERVER, "policy": "shared", "offset": 384}
CHUNKS = {"above": SERVER, "policy": "chunk"}
# What makes a packet leave: the job, who sends to it one after the other, and the last one's event.
WAYS_OUT: dict[str, tuple[dict[str, Any], Callable[[SwitchShare], list[Sender]], str]] = {
    "a result": ({}, lambda job: [*job.members], "completed"),
    "an answer": ({}, lambda job: [*job.members, job.members[0]], "answered"),
    "a sum to a parent": ({"above": PARENT}, lambda job: [*job.members], "sent_up"),
    "a sum to a server": ({"above": SERVER}, lambda job: [*job.members], "sent_up"),
    "a sum again": ({"above": PARENT}, lambda job: [*job.members, job.members[0]], "up_again"),
    "a result from above": ({"above": PARENT}, lambda job: [*job.members, job.above], "down"),
    "a collision": (SHARED, lambda job: [job.members[0]], "collision"),
    "a result past shared slots": (SHARED, lambda job: [job.above], "relayed"),
    "a chunk": (CHUNKS, lambda job: [job.above], "chunk"),
    "a NACK": (CHUNKS, lambda job: [job.members[0]], "nack_up"),
    "a repair": (CHUNKS, lambda job: [job.above, job.members[0]], "answered"),
}
TO_ALL = ("completed", "down", "relayed", "chunk")


def strange(made: Made) -> bytes:
    """The packet as a host with other habits sends it: TTL, class of traffic, identification, UDP checksum."""
    frame = Ether(made.frame())
    frame[IP].ttl, frame[IP].tos, frame[IP].id, frame[IP].flags = 3, 0x20, 0x1234, "DF"
    del frame[IP].chksum, frame[UDP].chksum
    assert Ether(bytes(frame))[UDP].chksum != 0
    return bytes(frame)


def last_leaves(bench: Bench, way: str, flags: int) -> tuple[SwitchShare, Frames]:
    """A new job, and what leaves at the end of one way out."""
    changes, sequence, event = WAYS_OUT[way]
    bench.reset()
    job = share(2, **changes)
    bench.install(job)
    frames: Frames = []
    *before, last = sequence(job)
    for sender in before:
        bench.target.send(sender.port, strange(packet(job, sender, vector(bench.elements, 1), flags=flags)))
    with bench.counting({event: 1}, {"replica": 2} if event in TO_ALL else {}):
        frames = bench.target.send(last.port, strange(packet(job, last, vector(bench.elements, 1), flags=flags)))
    assert len(frames) == (2 if event in TO_ALL else 1)
    return job, frames


@pytest.mark.parametrize("way", WAYS_OUT)
def test_what_leaves_is_a_right_datagram(bench: Bench, way: str) -> None:
    job, frames = last_leaves(bench, way, constants.FLAG_AGAIN if way == "a collision" else 0)
    receivers = {(each.port, mac(each.mac), each.address, each.udp_port) for each in ends(job)}
    addressed = {(port, Ether(f).dst, Ether(f)[IP].dst, Ether(f)[UDP].dport) for port, f in frames}
    assert len(addressed) == len(frames)
    assert addressed <= receivers
    for _, frame in frames:
        got = Ether(frame)
        assert (got.src, got[IP].src, got[UDP].sport) == (SWITCH_MAC, FABRIC, constants.NETFOLD_UDP_PORT)
        assert (
            len(frame) == 14 + got[IP].len == 14 + 20 + got[UDP].len == 42 + constants.HEADER_BYTES + 4 * bench.elements
        )
        assert (got[IP].version, got[IP].ihl, got[IP].ttl, got[IP].frag, got[UDP].chksum) == (4, 5, 64, 0, 0)
        header = got[Netfold]
        assert (header.magic, header.version) == (constants.NETFOLD_MAGIC, constants.NETFOLD_VERSION)
        assert header.element_count == bench.elements == len(header.elements)
        checksum = got[IP].chksum
        del got[IP].chksum
        assert Ether(bytes(got))[IP].chksum == checksum


@pytest.mark.parametrize("flags", [constants.FLAG_AGAIN, 0x8000, 0xFFFF])
@pytest.mark.parametrize("way", [way for way, (*_, event) in WAYS_OUT.items() if event in (*TO_ALL, "answered")])
def test_results_and_chunks_have_no_flags(bench: Bench, way: str, flags: int) -> None:
    _, frames = last_leaves(bench, way, flags)
    assert {Ether(frame)[Netfold].flags for _, frame in frames} == {0}
