"""What requests of the HTTP API contain."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated

from pydantic import BaseModel, Field

from controller.jobs.job import MOST_PRIORITY, Joining
from controller.jobs.switch_share import HOSTS_PER_SWITCH
from hostlib.protocol.slots import SLOTS_PER_POOL


class Join(BaseModel):
    """A rank's, or a server's, request to join.

    `address` and `udp_ports`: source of its packets and destination of its results, one port per slot pool. `mac`: only
    if hosts are not on the embedded switch's loopback ports. `mtu`: bytes of an IP packet that its interface sends, at
    most; without it, that is not checked. `policy`: see controller.jobs.job.POLICIES. `slots`: of
    each pool, a power of two; the same for all ranks of a job. `queue`: wait in the queue if there is no room for the
    job; those of a higher `priority` come first, and of the same one who came first.
    """

    model_config = {"extra": "forbid"}
    world_size: int
    address: IPv4Address
    udp_ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(min_length=1)
    mac: str | None = Field(default=None, pattern="^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$")
    mtu: int | None = Field(default=None, ge=68, le=2**32 - 1)
    policy: str = "sum"
    slots: int = SLOTS_PER_POOL
    queue: bool = False
    priority: int = Field(default=0, ge=-MOST_PRIORITY, le=MOST_PRIORITY)
    nonce: str = Field(default="", pattern="^([0-9a-f]{32,64})?$")

    def joining(self, rank: int, token: str | None, tenant: str) -> Joining:
        return Joining(
            rank,
            self.world_size,
            str(self.address),
            tuple(self.udp_ports),
            None if self.mac is None else int(self.mac.replace(":", ""), 16),
            self.policy,
            self.slots,
            self.queue,
            self.priority,
            tenant,
            nonce=self.nonce,
            token=token,
        )


class Heartbeat(BaseModel):
    """A heartbeat with the rank's position in its stream of slots.

    `echoes`: for each of its UDP ports the `rank` of the packet that came back from the switch, null if none did
    (docs/protocol.md, "Echoes").
    """

    model_config = {"extra": "forbid"}
    position: int = Field(default=0, ge=0, lt=2**63)
    echoes: list[Annotated[int, Field(ge=0, le=0xFFFF)] | None] | None = Field(
        default=None, max_length=HOSTS_PER_SWITCH
    )
