"""What one switch is told of one job: one pool of slots, who sends into it, and what is above."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.protocol import constants

HOSTS_PER_SWITCH = 32


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of the job on this switch: a worker, or a leaf switch.

    Attributes:
        rank: as its packets say.
        port: of this switch.
        mac, address, udp_port: where its packets come from and results go.
        replica: its egress_rid, one of this switch's own numbers; 0 when nothing is multicast to it.
    """

    rank: int
    port: int
    mac: int
    address: str
    udp_port: int
    replica: int


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where sums, collisions and NACKs go, and where results and chunks come from.

    Attributes:
        kind: "parent" or "server"; a rank whose chunks go to the others counts as their server, and the next switch on
            the way to it as a parent.
        rank: what a leaf is to its parent; RANK_ALL under a server, its own of a rank.
    """

    kind: str
    port: int
    mac: int
    address: str
    udp_port: int
    rank: int = constants.RANK_ALL


@dataclass(frozen=True, slots=True)
class SwitchShare:
    """One pool of slots of one job, as one switch sees it.

    Attributes:
        policy: "sum" - slots of the job's own; "shared" - slots of a pool that must be claimed;
            "chunk" - a server's chunks, or a rank's, go to the members.
        first_slot, slots: an aligned power of two.
        group: multicast group, one of this switch's own numbers.
        members: in the order of their bits, at most 32.
        above: None when results are made here. "shared" has a server, "chunk" has either.
        offset: of shared slots: pool base and hash. Slots are then 0..slots - 1 in packets.
        hosts: MAC address and port of each of the job's hosts: what they send each other passes through, too.

    Raises:
        ValueError: it contradicts itself.
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

    def __post_init__(self) -> None:
        if not 1 <= len(self.members) <= HOSTS_PER_SWITCH:
            raise ValueError(f"{len(self.members)} members: a switch sums 1 to {HOSTS_PER_SWITCH}")
        if self.slots <= 0 or self.slots & (self.slots - 1) or self.first_slot % self.slots:
            raise ValueError(f"slots {self.first_slot}+{self.slots} are not an aligned power of two")
        if self.epoch == 0:
            raise ValueError("epoch 0 is nobody's")
        if self.policy not in ("sum", "shared", "chunk"):
            raise ValueError(f"no policy {self.policy}; there are sum, shared and chunk")
        if self.policy != "sum" and self.above is None:
            raise ValueError(f"policy {self.policy} needs a server above")
        if self.policy == "shared" and self.above is not None and self.above.kind != "server":
            raise ValueError("policy shared needs a server above, not a parent")
