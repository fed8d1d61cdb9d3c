"""Jobs and their packets: how to make them, what is expected to leave, and what is counted."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from p4.v1 import p4runtime_pb2 as p4rt
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from controller.jobs.switch_share import Member, SwitchShare, Upstream
from hostlib.protocol import constants
from hostlib.protocol.header import Header
from tests.checks import checks
from tests.dataplane.scapy_layer import Netfold
from tests.dataplane.target import (
    DELETE,
    FABRIC,
    INSERT,
    NEIGHBOUR,
    NEIGHBOUR_PORT,
    SWITCH_MAC,
    Frames,
    Target,
)

ABOVE_PORT, ABOVE_ADDRESS, ABOVE_MAC = 9, "10.0.9.9", 0x0200_0009_0909
PARENT = Upstream("parent", ABOVE_PORT, ABOVE_MAC, ABOVE_ADDRESS, constants.NETFOLD_UDP_PORT, 0x8002)
SERVER = Upstream("server", ABOVE_PORT, ABOVE_MAC, ABOVE_ADDRESS, 7000)
Sender = Member | Upstream
RANKS = 512  # of every job, for its check words: no job has more, so sums of words never wrap
_numbers = itertools.count(1)


def mac(number: int) -> str:
    return ":".join(f"{byte:02x}" for byte in number.to_bytes(6, "big"))


def members(count: int, ports: Sequence[int] = range(1, 9)) -> tuple[Member, ...]:
    """Ranks 0..count-1, spread over the ports."""
    return tuple(
        Member(
            rank,
            ports[rank % len(ports)],
            0x0200_0001_0000 | rank,
            f"10.0.1.{rank + 1}",
            5000 + rank,
            next(_numbers) % 1023 + 1,
        )
        for rank in range(count)
    )


def share(count: int = 3, **changes: Any) -> SwitchShare:
    """A job of its own: another id, epoch, group and replicas than any before."""
    number = next(_numbers)
    base = SwitchShare(number % 60000 + 1, 10_000 + number, 0, 128, number % 4000 + 1, members(count))
    return replace(base, **changes)


def vector(elements: int, seed: int) -> np.ndarray:
    """int32, any value: sums wrap as the switch's do."""
    draw = np.random.default_rng(seed)
    return draw.integers(-(2**31), 2**31, elements, dtype=np.int64).astype(np.int32)


def total(vectors: Sequence[np.ndarray]) -> np.ndarray:
    return np.sum(np.stack(vectors).astype(np.int64), axis=0).astype(np.uint32).view(np.int32)


@dataclass(frozen=True, slots=True)
class Made:
    """A packet before it is bytes: header fields and elements, from where to where."""

    header: Header
    elements: np.ndarray
    source: tuple[str, str, int]  # MAC, address, UDP port
    destination: tuple[str, str, int]
    ttl: int = 64

    def frame(self, udp_length: int | None = None, ip_length: int | None = None, checksum: int | None = None) -> bytes:
        fields = {name: getattr(self.header, name) for name in constants.HEADER_FIELDS}
        return bytes(
            Ether(src=self.source[0], dst=self.destination[0])
            / IP(src=self.source[1], dst=self.destination[1], ttl=self.ttl, id=0, len=ip_length, chksum=checksum)
            / UDP(sport=self.source[2], dport=self.destination[2], chksum=0, len=udp_length)
            / Netfold(**fields, elements=self.elements.tolist())
        )


def ends(job: SwitchShare) -> tuple[Sender, ...]:
    """Everybody who sends to the switch for this job."""
    return (*job.members, *([job.above] if job.above is not None else []))


FABRIC_END = (SWITCH_MAC, FABRIC, constants.NETFOLD_UDP_PORT)


def end(sender: Sender) -> tuple[str, str, int]:
    return mac(sender.mac), sender.address, sender.udp_port


def packet(job: SwitchShare, sender: Sender, elements: np.ndarray, /, of: int = 1, **fields: int) -> Made:
    """What `sender` sends to the fabric: right in everything that `fields` does not change.

    Args:
        of: how many ranks' contributions the elements are the sum of, from rank 0; 1 is the sender's.
    """
    operation = {
        ("sum", False): constants.OPERATION_CONTRIBUTION,
        ("shared", False): constants.OPERATION_CONTRIBUTION,
        ("chunk", False): constants.OPERATION_NACK,
        ("sum", True): constants.OPERATION_RESULT,
        ("shared", True): constants.OPERATION_RESULT,
        ("chunk", True): constants.OPERATION_CHUNK,
    }[job.policy, isinstance(sender, Upstream)]
    header = Header(
        operation=operation,
        job=job.job_id,
        rank=sender.rank,
        epoch=job.epoch,
        slot=job.first_slot,
        element_count=len(elements),
    )
    header = replace(header, **fields)
    if "check" not in fields:
        ranks = range(of) if of > 1 else [sender.rank % RANKS]
        header = replace(header, check=checks(RANKS, len(elements)).word(header, elements, ranks))
    return Made(header, elements, end(sender), FABRIC_END)


def forwarded(made: Made, receiver: Sender, elements: np.ndarray, check: int, **fields: int) -> Made:
    """What the switch makes of a packet for a receiver: `made`'s header, with what is said here."""
    header = replace(made.header, check=check, rank=receiver.rank, **fields)
    return Made(header, elements, FABRIC_END, end(receiver))


@dataclass
class Bench:
    """A target, the jobs on it, and what it has counted."""

    target: Target
    _jobs: list[list[p4rt.Entity]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = self.target.names
        self._fabric = [names.fabric_address(FABRIC), *names.fabric_sources(FABRIC, {NEIGHBOUR: NEIGHBOUR_PORT})]
        self.target.write(INSERT, self._fabric)

    def reset(self) -> None:
        """The same on a target that begins anew: slots that nobody has owned, counters at 0."""
        self.clear()
        self.target.reset()
        self.target.write(INSERT, self._fabric)

    @property
    def elements(self) -> int:
        return self.target.elements

    def install(self, *shares: SwitchShare) -> None:
        self.install_entities(self.target.names.job(shares))

    def install_entities(self, entities: list[p4rt.Entity]) -> None:
        self._jobs.append(entities)
        self.target.write(INSERT, entities)

    def remove_last(self) -> None:
        self.target.write(DELETE, reversed(self._jobs.pop()))

    def clear(self) -> None:
        while self._jobs:
            self.remove_last()
        self.target.write(DELETE, self._fabric)

    @contextmanager
    def counting(self, events: dict[str, int], egress: dict[str, int] | None = None) -> Iterator[None]:
        """Exactly these are counted inside: names as in layout.EVENTS and layout.DROPS."""
        names = {index: name for name, index in [*constants.EVENTS.items(), *constants.DROPS.items()]}
        before = self.target.counts()
        yield
        after = self.target.counts()
        for counter, expected in (("events", events), ("egress_events", egress or {})):
            grown = Counter(after[counter])
            grown.subtract(before[counter])
            assert {names[i]: n for i, n in grown.items() if n} == expected, counter

    def expect(
        self, port: int, sent: Made | bytes, leaves: Sequence[tuple[int, Made | bytes]], *events: str, **egress: int
    ) -> None:
        """Send one packet; exactly these leave, byte for byte, and exactly these are counted."""
        with self.counting(dict.fromkeys(events, 1), egress):
            got = self.target.send(port, _bytes(sent))
        assert _shown(got) == _shown([(number, _bytes(each)) for number, each in leaves])

    def answers(self, port: int, sent: Made) -> list[tuple[int, Packet]]:
        """What leaves, dissected."""
        return [(number, Ether(frame)) for number, frame in self.target.send(port, sent.frame())]


def _bytes(made: Made | bytes) -> bytes:
    return made if isinstance(made, bytes) else made.frame()


def _shown(frames: Frames) -> list[tuple[int, str]]:
    """Frames so that a failure can be read: headers as hex, the rest as a digest. Replicas come in any order."""
    return sorted((port, f"{frame[:106].hex(' ', 4)} {len(frame)} {zlib.crc32(frame):08x}") for port, frame in frames)


def codes(*numbers: int) -> list[int]:
    """next_exponent fields."""
    return [checks(RANKS, 1).next_word(number) for number in numbers]


def added_words(header: Header, vectors: Sequence[np.ndarray]) -> int:
    """The word of a sum of contributions of ranks 0, 1, ... with this header: a switch adds words as they are."""
    words = [checks(RANKS, len(each)).word(header, each, [rank]) for rank, each in enumerate(vectors)]
    return sum(words) & 0xFFFFFFFF
