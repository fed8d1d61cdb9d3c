"""The packet replication engine: multicast groups and clone sessions (section 9.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import grpc
from p4.v1 import p4runtime_pb2

from emulation.switch.p4runtime.context import DELETE, INSERT, Loaded
from emulation.switch.p4runtime.status import RequestError, invalid, missing
from emulation.switch.ports.port_spec import HIGHEST_PORT

LARGEST_GROUP_ID = 65535
LARGEST_SESSION_ID = 32767
LARGEST_INSTANCE = 65535
LARGEST_CLASS = 7


class Replication:
    """Multicast groups and clone sessions by id. Writes are under the data plane's writing()."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._groups: dict[int, p4runtime_pb2.MulticastGroupEntry] = {}
        self._sessions: dict[int, p4runtime_pb2.CloneSessionEntry] = {}

    def update(self, how: int, entry: p4runtime_pb2.PacketReplicationEngineEntry) -> None:
        """Apply one update.

        Raises:
            RequestError: refused; nothing has changed.
        """
        kind = entry.WhichOneof("type")
        if kind == "multicast_group_entry":
            self._group(how, entry.multicast_group_entry)
        elif kind == "clone_session_entry":
            self._session(how, entry.clone_session_entry)
        else:
            raise invalid("a packet replication entry is a multicast group or a clone session")

    def _group(self, how: int, group: p4runtime_pb2.MulticastGroupEntry) -> None:
        """Update a multicast group (section 9.5.1)."""
        number = group.multicast_group_id
        what = f"multicast group {number}"
        _check_id(what, number, LARGEST_GROUP_ID, how, number in self._groups)
        if how == DELETE:
            self._loaded.dataplane.group(number, [])
            del self._groups[number]
            return
        self._loaded.dataplane.group(number, _replicas(what, group.replicas))
        stored = self._groups[number] = p4runtime_pb2.MulticastGroupEntry()
        stored.CopyFrom(group)

    def _session(self, how: int, session: p4runtime_pb2.CloneSessionEntry) -> None:
        """Update a clone session (section 9.5.2)."""
        number = session.session_id
        what = f"clone session {number}"
        _check_id(what, number, LARGEST_SESSION_ID, how, number in self._sessions)
        if how == DELETE:
            self._loaded.dataplane.session(number, None)
            del self._sessions[number]
            return
        replicas = _replicas(what, session.replicas)
        if session.class_of_service > LARGEST_CLASS:
            raise invalid(f"{what}: class_of_service is 0..{LARGEST_CLASS}, not {session.class_of_service}")
        if session.packet_length_bytes < 0:
            raise invalid(f"{what}: packet_length_bytes is 0 (whole packets) or more")
        self._loaded.dataplane.session(number, replicas, 0, session.packet_length_bytes)
        stored = self._sessions[number] = p4runtime_pb2.CloneSessionEntry()
        stored.CopyFrom(session)

    def read(self, wanted: p4runtime_pb2.PacketReplicationEngineEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Groups or sessions; an id of 0 is a wildcard, and without a type both are read."""
        kind = wanted.WhichOneof("type")
        if kind in (None, "multicast_group_entry"):
            for number, group in list(self._groups.items()):
                if wanted.multicast_group_entry.multicast_group_id in (0, number):
                    entity = p4runtime_pb2.Entity()
                    entity.packet_replication_engine_entry.multicast_group_entry.CopyFrom(group)
                    yield entity
        if kind in (None, "clone_session_entry"):
            for number, session in list(self._sessions.items()):
                if wanted.clone_session_entry.session_id in (0, number):
                    entity = p4runtime_pb2.Entity()
                    entity.packet_replication_engine_entry.clone_session_entry.CopyFrom(session)
                    yield entity


def _check_id(what: str, number: int, largest: int, how: int, exists: bool) -> None:
    if not 0 < number <= largest:
        raise invalid(f"{what}: ids are 1..{largest}")
    if how == INSERT and exists:
        raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"{what} exists")
    if how != INSERT and not exists:
        raise missing(f"there is no {what}")


def _replicas(what: str, messages: Iterable[p4runtime_pb2.Replica]) -> list[tuple[int, int]]:
    """Checked (egress port, instance) pairs."""
    replicas = [(_port(replica), replica.instance) for replica in messages]
    for port, instance in replicas:
        if not 0 <= port <= HIGHEST_PORT or instance > LARGEST_INSTANCE:
            raise invalid(
                f"{what}: replica (port {port}, instance {instance}): ports are "
                f"0..{HIGHEST_PORT} and instances 0..{LARGEST_INSTANCE}"
            )
    if len(set(replicas)) != len(replicas):
        raise invalid(f"{what}: a (port, instance) pair is given twice")
    return replicas


def _port(replica: p4runtime_pb2.Replica) -> int:
    """The egress port of a replica, from P4Runtime's older or newer field."""
    if replica.WhichOneof("port_kind") == "port":
        return int.from_bytes(replica.port, "big")
    return int(replica.egress_port)
