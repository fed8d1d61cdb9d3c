"""Roles (sections 5.2 and 15): what a role's config permits.

P4Runtime leaves the config's message open; here it is Stratum's P4RoleConfig, which is the common one. It has the P4
ids that the role writes exclusively or shares, the packet-ins that it gets, and whether it may push pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import any_pb2
from p4.v1 import p4runtime_pb2

from emulation.switch.p4runtime.status import invalid

TYPE_NAME = "P4RoleConfig"
EXCLUSIVE, SHARED, FILTER, PACKET_INS, PIPELINE = range(1, 6)
FILTER_ID, FILTER_VALUE = 1, 2
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class RoleConfig:
    """The permissions of a role. Without a config: everything.

    Attributes:
        ids: P4 ids that it may write and read; None for all.
        exclusive: those that no other role with a config may have.
        packet_filter: (metadata id, value) of the packet-ins that it gets; None for all.
    """

    ids: frozenset[int] | None = None
    exclusive: frozenset[int] = frozenset()
    packet_ins: bool = True
    packet_filter: tuple[int, bytes] | None = None
    pipeline: bool = True

    def allows(self, p4_id: int) -> bool:
        """Whether it may write and read objects of this P4 id; 0 for objects without one, such as multicast groups."""
        return self.ids is None or p4_id == 0 or p4_id in self.ids

    def receives(self, packet: p4runtime_pb2.PacketIn) -> bool:
        if not self.packet_ins or self.packet_filter is None:
            return self.packet_ins
        return any((each.metadata_id, each.value) == self.packet_filter for each in packet.metadata)


FULL_ACCESS = RoleConfig()


def parse_role(role: p4runtime_pb2.Role) -> RoleConfig:
    """Parse the config that a controller sends with its role.

    Raises:
        RequestError: it has another type, or is the default role's.
    """
    if not role.HasField("config"):
        return FULL_ACCESS
    if not role.name:
        raise invalid("the default role has full access and no config: name the role")
    kind = role.config.type_url.rpartition("/")[2].rpartition(".")[2]
    if kind != TYPE_NAME:
        raise invalid(f"a role's config is a stratum.{TYPE_NAME} here, not {role.config.type_url or 'of no type'}")
    return _parse(role.config)


def _parse(config: any_pb2.Any) -> RoleConfig:
    exclusive: set[int] = set()
    shared: set[int] = set()
    packet_ins = pipeline = False
    wanted: tuple[int, bytes] | None = None
    for number, value in _fields(config.value):
        if number in (EXCLUSIVE, SHARED):
            (exclusive if number == EXCLUSIVE else shared).update(_numbers(value))
        elif number == FILTER and isinstance(value, bytes):
            parts = dict(_fields(value))
            wanted = (parts.get(FILTER_ID, 0), parts.get(FILTER_VALUE, b""))
        elif number == PACKET_INS:
            packet_ins = bool(value)
        elif number == PIPELINE:
            pipeline = bool(value)
    return RoleConfig(frozenset(exclusive | shared), frozenset(exclusive), packet_ins, wanted, pipeline)


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field of an encoded message: no package has this message's class."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
        elif kind == BYTES:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            value, at = data[at : at + size], at + size
        else:
            raise invalid(f"the role's config is not a {TYPE_NAME}")
        yield key >> 3, value


def _numbers(value: Any) -> list[int]:
    """Decode a repeated number: packed or one by one."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        each, at = _varint(value, at)
        found.append(each)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise invalid(f"the role's config is not a {TYPE_NAME}")


def p4_id(entity: p4runtime_pb2.Entity) -> int:
    """The P4 id of an entity's object; 0 if it has none, and for a wildcard."""
    kind = entity.WhichOneof("entity")
    if kind in ("direct_counter_entry", "direct_meter_entry"):
        return int(getattr(entity, kind).table_entry.table_id)
    field = ID_FIELDS.get(kind)
    return int(getattr(getattr(entity, kind), field)) if field is not None else 0


ID_FIELDS = {
    "table_entry": "table_id",
    "action_profile_member": "action_profile_id",
    "action_profile_group": "action_profile_id",
    "meter_entry": "meter_id",
    "counter_entry": "counter_id",
    "value_set_entry": "value_set_id",
    "register_entry": "register_id",
    "digest_entry": "digest_id",
}
