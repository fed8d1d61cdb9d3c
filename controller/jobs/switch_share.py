"""A switch's share of a job: one pool of slots, its senders, and what is above."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.protocol import constants

HOSTS_PER_SWITCH = 32


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of the job on this switch: a worker, or a leaf switch.

    Attributes:
        rank: in its packets.
        port: of this switch.
        mac, address, udp_port: source of its packets and destination of results.
        replica: its egress_rid, unique on this switch; 0 if nothing is multicast to it.
    """

    rank: int
    port: int
    mac: int
    address: str
    udp_port: int
    replica: int


@dataclass(frozen=True, slots=True)
class Upstream:
    """Destination of sums, collisions and NACKs, and source of results and chunks.

    Attributes:
        kind: "parent" or "server". A rank whose chunks go to the others counts as their server, and the next switch on
            the path to it as a parent.
        rank: a leaf's rank at its parent; RANK_ALL below a server; a source rank's own.
    """

    kind: str
    port: int
    mac: int
    address: str
    udp_port: int
    rank: int = constants.RANK_ALL


@dataclass(frozen=True, slots=True)
class Echo:
    """A UDP socket of a rank or server at a port of this switch, which proves that it is there.

    Attributes:
        port, mac, address, udp_port: where its packets come from, and where they go back to.
        number: what goes back in the place of its rank.
    """

    rank: int
    port: int
    mac: int
    address: str
    udp_port: int
    number: int


@dataclass(frozen=True, slots=True)
class SwitchShare:
    """One slot pool of one job, as one switch sees it.

    Attributes:
        policy: "sum": slots of the job's own; "shared": slots of a shared pool that must be claimed; "chunk": a
            server's, or a rank's, chunks go to the members.
        first_slot, slots: an aligned power of two.
        group: multicast group, unique on this switch.
        members: in the order of their bits, at most 32.
        above: None if results are made here. "shared" requires a server, "chunk" a server or a parent.
        offset: of shared slots: pool base and hash. Packets then carry slots 0..slots - 1.
        hosts: MAC address -> port of the job's hosts, whose messages to each other also pass through.
        echoes: of the job's ranks on this switch, and its server.

    Raises:
        ValueError: the fields contradict each other.
    """

    job_id: int
    epoch: int
    first_slot: int
    slots: int
    group: int
    members: tuple[Member, ...]
    above: Upstream | None = None
    policy: str = "sum"
    offset: int = 0
    hosts: tuple[tuple[int, int], ...] = ()
    echoes: tuple[Echo, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.members) <= HOSTS_PER_SWITCH:
            raise ValueError(f"{len(self.members)} members: a switch sums 1 to {HOSTS_PER_SWITCH}")
        if self.slots <= 0 or self.slots & (self.slots - 1) or self.first_slot % self.slots:
            raise ValueError(f"slots {self.first_slot}+{self.slots} are not an aligned power of two")
        if self.epoch == 0:
            raise ValueError("epoch 0 is reserved")
        if self.policy not in ("sum", "shared", "chunk"):
            raise ValueError(f"unknown policy {self.policy}; legal are sum, shared and chunk")
        if self.policy != "sum" and self.above is None:
            raise ValueError(f"policy {self.policy} needs a server above")
        if self.policy == "shared" and self.above is not None and self.above.kind != "server":
            raise ValueError("policy shared needs a server above, not a parent")
