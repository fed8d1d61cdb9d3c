"""A job as P4Runtime updates: its multicast group, its replicas, and the membership entries with their verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from controller.errors import ArtifactError
from controller.job import Job, Rank
from hostlib import layout

# Priorities of membership entries: the more an entry says, the earlier it is asked (docs/adr/0004).
ADMIT, WRONG_SLOT, WRONG_SOURCE, WRONG_RANK, WRONG_EPOCH = 50, 40, 30, 20, 10
Field = tuple[int, int]  # value, mask


def canonical(value: int) -> bytes:
    """The shortest bytestring of a value, as P4Runtime wants it."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def host_mac(port: int) -> int:
    """The MAC that hosts on UDP ports of the embedded switch have."""
    return 0x0200_0001_0000 | port


class Names:
    """P4Info by name.

    Raises:
        ArtifactError: from each look-up, when the program lacks what the controller installs.
    """

    def __init__(self, p4info: p4info_pb2.P4Info) -> None:
        self._tables = {t.preamble.alias: t for t in p4info.tables}
        self._actions = {a.preamble.alias: a for a in p4info.actions}
        self._counters = {c.preamble.alias: c for c in p4info.counters}

    @staticmethod
    def _find(kind: str, known: dict[str, Any], name: str) -> Any:
        if name not in known:
            raise ArtifactError(f"the switch's program has no {kind} {name}: it is not netfold's")
        return known[name]

    def counter_id(self, name: str) -> int:
        return int(self._find("counter", self._counters, name).preamble.id)

    def entry(
        self, table: str, match: dict[str, Any], action: str, params: dict[str, int], priority: int = 0
    ) -> p4runtime_pb2.Entity:
        """A table entry; `match` gives an int for exact fields and (value, mask) for ternary ones, 0 masks left out."""
        info, chosen = self._find("table", self._tables, table), self._find("action", self._actions, action)
        entry = p4runtime_pb2.TableEntry(table_id=info.preamble.id, priority=priority)
        fields = {field.name: field.id for field in info.match_fields}
        for name, wanted in match.items():
            if isinstance(wanted, int):
                field = entry.match.add(field_id=fields[name])
                field.exact.value = canonical(wanted)
            elif wanted[1]:
                field = entry.match.add(field_id=fields[name])
                field.ternary.value, field.ternary.mask = canonical(wanted[0] & wanted[1]), canonical(wanted[1])
        entry.action.action.action_id = chosen.preamble.id
        for param in chosen.params:
            entry.action.action.params.add(param_id=param.id, value=canonical(params[param.name]))
        return p4runtime_pb2.Entity(table_entry=entry)

    def fabric_address(self, address: str) -> p4runtime_pb2.Entity:
        """What is sent to this IPv4 address is for the fabric itself."""
        return self.entry("fabric_address", {"hdr.ipv4.dst_addr": int(IPv4Address(address))}, "to_fabric", {})

    def job(self, job: Job) -> list[p4runtime_pb2.Entity]:
        """Everything of one job, in the order to insert it: who may send comes last."""
        group = p4runtime_pb2.Entity()
        multicast = group.packet_replication_engine_entry.multicast_group_entry
        multicast.multicast_group_id = job.group
        for rank in job.ranks.values():
            multicast.replicas.add(egress_port=rank.switch_port, instance=rank.replica)
        return [*(self._replica(rank) for rank in job.ranks.values()), group, *self._membership(job)]

    def _replica(self, rank: Rank) -> p4runtime_pb2.Entity:
        params = {
            "mac": host_mac(rank.switch_port),
            "address": int(IPv4Address(rank.address)),
            "udp_port": rank.udp_port,
            "rank": rank.rank,
        }
        return self.entry("replicas", {"egress_rid": rank.replica}, "address_replica", params)

    def _membership(self, job: Job) -> Iterator[p4runtime_pb2.Entity]:
        this_job: dict[str, Field] = {"job": (job.job_id, 0xFFFF)}
        this_epoch = {**this_job, "epoch": (job.epoch, 0xFFFFFFFF)}
        yield self._refuse(this_job, WRONG_EPOCH, layout.DROP_EPOCH)
        yield self._refuse(this_epoch, WRONG_RANK, layout.DROP_RANK)
        slots = {"slot": (job.first_slot, 0xFFFF ^ (job.slots - 1))}
        for rank in job.ranks.values():
            this_rank = {**this_epoch, "rank": (rank.rank, 0xFFFF)}
            source = {
                **this_rank,
                "ingress_port": (rank.switch_port, 0x1FF),
                "src_addr": (int(IPv4Address(rank.address)), 0xFFFFFFFF),
            }
            yield self._refuse(this_rank, WRONG_SOURCE, layout.DROP_SOURCE)
            yield self._refuse(source, WRONG_SLOT, layout.DROP_SLOT)
            params = {"member": 1 << rank.rank, "full": (1 << job.world_size) - 1, "group": job.group}
            yield self.entry("membership", {**source, **slots}, "admit", params, ADMIT)

    def _refuse(self, match: dict[str, Field], priority: int, reason: int) -> p4runtime_pb2.Entity:
        return self.entry("membership", match, "refuse", {"reason": reason}, priority)
