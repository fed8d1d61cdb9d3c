"""What entries a switch must have, compared with those that it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from p4.v1 import p4runtime_pb2


def difference(
    wanted: Iterable[p4runtime_pb2.Entity], found: Iterable[p4runtime_pb2.Entity]
) -> tuple[list[p4runtime_pb2.Entity], list[p4runtime_pb2.Entity]]:
    """(entities to delete, entities to insert), in an order in which a switch takes them; then it has those wanted."""
    needed = {_key(entity): entity for entity in wanted}
    there = {_key(entity): entity for entity in found}
    delete = [entity for key, entity in there.items() if key not in needed]
    # Tables' entries name groups, not the other way round.
    delete.sort(key=lambda entity: entity.HasField("packet_replication_engine_entry"))
    return delete, [entity for key, entity in needed.items() if key not in there]


def everything(table_ids: Iterable[int]) -> Iterator[p4runtime_pb2.Entity]:
    """What to ask a switch for: all entries of these tables, and all multicast groups."""
    for number in table_ids:
        yield p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry(table_id=number))
    groups = p4runtime_pb2.Entity()
    groups.packet_replication_engine_entry.multicast_group_entry.SetInParent()
    yield groups


def _key(entity: p4runtime_pb2.Entity) -> bytes:
    """What says that two are the same: no counters, nor anything else that a switch may add; in one order."""
    same = p4runtime_pb2.Entity()
    if entity.HasField("table_entry"):
        entry = entity.table_entry
        same.table_entry.table_id, same.table_entry.priority = entry.table_id, entry.priority
        same.table_entry.match.extend(sorted(entry.match, key=lambda field: field.field_id))
        same.table_entry.action.CopyFrom(entry.action)
    else:
        group = entity.packet_replication_engine_entry.multicast_group_entry
        copied = same.packet_replication_engine_entry.multicast_group_entry
        copied.multicast_group_id = group.multicast_group_id
        for replica in sorted(group.replicas, key=lambda each: (each.egress_port, each.instance)):
            copied.replicas.add(egress_port=replica.egress_port, instance=replica.instance)
    return bytes(same.SerializeToString(deterministic=True))
