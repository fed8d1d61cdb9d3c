"""What the HTTP API answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from controller.events.event_log import Kind
from controller.jobs.job import PortState
from controller.switches.cables import State


class Answer(BaseModel):
    """An answer; a field that is not declared would be missing in the API's description."""

    model_config = ConfigDict(extra="forbid")


class Refusal(Answer):
    """Why a request was refused, in one line."""

    detail: str


class Identity(Answer):
    """Who answers here."""

    netfold: Literal["controller"]
    version: str


class Health(Answer):
    """That the controller and all its switches are at work."""

    status: Literal["ok"]


class Pool(Answer):
    """A range of slots on every switch of a job."""

    first_slot: int
    slots: int


class Ends(Answer):
    """Address of a member of a job, with a UDP port for each pool."""

    address: str
    udp_ports: list[int]


class FabricEndpoint(Answer):
    """Where a rank reaches the fabric."""

    address: str
    port: int


class Place(Answer):
    """A member's place. While its job is `queued` there is only its position in the queue, from 1. The first fields
    come when there is room for the job, the others when all ranks have joined, and `state` is `ready`.

    `secret` is the job's, for its members only (docs/protocol.md). `levels` counts the switches from the member's up to the
    one where the sum is taken, at least 1. `server` is only there if the job has one, and `workers`
    only for the server, and for all ranks of policies `owners` and `peers`.
    """

    state: Literal["queued", "waiting", "ready"]
    queue_position: int | None = None
    fabric: FabricEndpoint | None = None
    switch: str | None = None
    switch_port: int | None = None
    job_id: int | None = None
    epoch: int | None = None
    secret: str | None = None
    rank: int | None = None
    world_size: int | None = None
    policy: str | None = None
    pools: list[Pool] | None = None
    elements: int | None = None
    levels: int | None = None
    server: Ends | None = None
    workers: list[Ends] | None = None


class Joined(Place):
    """A member's place, with the token that its heartbeats and all its other requests need."""

    token: str


class Beaten(Answer):
    """What has become of the job, and of the check of the member's switch port: see RankStatus."""

    state: Literal["queued", "waiting", "ready"]
    port: PortState


class Ended(Answer):
    """That a job has ended."""

    state: Literal["ended"]


class Draining(Answer):
    """Whether a switch takes no new jobs, and the jobs that are still on it or below it."""

    switch: str
    draining: bool
    jobs: list[str]


class Left(Answer):
    """That a member has left."""

    state: Literal["left"]


class RankStatus(Answer):
    """A member of a job. `rank` is 65535 for a server; `position` counts the chunks of its stream.

    `port` is `right` if packets have been through the switch port, to and fro; `silent`: nothing that is sent there comes
    back; `unchecked`: not yet, or the member does not take part. `port_text` says it in words.
    """

    rank: int
    address: str
    switch: str
    switch_port: int
    last_heartbeat_s: float
    last_progress_s: float
    position: int
    state: Literal["joined", "lost", "left"]
    port: PortState
    port_text: str


class JobStatus(Answer):
    """A job and its members. `queue_position` counts from 1, and is null for a job that is not queued."""

    name: str
    tenant: str
    priority: int
    queue_position: int | None
    job_id: int
    world_size: int
    policy: str
    state: Literal["queued", "waiting", "ready"]
    pools: list[Pool]
    ranks: list[RankStatus]


class Jobs(Answer):
    """All jobs."""

    jobs: list[JobStatus]


class PortCounts(Answer):
    """What a switch has counted at a port; bytes are those of whole Ethernet frames."""

    packets_in: int
    bytes_in: int
    packets_out: int
    bytes_out: int


class SwitchStatus(Answer):
    """A switch and its counters, which are empty while it is down. `ports` has those with traffic, by number.

    A switch that is `draining` takes no new jobs; `jobs` are those on it or below it.
    """

    name: str
    parent: str | None
    p4rt: str
    program: str
    up: bool
    restarts: int
    draining: bool
    jobs: list[str]
    events: dict[str, int]
    drops: dict[str, int]
    ports: dict[str, PortCounts]


class EndOfCable(Answer):
    """A port of a switch."""

    switch: str
    port: int


class CableStatus(Answer):
    """One direction of a cable between switches; `sender` and `receiver` are its ends as the topology says.

    `crossed`: it ends elsewhere, as `found` says; `silent`: nothing comes in at a port of a cable; `unchecked`: not yet,
    or a switch is down, or has no CPU port. `text` says it in words.
    """

    sender: EndOfCable
    receiver: EndOfCable
    state: State
    found: EndOfCable | None
    text: str


class Status(Answer):
    """The fabric and its jobs. `events` and `drops` are sums over all switches; `time_s` counts from 1970."""

    version: str
    kind: Literal["embedded", "external"]
    elements: int
    slots: int
    up: bool
    time_s: float
    switches: list[SwitchStatus]
    cables: list[CableStatus]
    jobs: list[JobStatus]
    events: dict[str, int]
    drops: dict[str, int]


class SlotRange(Answer):
    """A range of slots that a job has, on every switch that it uses. Jobs of the shared policy overlap."""

    job: str
    first_slot: int
    slots: int = Field(gt=0)
    shared: bool


class Slots(Answer):
    """Which of a switch's slots are taken. `used` counts each slot once."""

    slots: int
    used: int
    ranges: list[SlotRange]


class Event(Answer):
    """Something that happened; `time_s` counts from 1970."""

    id: int
    time_s: float
    kind: Kind
    text: str
    job: str | None = None
    rank: int | None = None
    switch: str | None = None


class Events(Answer):
    """Events, oldest first; `last_id` is the id of the last one that there is."""

    events: list[Event]
    last_id: int


class EndedJob(Answer):
    """A job that is over. Times count from 1970; `positions` are those of its last heartbeats."""

    name: str
    policy: str
    world_size: int
    slots: int
    began_s: float
    ready_s: float | None
    ended_s: float
    why: str
    positions: dict[str, int]


class History(Answer):
    """Jobs that have ended, the last one first."""

    jobs: list[EndedJob]
