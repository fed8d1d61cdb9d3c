"""What is not for the fabric: ARP, L2, L3, and what is dropped on the way."""

from __future__ import annotations

import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from hostlib.protocol import constants
from hostlib.protocol.framing import LEGAL_ELEMENTS
from hostlib.protocol.header import Header
from tests.dataplane.packets import Bench, packet, share, vector
from tests.dataplane.target import FABRIC, SWITCH_MAC

HOST, OTHER, GROUP = "02:00:00:01:00:01", "02:00:00:01:00:02", 77
ROUTER, EVERYBODY = "02:00:00:0a:0b:0c", "ff:ff:ff:ff:ff:ff"


def number(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


def entry(bench: Bench, table: str, key: str, value: int, action: str, **params: int) -> p4rt.Entity:
    return bench.target.names.entry(table, {key: value}, action, params)


def route(bench: Bench, address: str, bits: int, action: str, **params: int) -> p4rt.Entity:
    """An LPM entry."""
    entity = bench.target.names.entry("ipv4", {}, action, params)
    match = entity.table_entry.match.add(field_id=1)
    match.lpm.value, match.lpm.prefix_len = bytes(map(int, address.split("."))), bits
    return entity


def flood(*ports: int) -> p4rt.Entity:
    entity = p4rt.Entity()
    group = entity.packet_replication_engine_entry.multicast_group_entry
    group.multicast_group_id = GROUP
    for port in ports:
        group.replicas.add(egress_port=port)
    return entity


@pytest.fixture
def routed(bench: Bench) -> Bench:
    bench.install_entities(
        [
            flood(1, 2, 3),
            entry(bench, "arp", "target_address", 0x0AFFFFFE, "answer_arp", mac=number(SWITCH_MAC)),
            entry(bench, "l2", "dst_mac", number(OTHER), "l2_forward", port=2),
            entry(bench, "l2", "dst_mac", number(EVERYBODY), "l2_flood", group=GROUP),
            entry(bench, "router_mac", "dst_mac", number(ROUTER), "NoAction"),
            route(bench, "10.1.0.0", 16, "ipv4_forward", port=4, src_mac=number(ROUTER), dst_mac=number(OTHER)),
            route(bench, "10.1.2.0", 24, "ipv4_forward", port=5, src_mac=number(ROUTER), dst_mac=number(HOST)),
            route(bench, "10.1.3.3", 32, "forwarding.drop", reason=constants.DROP_NO_ROUTE),
            route(bench, "239.1.1.0", 24, "ipv4_replicate", group=GROUP),
        ]
    )
    return bench


def test_arp_for_the_fabric_is_answered(routed: Bench) -> None:
    asked = Ether(src=HOST, dst=EVERYBODY) / ARP(op=1, hwsrc=HOST, psrc="10.0.1.1", pdst=FABRIC)
    answer = Ether(src=SWITCH_MAC, dst=HOST) / ARP(op=2, hwsrc=SWITCH_MAC, psrc=FABRIC, hwdst=HOST, pdst="10.0.1.1")
    routed.expect(1, bytes(asked), [(1, bytes(answer))])


def test_other_arp_is_flooded_but_not_back(routed: Bench) -> None:
    asked = bytes(Ether(src=HOST, dst=EVERYBODY) / ARP(op=1, hwsrc=HOST, psrc="10.0.1.1", pdst="10.0.1.2"))
    routed.expect(1, asked, [(2, asked), (3, asked)], reflected=1)
    routed.expect(6, asked, [(1, asked), (2, asked), (3, asked)])


def test_frames_are_switched_by_mac(routed: Bench) -> None:
    frame = bytes(Ether(src=HOST, dst=OTHER, type=0x88B5) / Raw(b"anything" * 8))
    routed.expect(1, frame, [(2, frame)])
    unknown = bytes(Ether(src=HOST, dst="02:00:00:01:00:99", type=0x88B5) / Raw(b"anything" * 8))
    routed.expect(1, unknown, [], "no_route")


HERE = IP(src="10.0.1.1", dst="10.0.1.2")
SWITCHED = {
    "a wrong IPv4 checksum": HERE / UDP(dport=53) / Raw(b"damaged on the way here"),
    "a fragment": IP(src="10.0.1.1", dst="10.0.1.2", frag=100, flags="MF") / Raw(b"f" * 64),
    "TTL 1": IP(src="10.0.1.1", dst="10.0.1.2", ttl=1) / UDP(dport=53) / Raw(b"t" * 20),
    "options": IP(src="10.0.1.1", dst="10.0.1.2", options=b"\x01" * 4) / UDP(dport=53),
    "a short datagram to the protocol's port": HERE / UDP(dport=constants.NETFOLD_UDP_PORT) / Raw(b"short"),
    **{
        f"a header without its {size} elements": HERE
        / UDP(dport=constants.NETFOLD_UDP_PORT)
        / Raw(Header(element_count=size).pack())
        for size in LEGAL_ELEMENTS
    },
    "IPv6": IPv6(dst="fd00::2") / UDP(dport=constants.NETFOLD_UDP_PORT) / Raw(b"six"),
    "an ARP reply": ARP(op=2, hwsrc=HOST, psrc="10.0.1.1", pdst=FABRIC),
    "nothing known": Raw(b"0123456789" * 6),
}
SWITCHED["a wrong IPv4 checksum"].chksum = 0x1234


@pytest.mark.parametrize("what", SWITCHED)
def test_what_is_switched_is_not_touched(routed: Bench, what: str) -> None:
    """Whatever is wrong with it: that is for its receiver to find."""
    for mac, leaves in ((OTHER, [2]), (EVERYBODY, [2, 3])):
        frame = bytes(Ether(src=HOST, dst=mac) / SWITCHED[what])
        routed.expect(1, frame, [(port, frame) for port in leaves], **({"reflected": 1} if mac == EVERYBODY else {}))


def ip(destination: str, ttl: int = 9, mac: str = ROUTER, **fields: int) -> Ether:
    return Ether(src=HOST, dst=mac) / IP(src="10.0.1.1", dst=destination, ttl=ttl, **fields) / UDP() / Raw(b"x" * 30)


@pytest.mark.parametrize(("destination", "port", "mac"), [("10.1.9.9", 4, OTHER), ("10.1.2.9", 5, HOST)])
def test_packets_are_routed_by_the_longest_prefix(routed: Bench, destination: str, port: int, mac: str) -> None:
    sent = ip(destination)
    leaves = ip(destination, ttl=8)
    leaves[Ether].src, leaves[Ether].dst = ROUTER, mac
    routed.expect(1, bytes(sent), [(port, bytes(leaves))])


def identified(ttl: int, checksum: int) -> Ether:
    """A routed packet, with the identification that makes its IPv4 header's checksum this one."""
    unidentified = IP(bytes(ip("10.1.9.9", ttl, id=0)[IP])).chksum
    identification = (unidentified - checksum) % 0xFFFF
    made = Ether(bytes(ip("10.1.9.9", ttl, id=identification)))
    assert made[IP].chksum == checksum
    return made


@pytest.mark.parametrize("checksum", [0, 1, 0xFFFE])
def test_checksums_of_every_kind_are_computed(routed: Bench, checksum: int) -> None:
    """Also the 0 that is 0xffff in other arithmetic: of what arrives, and of what leaves."""
    for sent in (identified(9, checksum), ip("10.1.9.9", 9, id=identified(8, checksum).id)):
        leaves = ip("10.1.9.9", 8, id=sent.id)
        leaves[Ether].src, leaves[Ether].dst = ROUTER, OTHER
        routed.expect(1, bytes(sent), [(4, bytes(leaves))])


def test_0xffff_for_a_checksum_of_0(routed: Bench) -> None:
    """No sender computes it (RFC 1624). A chip adds all up, as RFC 1071 says, and takes it; others compare with theirs."""
    sent = identified(9, 0)
    leaves = ip("10.1.9.9", 8, id=sent.id)
    leaves[Ether].src, leaves[Ether].dst = ROUTER, OTHER
    sent[IP].chksum = 0xFFFF
    if routed.target.name in ("tna", "tofino"):
        routed.expect(1, bytes(sent), [(4, bytes(leaves))])
    else:
        routed.expect(1, bytes(sent), [], "checksum")


ROUTED = {
    "ICMP": ({}, ICMP() / Raw(b"ping")),
    "a later fragment": ({"frag": 100, "flags": "MF"}, Raw(b"f" * 64)),
    "a short datagram to the protocol's port": ({}, UDP(dport=constants.NETFOLD_UDP_PORT) / Raw(b"short")),
}


@pytest.mark.parametrize(("destination", "ports"), [("10.1.9.9", [4]), ("239.1.1.7", [2, 3])])
@pytest.mark.parametrize("what", ROUTED)
def test_what_is_routed_leaves_with_a_right_checksum(
    routed: Bench, what: str, destination: str, ports: list[int]
) -> None:
    fields, payload = ROUTED[what]
    sent, leaves = (
        Ether(src=HOST, dst=ROUTER) / IP(src="10.0.1.1", dst=destination, ttl=ttl, **fields) / payload for ttl in (9, 8)
    )
    if destination == "10.1.9.9":
        leaves[Ether].src, leaves[Ether].dst = ROUTER, OTHER
    routed.expect(
        1, bytes(sent), [(port, bytes(leaves)) for port in ports], **({} if ports == [4] else {"reflected": 1})
    )


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (bytes(ip("10.9.9.9")), "no_route"),
        (bytes(ip("10.1.3.3")), "no_route"),
        (bytes(ip("10.1.9.9", ttl=1)), "ttl"),
        (bytes(ip("10.1.9.9", ttl=0)), "ttl"),
        (bytes(ip("10.1.9.9", chksum=0x1234)), "checksum"),
        (bytes(ip("10.1.9.9", options=b"\x01" * 4)), "options"),
        (bytes(ip("239.1.1.7", options=b"\x01" * 4)), "options"),
        (bytes(ip("239.1.1.7", chksum=0x1234)), "checksum"),
        (bytes(ip("239.1.1.7", ttl=1)), "ttl"),
        (bytes(ip("239.9.9.9")), "no_route"),
        (bytes(ip("10.1.9.9"))[:30], "parser"),
        (bytes(ip("10.1.9.9"))[:38], "parser"),
        (bytes(Ether(src=HOST, dst=OTHER) / ARP())[:40], "parser"),
    ],
    ids=[
        *("no prefix", "a prefix that drops", "ttl 1", "ttl 0", "checksum", "options", "options to a group"),
        *("checksum to a group", "ttl 1 to a group", "no group", "short IPv4", "short UDP", "short ARP"),
    ],
)
def test_what_cannot_be_routed(routed: Bench, frame: bytes, reason: str) -> None:
    routed.expect(1, frame, [], reason)


@pytest.mark.parametrize("checksum", [0x0000, 0x0100, 0xFE00, 0xFEFE, 0xFEFF, 0xFF00, 0xFF01, 0xFFFE])
def test_a_routers_checksum_carries(routed: Bench, checksum: int) -> None:
    """Whatever it was before: a sum in one's complement."""
    sent = ip("10.1.9.9", id=0)
    sent[IP].id = (Ether(bytes(sent))[IP].chksum - checksum) % 0xFFFF
    assert Ether(bytes(sent))[IP].chksum == checksum
    leaves = sent.copy()
    leaves[Ether].src, leaves[Ether].dst, leaves[IP].ttl = ROUTER, OTHER, 8
    routed.expect(1, bytes(sent), [(4, bytes(leaves))])


def test_ip_multicast_is_replicated_but_not_back(routed: Bench) -> None:
    sent, leaves = ip("239.1.1.7", mac="01:00:5e:01:01:07"), ip("239.1.1.7", ttl=8, mac="01:00:5e:01:01:07")
    routed.expect(3, bytes(sent), [(1, bytes(leaves)), (2, bytes(leaves))], reflected=1)


def test_options_and_other_protocols_are_just_forwarded(routed: Bench) -> None:
    for frame in (
        bytes(Ether(src=HOST, dst=OTHER) / IP(dst="10.0.1.2") / ICMP()),
        bytes(Ether(src=HOST, dst=OTHER) / IP(dst="10.0.1.2", options=b"\x01" * 4) / UDP(dport=4793)),
        bytes(Ether(src=HOST, dst=OTHER) / IP(dst=FABRIC) / UDP(dport=53) / Raw(b"y" * 40)),
    ):
        routed.expect(1, frame, [(2, frame)])


def test_the_protocol_between_hosts_is_not_the_fabrics(routed: Bench) -> None:
    """What is addressed to another host passes, whatever it looks like."""
    job = share(2)
    routed.install(job)
    made = packet(job, job.members[0], vector(routed.elements, 1))
    frame = bytes(Ether(src=HOST, dst=OTHER))[:12] + made.frame()[12:30] + bytes([10, 0, 1, 2]) + made.frame()[34:]
    other = Ether(frame)
    del other[IP].chksum
    routed.expect(1, bytes(other), [(2, bytes(other))])


def test_a_group_that_is_not_there_swallows_the_frame(routed: Bench) -> None:
    mac = "02:00:00:01:00:55"
    routed.install_entities([entry(routed, "l2", "dst_mac", number(mac), "l2_flood", group=GROUP + 1)])
    routed.expect(1, bytes(Ether(src=HOST, dst=mac, type=0x88B5) / Raw(b"lost" * 20)), [])
