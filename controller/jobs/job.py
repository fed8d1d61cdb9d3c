"""Jobs, their ranks and slot pools, and ranks' requests to join."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from controller.errors import RequestError
from controller.target import Target
from hostlib.protocol import constants
from hostlib.protocol.slots import LARGEST_POOLS, SLOTS_PER_POOL

LARGEST_WORLD = 512
SECRET_BYTES = 16

# sum: the switches sum and multicast. server: they sum, a server finishes. shared: as server, in slots that jobs
# overbook. chunk: a server's chunks are multicast. peers: every rank's chunks are multicast to the others, with a slot
# pool for each rank. owners: likewise, but a rank's pool sums what the others send, for it.
POLICIES = ("sum", "server", "shared", "chunk", "peers", "owners")
WITHOUT_SERVER = ("sum", "peers", "owners")
POOL_PER_RANK = ("peers", "owners")
MOST_PRIORITY = 1000

Place = tuple[str, int]  # switch name and port number
PortState = Literal["right", "silent", "unchecked"]


@dataclass(slots=True)
class Rank:
    """A member of a job, or its server. Times are seconds of the injected clock; one UDP port per slot pool.

    Attributes:
        replicas: one per pool; 0 in the pool of its own chunks.
        nonce: what it sent with its join, from which its token follows (rank_token.py).
        progress: when its position last changed, by its heartbeats; before the first change, when it joined.
        port: whether it is at its switch port (port_check.py); silent: nothing that is sent there comes back.
        silent_since: when it first said that nothing comes back.
        refuted: it claimed an echo that the switch has not sent.
    """

    rank: int
    address: str
    udp_ports: list[int]
    mac: int | None
    switch: str
    switch_port: int
    replicas: list[int]
    heartbeat: float
    progress: float
    position: int = 0
    state: str = "joined"  # joined, lost, left
    nonce: str = field(default="", repr=False)
    port: PortState = "unchecked"
    silent_since: float | None = None
    refuted: bool = False


@dataclass(slots=True)
class Pool:
    """A range of slots with the multicast group of its results."""

    first_slot: int
    slots: int
    group: int
    offset: int = 0


@dataclass(slots=True)
class Job:
    """One life of a job on the switches.

    Attributes:
        job_id: 0 while it is queued, when it has no pools and no ports either.
        slots: of each of `pool_count` pools.
        leaves: switch name -> its replica ids under its parent, one per pool.
        kept: ports for its ranks that have yet to join, other than on ports of known hosts.
        server_kept: the same for its server.
        spare: replica ids for those ranks, and for its leaves.
        key: of the ranks' tokens.
        priority: in the queue; higher ones come first, and of the same one who came first.
        ticket: counts the jobs that were queued; 0 if it never was.
        secret: of this life, for its members only: their check words follow from it (docs/protocol.md). 32 hex digits.
    """

    name: str
    job_id: int
    epoch: int
    world_size: int
    policy: str
    pools: list[Pool]
    slots: int = SLOTS_PER_POOL
    pool_count: int = 1
    state: str = "waiting"  # queued, waiting for ranks, ready
    ranks: dict[int, Rank] = field(default_factory=dict)
    server: Rank | None = None
    leaves: dict[str, list[int]] = field(default_factory=dict)
    kept: list[Place] = field(default_factory=list)
    server_kept: Place | None = None
    spare: list[int] = field(default_factory=list)
    tenant: str = ""
    priority: int = 0
    ticket: int = 0
    secret: str = field(default_factory=lambda: secrets.token_hex(SECRET_BYTES), repr=False)
    key: str = field(default_factory=lambda: secrets.token_hex(SECRET_BYTES), repr=False)

    @property
    def everybody(self) -> list[Rank]:
        return [*self.ranks.values(), *([self.server] if self.server else [])]

    @property
    def has_server(self) -> bool:
        return self.policy not in WITHOUT_SERVER

    @property
    def members(self) -> int:
        """Ranks and server, of the complete job."""
        return self.world_size + self.has_server

    @property
    def complete(self) -> bool:
        return len(self.everybody) == self.members

    @property
    def over(self) -> bool:
        return all(rank.state != "joined" for rank in self.everybody)


class JobEntries(Protocol):
    """Installs and removes jobs' entries on the switches. Errors are SwitchError; install is all or nothing."""

    def install(self, job: Job) -> None: ...

    def remove(self, job: Job) -> None: ...


@dataclass(frozen=True, slots=True)
class Joining:
    """A request to join, of a rank or a server (rank RANK_ALL).

    Attributes:
        queue: wait in the queue if there is no room for the job; `priority` is its place there.
        tenant: on whose quota.
        nonce: a random word; with the same one a join is repeated, and gets the same token. Without one, a repetition
            needs the token.
        token: of the rank, if it has joined before.
    """

    rank: int
    world_size: int
    address: str
    udp_ports: tuple[int, ...]
    mac: int | None = None
    policy: str = "sum"
    slots: int = SLOTS_PER_POOL
    queue: bool = False
    priority: int = 0
    tenant: str = ""
    nonce: str = field(default="", repr=False)
    token: str | None = field(default=None, repr=False)

    def require_legal(self, switches: Sequence[Target]) -> None:
        """Check that the request is possible with these switches.

        Raises:
            RequestError: 422; the message says what is legal.
        """
        alone = len(switches) == 1
        largest = switches[0].ranks if alone else LARGEST_WORLD
        if not 1 <= self.world_size <= largest:
            why = f": one switch sums {largest} ranks, more need a tree" if alone else ""
            raise RequestError(422, f"world size {self.world_size} is not in 1..{largest}{why}")
        if self.rank != constants.RANK_ALL and not 0 <= self.rank < self.world_size:
            raise RequestError(
                422,
                f"rank {self.rank} is not in 0..{self.world_size - 1}, the ranks of world size {self.world_size}",
            )
        if self.policy not in POLICIES:
            raise RequestError(422, f"unknown policy {self.policy}; legal are {', '.join(POLICIES)}")
        if self.policy in WITHOUT_SERVER and self.rank == constants.RANK_ALL:
            raise RequestError(422, f"policy {self.policy} has no server; server, shared and chunk do")
        if self.policy in POOL_PER_RANK:
            self._require_pool_per_rank(min(each.ranks for each in switches))
        elif not 1 <= len(self.udp_ports) <= LARGEST_POOLS:
            raise RequestError(422, f"{len(self.udp_ports)} UDP ports: a job has 1 to {LARGEST_POOLS} pools of slots")
        if self.policy == "shared" and len(self.udp_ports) > 1:
            raise RequestError(422, "shared slots are one pool: join with one UDP port")
        largest = constants.SLOTS // len(self.udp_ports)
        if self.policy == "shared" and self.slots != SLOTS_PER_POOL:
            raise RequestError(
                422, f"{self.slots} slots: jobs of the shared policy have {SLOTS_PER_POOL}, all the same"
            )
        if not 1 <= self.slots <= largest or self.slots & (self.slots - 1):
            raise RequestError(
                422,
                f"{self.slots} slots in each of {len(self.udp_ports)} pools: must be a power of two, "
                f"and a switch has {constants.SLOTS}",
            )

    def _require_pool_per_rank(self, largest: int) -> None:
        if not 2 <= self.world_size <= largest:
            raise RequestError(
                422, f"world size {self.world_size} is not in 2..{largest}, the ranks of policy {self.policy}"
            )
        if len(self.udp_ports) != self.world_size:
            raise RequestError(
                422,
                f"{len(self.udp_ports)} UDP ports: policy {self.policy} has a pool for each of {self.world_size} ranks",
            )


def member_name(rank: int) -> str:
    """What messages call a rank."""
    return "the server" if rank == constants.RANK_ALL else f"rank {rank}"
