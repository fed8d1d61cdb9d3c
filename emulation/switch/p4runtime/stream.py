"""Controllers' streams: arbitration per role (section 5), and outgoing messages (section 16)."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from emulation.switch.p4runtime.roles import FULL_ACCESS, RoleConfig, parse_role
from emulation.switch.p4runtime.status import RequestError, invalid

# Messages queued for a slow controller, beyond which packets, digests and notifications (never arbitration) are lost.
MOST_WAITING = 10000


@dataclass(slots=True, eq=False)
class Client:
    """An open stream: a controller, its role and election id once they are known, and its outgoing messages.

    Attributes:
        election: None if it does not bid, or has not sent an id.
        outbox: responses; a RequestError ends the stream with that error, None without.
    """

    role: str | None = None
    election: int | None = None
    outbox: queue.SimpleQueue[p4runtime_pb2.StreamMessageResponse | RequestError | None] = field(
        default_factory=queue.SimpleQueue
    )

    def tell(self, response: p4runtime_pb2.StreamMessageResponse) -> None:
        """Queue a message that may be dropped."""
        if self.outbox.qsize() < MOST_WAITING:
            self.outbox.put(response)


@dataclass(slots=True)
class Role:
    """State of a role.

    Attributes:
        highest: the highest election id seen; after its primary has left, no lower id becomes primary.
        primary: the current primary.
        message: the config sent by its last primary, and its contents.
    """

    highest: int | None = None
    primary: Client | None = None
    message: any_pb2.Any | None = None
    config: RoleConfig = FULL_ACCESS


def election_number(message: Any) -> int | None:
    """The election id of a request or arbitration message; None if it has none."""
    if not message.HasField("election_id"):
        return None
    return int(message.election_id.high) << 64 | int(message.election_id.low)


class Arbiter:
    """Tracks the primary of each role. All calls are made under the service's lock."""

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._roles: dict[str, Role] = {}
        self.clients: list[Client] = []

    # ---- arbitration (sections 5.3 and 5.4) -------------------------------------------------------------------

    def leave(self, client: Client) -> None:
        """Remove a stream that has ended."""
        self.clients.remove(client)
        role = self._roles.get(client.role) if client.role is not None else None
        if role is not None and role.primary is client:
            role.primary = None
            self._tell_all(client.role or "")

    def arbitrate(self, client: Client, wanted: p4runtime_pb2.MasterArbitrationUpdate) -> None:
        """Handle a controller's bid, or its withdrawal.

        Raises:
            RequestError: its stream has to end.
        """
        name, election = wanted.role.name, election_number(wanted)
        if client.role is None:
            if wanted.device_id != self._device_id:
                raise RequestError(
                    grpc.StatusCode.NOT_FOUND,
                    f"there is no device {wanted.device_id} here; this is device {self._device_id}",
                )
        elif wanted.device_id != self._device_id or name != client.role:
            raise RequestError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this stream is for device {self._device_id} and role {client.role!r}: open another one",
            )
        others = [c for c in self.clients if c is not client and c.role == name]
        if election is not None and any(c.election == election for c in others):
            raise invalid(f"election id {election} is in use by another controller")
        config = parse_role(wanted.role)
        self._refuse_overlap(name, config)
        client.role, client.election = name, election
        role = self._roles.setdefault(name, Role())
        if election is not None and (role.highest is None or election >= role.highest):
            role.highest, role.primary = election, client
            role.config, role.message = config, None
            if wanted.role.HasField("config"):
                role.message = any_pb2.Any()
                role.message.CopyFrom(wanted.role.config)
            self._tell_all(name)
        elif role.primary is client:
            role.primary = None
            self._tell_all(name)
        else:
            self._tell(client, role)

    def _refuse_overlap(self, name: str, config: RoleConfig) -> None:
        for other, role in self._roles.items():
            if other == name or role.primary is None or config.ids is None or role.config.ids is None:
                continue
            both = (config.exclusive & role.config.ids) | (config.ids & role.config.exclusive)
            if both:
                raise invalid(f"P4 id {min(both):#x} is exclusive: roles {name!r} and {other!r} cannot both have it")

    def _tell_all(self, name: str) -> None:
        role = self._roles[name]
        # The others learn that they are backups before the new primary learns that it may write.
        for client in sorted((c for c in self.clients if c.role == name), key=lambda c: c is role.primary):
            self._tell(client, role)

    def _tell(self, client: Client, role: Role) -> None:
        response = p4runtime_pb2.StreamMessageResponse()
        arbitration = response.arbitration
        arbitration.device_id = self._device_id
        if client.role:
            arbitration.role.name = client.role
            if role.message is not None:
                arbitration.role.config.CopyFrom(role.message)
        if role.highest is not None:
            arbitration.election_id.high = role.highest >> 64
            arbitration.election_id.low = role.highest & (2**64 - 1)
        if client is role.primary:
            arbitration.status.code = code_pb2.OK
        elif role.primary is not None:
            arbitration.status.code = code_pb2.ALREADY_EXISTS
            arbitration.status.message = "another controller is primary"
        else:
            arbitration.status.code = code_pb2.NOT_FOUND
            arbitration.status.message = "there is no primary"
        client.outbox.put(response)

    # ---- permissions ------------------------------------------------------------------------------------------------

    def require_primary(self, request: Any) -> RoleConfig:
        """Check that a request comes from its role's primary; returns the role's config.

        Raises:
            RequestError: it does not.
        """
        role, election = self._roles.get(request.role), election_number(request)
        if role is None or role.primary is None or election is None or role.primary.election != election:
            whose = f" of role {request.role!r}" if request.role else ""
            raise RequestError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"only the primary controller{whose} may do this: its stream must be open, with this election id",
            )
        return role.config

    def config(self, name: str) -> RoleConfig:
        """The config of a role, as sent by its last primary.

        Raises:
            RequestError: there has been no such role.
        """
        if name not in self._roles:
            if not name:
                return FULL_ACCESS
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"no controller has had the role {name!r}")
        return self._roles[name].config

    def is_primary(self, client: Client) -> bool:
        return client.role is not None and self._roles[client.role].primary is client

    def primaries(self) -> Iterator[tuple[Client, RoleConfig]]:
        """The primary of each role that has one, with the role's config."""
        for role in self._roles.values():
            if role.primary is not None:
                yield role.primary, role.config

    def tell_primaries(
        self, response: p4runtime_pb2.StreamMessageResponse, concerns: Callable[[RoleConfig], bool]
    ) -> None:
        """Send a message that may be dropped to the primaries of the roles that it concerns."""
        for client, config in self.primaries():
            if concerns(config):
                client.tell(response)


def stream_error(refused: RequestError, request: p4runtime_pb2.StreamMessageRequest) -> Any:
    """The answer to a stream message that could not be handled (section 16.6); the stream stays open."""
    response = p4runtime_pb2.StreamMessageResponse()
    error = response.error
    error.canonical_code, error.message, error.space = refused.code.value[0], str(refused), "netfold"
    kind = request.WhichOneof("update")
    if kind == "packet":
        error.packet_out.packet_out.CopyFrom(request.packet)
    elif kind == "digest_ack":
        error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
    else:
        error.other.SetInParent()
        if kind == "other":
            error.other.other.CopyFrom(request.other)
    return response
