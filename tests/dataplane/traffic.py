"""Random packets for jobs of every kind: what ranks, parents and servers send, what gets lost in time, and nonsense.

The same seed gives the same packets, as long as the switch answers the same.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace

import numpy as np
from p4.v1 import p4runtime_pb2 as p4rt
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from controller.jobs.switch_share import Member, SwitchShare, Upstream
from controller.switches.table_entries import Names
from hostlib.protocol import constants
from hostlib.protocol.header import Header
from tests.dataplane.packets import PARENT, SERVER, Made, ends, packet, share
from tests.dataplane.target import FABRIC, NEIGHBOUR, NEIGHBOUR_PORT, PORTS, SWITCH_MAC, Frames

SLOTS = 64  # of every pool
HOSTS, ROUTER, EVERYBODY = [f"02:00:00:01:00:{n:02x}" for n in range(1, 6)], "02:00:00:0a:0b:0c", "ff:ff:ff:ff:ff:ff"
FLOOD, NOWHERE = 4000, 4001  # multicast groups; the second does not exist
EDGES = {16: (0, 1, 2, 63, 64, 127, 255, 256, 511, 512, 0x7FFF, 0x8000, 0xFFFF), 8: (0, 1, 2, 3, 4, 5, 6, 255)}
VLANS = (b"\x81\x00", b"\x88\xa8", b"\x91\x00")  # the kernel takes these tags off a frame that a socket reads


def pools(number: int, count: int, *changes: dict) -> list[SwitchShare]:
    """A job with a pool for each of `changes`, all with the same ranks; numbers that depend on nothing else."""
    members = tuple(
        Member(
            rank,
            1 + (number + rank) % 8,
            0x0200_0100_0000 | number << 8 | rank,
            f"10.0.{number}.{rank + 1}",
            5000 + rank,
            number * 32 + rank,
        )
        for rank in range(count)
    )
    base = share(1, job_id=number, epoch=number << 16, members=members, slots=SLOTS)
    return [replace(base, group=number * 8 + n, **changes_) for n, changes_ in enumerate(changes)]


def jobs() -> list[list[SwitchShare]]:
    """Every kind, in slots of their own, but for two that share theirs."""
    shared = {"above": SERVER, "policy": "shared"}
    return [
        pools(1, 3, {"first_slot": 0}),
        pools(2, 32, {"first_slot": 64}),
        pools(3, 2, {"first_slot": 128, "above": PARENT}),
        pools(4, 3, {"first_slot": 192, "above": SERVER}, {"first_slot": 256, "above": SERVER, "policy": "chunk"}),
        pools(5, 4, {"first_slot": 320, "above": PARENT, "policy": "chunk"}),
        pools(6, 2, {"offset": 384, **shared}),
        pools(7, 3, {"offset": 385, **shared}),
    ]


def forwarding(names: Names) -> list[p4rt.Entity]:
    """Entries for what is not the fabric's."""

    def number(mac: str) -> int:
        return int(mac.replace(":", ""), 16)

    flood = p4rt.Entity()
    group = flood.packet_replication_engine_entry.multicast_group_entry
    group.multicast_group_id = FLOOD
    for port in range(1, 5):
        group.replicas.add(egress_port=port)

    def route(address: str, bits: int, action: str, **params: int) -> p4rt.Entity:
        entity = names.entry("ipv4", {}, action, params)
        match = entity.table_entry.match.add(field_id=1)
        match.lpm.value, match.lpm.prefix_len = bytes(map(int, address.split("."))), bits
        return entity

    macs = {"src_mac": number(ROUTER), "dst_mac": number(HOSTS[1])}
    return [
        names.fabric_address(FABRIC),
        *names.fabric_sources(FABRIC, {NEIGHBOUR: NEIGHBOUR_PORT}),
        flood,
        names.entry("arp", {"target_address": 0x0AFFFFFE}, "answer_arp", {"mac": number(SWITCH_MAC)}),
        *(
            names.entry("l2", {"dst_mac": number(mac)}, "l2_forward", {"port": 1 + n})
            for n, mac in enumerate(HOSTS[:3])
        ),
        names.entry("l2", {"dst_mac": number(EVERYBODY)}, "l2_flood", {"group": FLOOD}),
        names.entry("l2", {"dst_mac": number(HOSTS[3])}, "l2_flood", {"group": NOWHERE}),
        names.entry("router_mac", {"dst_mac": number(ROUTER)}, "NoAction", {}),
        route("10.1.0.0", 16, "ipv4_forward", port=4, **macs),
        route("10.1.2.0", 24, "ipv4_forward", port=5, **macs),
        route("10.1.2.128", 25, "forwarding.drop", reason=constants.DROP_NO_ROUTE),
        route("239.1.0.0", 16, "ipv4_replicate", group=FLOOD),
    ]


@dataclass
class Pool:
    """A share, and where its ranks are in their streams.

    Attributes:
        first_generation: of all slots.
        ahead: by slot: how many generations have passed.
        begun: (slot, generations that had passed) of what a right packet was for. No generation is skipped.
    """

    share: SwitchShare
    first_generation: int
    slot: int = 0
    turn: int = 0
    ahead: Counter[int] = field(default_factory=Counter)
    begun: set[tuple[int, int]] = field(default_factory=set)

    def advance(self, draw: random.Random) -> None:
        """Now and then the stream goes on, so that most sums have time to get complete."""
        if draw.random() < 0.4 / len(self.share.members):
            self.slot = draw.choice((0, 1, SLOTS - 1))
            if (self.slot, self.ahead[self.slot]) in self.begun:
                self.ahead[self.slot] += draw.choice((0, 1, 1))

    def place(self, draw: random.Random) -> dict[str, int]:
        """Mostly where the stream is, sometimes around it."""
        slot, beside = self.slot, 0
        if draw.random() < 0.2:
            slot, beside = draw.choice((0, 1, SLOTS - 1)), draw.choice((1, -1, 2, -2, 4))
        generation = self.first_generation + self.ahead[slot] + beside
        return {"slot": self.share.first_slot + slot, "generation": generation & 0xFFFFFFFF}

    def begin(self, header: Header) -> None:
        """A packet that may begin a set is under way."""
        ahead = (header.generation - self.first_generation) & 0xFFFFFFFF
        self.begun.add((header.slot - self.share.first_slot, ahead))

    def member(self, draw: random.Random) -> Member:
        """Mostly one after the other."""
        self.turn += draw.choice((1, 1, 1, 1, 0, 2))
        return self.share.members[self.turn % len(self.share.members)]


class Traffic:
    """An endless stream of (port, frame). Tell it what left the switch: parents and servers answer that.

    Args:
        whole: no frame ends in a header or before the fewest bytes of Ethernet.
    """

    def __init__(self, seed: int, elements: int, whole: bool = False) -> None:
        self.draw, self.elements, self.whole = random.Random(seed), elements, whole
        self.jobs = [[Pool(each, 0xFFFFFFF8 * (n % 2)) for each in job] for n, job in enumerate(jobs())]
        self._waiting: deque[tuple[int, bytes]] = deque(maxlen=50)
        self._past: deque[tuple[int, bytes]] = deque(maxlen=300)
        self._numbers = np.random.default_rng(seed)
        self._kinds = {
            self._turn: 45,
            self._answer: 15,
            self._from_above: 5,
            self._again: 10,
            self._wrong_field: 8,
            self._damaged: 8,
            self._between_hosts: 8,
            self._noise: 1,
        }

    def __next__(self) -> tuple[int, bytes]:
        (kind,) = self.draw.choices(list(self._kinds), list(self._kinds.values()))
        port, frame = kind()
        if frame[12:14] in VLANS:
            frame = frame[:12] + b"\x88\xb5" + frame[14:]
        self._past.append((port, frame))
        return port, frame

    def heard(self, frames: Frames) -> None:
        whole = 42 + constants.HEADER_BYTES + 4 * self.elements
        self._waiting.extend(each for each in frames if each[0] == SERVER.port and len(each[1]) >= whole)

    def renew(self) -> tuple[list[SwitchShare], list[SwitchShare]]:
        """A job ends; its next life begins in the same slots. (Both as shares.)"""
        number = self.draw.randrange(len(self.jobs))
        old = [pool.share for pool in self.jobs[number]]
        new = [replace(each, epoch=each.epoch + 1) for each in old]
        self.jobs[number] = [Pool(each, self.draw.choice((0, 0x7FFFFFFC, 0xFFFFFFFC))) for each in new]
        return old, new

    # ---- kinds of packets -----------------------------------------------------------------------------------------

    def _pool(self) -> Pool:
        pool = self.draw.choice(self.draw.choice(self.jobs))
        pool.advance(self.draw)
        return pool

    def _vector(self) -> np.ndarray:
        return self._numbers.integers(-(2**31), 2**31, self.elements, dtype=np.int64).astype(np.int32)

    def _packet(self, pool: Pool, sender: Member | Upstream, **fields: int) -> Made:
        fields = {
            **pool.place(self.draw),
            "flags": self.draw.choice((0, 0, 0, constants.FLAG_AGAIN)),
            "exponent": self.draw.randrange(4),
            "next_exponent": self.draw.randrange(1 << 32),
            **fields,
        }
        return packet(pool.share, sender, self._vector(), **fields)

    def _turn(self) -> tuple[int, bytes]:
        """A rank's own."""
        pool = self._pool()
        member = pool.member(self.draw)
        made = self._packet(pool, member)
        if made.header.operation == constants.OPERATION_CONTRIBUTION:
            pool.begin(made.header)
        return member.port, made.frame()

    def _from_above(self) -> tuple[int, bytes]:
        pool = self._pool()
        above = pool.share.above
        if above is None:
            return self._turn()
        made = self._packet(pool, above)
        if made.header.operation == constants.OPERATION_CHUNK:
            pool.begin(made.header)
        return above.port, made.frame()

    def _answer(self) -> tuple[int, bytes]:
        """What a parent or server says to what went up, sometimes."""
        if not self._waiting:
            return self._turn()
        port, frame = self._waiting[self.draw.randrange(len(self._waiting))]
        header = Header.unpack(frame[42:])
        for pool in (pool for job in self.jobs for pool in job):
            here = pool.share
            if here.above is not None and (here.job_id, here.epoch) == (header.job, header.epoch):
                where = {name: getattr(header, name) for name in ("slot", "generation", "exponent")}
                if here.first_slot <= header.slot < here.first_slot + SLOTS:
                    return port, self._packet(pool, here.above, **where, flags=0).frame()
        return self._turn()  # That life is over.

    def _again(self) -> tuple[int, bytes]:
        """Late, or twice."""
        return self.draw.choice(self._past) if self._past else self._turn()

    def _wrong_field(self) -> tuple[int, bytes]:
        """One or two fields that do not belong there, and perhaps another port, address or TTL."""
        draw, pool = self.draw, self._pool()
        sender = draw.choice(ends(pool.share))
        fields = {}
        for name in draw.sample(constants.HEADER_FIELDS, draw.choice((1, 1, 2))):
            if name in ("version", "operation"):
                fields[name] = draw.choice(EDGES[8])
            elif name in ("epoch", "generation", "next_exponent", "check"):
                fields[name] = draw.choice(
                    (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, pool.share.epoch, draw.getrandbits(32))
                )
            else:
                fields[name] = draw.choice(EDGES[16])
        made = self._packet(pool, sender, **fields)
        if draw.random() < 0.2:
            addresses = ("10.0.1.1", "10.0.2.9", "1.2.3.4", FABRIC, NEIGHBOUR)
            made = replace(made, source=(made.source[0], draw.choice(addresses), 5000))
        port = draw.choice(PORTS[:-1]) if draw.random() < 0.2 else sender.port
        return port, replace(made, ttl=draw.choice((0, 1, 2, 64, 255))).frame()

    def _damaged(self) -> tuple[int, bytes]:
        """Flipped bits, cut short, too long, lengths that lie."""
        draw, pool = self.draw, self._pool()
        sender = draw.choice(ends(pool.share))
        made = self._packet(pool, sender)
        right = 40 + 4 * self.elements
        how = draw.choice((0, 1, 2, 4)) if self.whole else draw.randrange(5)
        if how == 0:
            lengths = [right + draw.choice((-right, -right + 8, -4, -1, 0, 1, 4, 100)) for _ in range(2)]
            return sender.port, made.frame(lengths[0], 20 + lengths[1])
        if how == 1:
            return sender.port, made.frame(checksum=draw.getrandbits(16))
        frame = bytearray(made.frame())
        if how == 2:
            for _ in range(draw.randrange(1, 4)):
                bit = draw.randrange(8 * draw.choice((42, 74, len(frame))))
                frame[bit // 8] ^= 1 << bit % 8
        elif how == 3:
            del frame[draw.choice((draw.randrange(14, 80), draw.randrange(14, len(frame)))) :]
        else:
            frame += draw.randbytes(draw.randrange(1, 40))
        return sender.port, bytes(frame)

    def _between_hosts(self) -> tuple[int, bytes]:
        """ARP, L2, L3 and IP multicast, right and wrong."""
        draw = self.draw
        source, to = draw.choice(HOSTS), draw.choice([*HOSTS, ROUTER, ROUTER, ROUTER, EVERYBODY])
        ether = Ether(src=source, dst=to)
        if draw.random() < 0.2:
            arp = ARP(
                op=draw.choice((1, 1, 1, 2)), hwsrc=source, psrc="10.0.1.1", pdst=draw.choice((FABRIC, "10.0.1.2"))
            )
            frame = bytes(ether / arp)
        else:
            addresses = ("10.1.9.9", "10.1.2.9", "10.1.2.200", "10.9.9.9", "239.1.1.7", "239.2.1.1", FABRIC)
            source_address = draw.choice(("10.0.1.1",) * 8 + (FABRIC, NEIGHBOUR))
            ip = IP(src=source_address, dst=draw.choice(addresses), ttl=draw.choice((0, 1, 2, 64, 255)))
            if draw.random() < 0.1:
                ip.chksum = draw.getrandbits(16)
            if draw.random() < 0.1:
                ip.options = b"\x01" * 4
            if draw.random() < 0.1:
                ip.frag, ip.flags = draw.choice((0, 100)), "MF"
            # A chip takes the frame check sequence for the header's last byte.
            payload = Raw(draw.randbytes(draw.choice((0, 5, 32, 100) if self.whole else (0, 5, 31, 32, 100))))
            udp = UDP(sport=5000, dport=draw.choice((53, constants.NETFOLD_UDP_PORT)))
            frame = bytes(ether / ip / draw.choice((udp, udp, ICMP())) / payload)
        if draw.random() < 0.1 and not self.whole:
            frame = frame[: draw.randrange(14, len(frame))]
        return draw.choice(PORTS[:-1]), frame

    def _noise(self) -> tuple[int, bytes]:
        kinds = (b"\x08\x00", b"\x08\x06", b"\x86\xdd", b"\x88\xb5")
        frame = (
            self.draw.randbytes(12)
            + self.draw.choice(kinds)
            + self.draw.randbytes(self.draw.randrange(60 if self.whole else 0, 1400))
        )
        return self.draw.choice(PORTS[:-1]), frame
