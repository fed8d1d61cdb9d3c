"""A share of a job as P4Runtime updates: multicast group, replicas, and membership entries with verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from controller.errors import ArtifactError
from controller.jobs.switch_share import Echo, Member, SwitchShare, Upstream
from hostlib.protocol import constants
from hostlib.protocol.addresses import CABLE_ADDRESS, SWITCH_MAC
from hostlib.protocol.slots import ECHO_SLOT

# Priorities of membership entries: more specific entries come first (docs/adr/0004).
ADMIT, WRONG_SLOT, WRONG_OPERATION, WRONG_SOURCE, WRONG_RANK, WRONG_EPOCH = 60, 50, 40, 30, 20, 10
Field = tuple[int, int]  # value, mask
BROADCAST_MAC = 0xFFFF_FFFF_FFFF
WRITTEN = ("fabric_address", "fabric_source", "arp", "l2", "replicas", "membership")
FLOOD_GROUP = 0x1000  # higher than every job's


def canonical(value: int) -> bytes:
    """The shortest bytestring of a value, as P4Runtime requires."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _source(sender: Member | Upstream | Echo) -> dict[str, Field]:
    """What shows in a packet where it comes from."""
    return {
        "ingress_port": (sender.port, 0x1FF),
        "src_addr": (int(IPv4Address(sender.address)), 0xFFFFFFFF),
        "src_port": (sender.udp_port, 0xFFFF),
    }


def _different(entities: Iterable[p4runtime_pb2.Entity]) -> list[p4runtime_pb2.Entity]:
    return list({entity.SerializeToString(deterministic=True): entity for entity in entities}.values())


class Names:
    """P4Info objects by name.

    Raises:
        ArtifactError: from each look-up, if the program lacks what the controller installs.
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

    def table_ids(self) -> list[int]:
        """Of the tables that the controller writes."""
        return [int(self._find("table", self._tables, name).preamble.id) for name in WRITTEN]

    def counter_id(self, name: str) -> int:
        return int(self._find("counter", self._counters, name).preamble.id)

    def entry(
        self, table: str, match: dict[str, Any], action: str, params: dict[str, int], priority: int = 0
    ) -> p4runtime_pb2.Entity:
        """A table entry; `match` has an int for exact fields and (value, mask) for ternary ones; masks of 0 are
        omitted.
        """
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
        """Entry that delivers packets for this IPv4 address to the fabric itself."""
        return self.entry("fabric_address", {"hdr.ipv4.dst_addr": int(IPv4Address(address))}, "to_fabric", {})

    def fabric_sources(self, address: str, others: Mapping[str, int]) -> list[p4runtime_pb2.Entity]:
        """Entries that drop what only claims to come from the fabric.

        Args:
            address: the switch's own, which nobody else sends from.
            others: fabric address of each other switch -> the port that leads there, where alone it is heard.
        """

        def entry(source: str, action: str, params: dict[str, int]) -> p4runtime_pb2.Entity:
            return self.entry("fabric_source", {"src_addr": int(IPv4Address(source))}, action, params)

        heard = [entry(other, "only_from", {"port": port}) for other, port in others.items()]
        return [entry(address, "from_nowhere", {}), *heard]

    def fabric_mac(self, address: str, mac: int) -> p4runtime_pb2.Entity:
        """Entry that answers ARP requests for this IPv4 address with this MAC."""
        return self.entry("arp", {"target_address": int(IPv4Address(address))}, "answer_arp", {"mac": mac})

    def cables(self, cpu_port: int, ports: Iterable[int]) -> list[p4runtime_pb2.Entity]:
        """Entries with which cables at these ports are checked: see controller/switches/cables.py."""

        def passed_on(match: dict[str, Field], port: int, rank: int) -> p4runtime_pb2.Entity:
            asked = {**match, "src_addr": (address, 0xFFFFFFFF), "job": (0, 0xFFFF)}
            to = {"mac": SWITCH_MAC, "address": address, "udp_port": constants.NETFOLD_UDP_PORT}
            return self.entry("membership", asked, "ask", {**to, "port": port, "rank": rank}, ADMIT)

        address = int(IPv4Address(CABLE_ADDRESS))
        entities = [self.fabric_address(CABLE_ADDRESS)]
        for port in ports:
            entities.append(passed_on({"ingress_port": (cpu_port, 0x1FF), "rank": (port, 0xFFFF)}, port, port))
            entities.append(passed_on({"ingress_port": (port, 0x1FF)}, cpu_port, port))
        return entities

    def host(self, mac: str, port: int) -> p4runtime_pb2.Entity:
        """Entry that forwards frames for this MAC address to this port."""
        return self._way(int(mac.replace(":", ""), 16), port)

    def job(self, shares: Iterable[SwitchShare]) -> list[p4runtime_pb2.Entity]:
        """Entries for all of one job's pools on one switch, but for echoes, in insertion order: senders' entries come
        last.
        """
        shares = list(shares)
        entities = [self._replica(member) for share in shares for member in share.members if member.replica]
        entities += [self._group(share) for share in shares]
        entities += [self._way(mac, port) for share in shares for mac, port in share.hosts]
        entities += [entity for share in shares for entity in self._membership(share)]
        # Pools of one job refuse the same packets with the same entries.
        return _different(entities)

    def echoes(self, shares: Iterable[SwitchShare]) -> list[p4runtime_pb2.Entity]:
        """The entries by which one job's members prove that they are at their ports, in any order."""
        return _different(self._echo(share, echo) for share in shares for echo in share.echoes)

    def flood(self, ports: Iterable[int]) -> list[p4runtime_pb2.Entity]:
        """Entry that sends broadcasts, such as ARP requests, to all of these ports but the one they came from."""
        entity = p4runtime_pb2.Entity()
        group = entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = FLOOD_GROUP
        for port in ports:
            group.replicas.add(egress_port=port, instance=0)
        return [entity, self.entry("l2", {"dst_mac": BROADCAST_MAC}, "l2_flood", {"group": FLOOD_GROUP})]

    def _way(self, mac: int, port: int) -> p4runtime_pb2.Entity:
        return self.entry("l2", {"dst_mac": mac}, "l2_forward", {"port": port})

    def _group(self, share: SwitchShare) -> p4runtime_pb2.Entity:
        entity = p4runtime_pb2.Entity()
        group = entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = share.group
        for member in share.members:
            if member.replica:
                group.replicas.add(egress_port=member.port, instance=member.replica)
        return entity

    def _replica(self, member: Member) -> p4runtime_pb2.Entity:
        params = {
            "mac": member.mac,
            "address": int(IPv4Address(member.address)),
            "udp_port": member.udp_port,
            "rank": member.rank,
        }
        return self.entry("replicas", {"egress_rid": member.replica}, "address_replica", params)

    def _membership(self, share: SwitchShare) -> Iterator[p4runtime_pb2.Entity]:
        this_job: dict[str, Field] = {"job": (share.job_id, 0xFFFF)}
        this_epoch = {**this_job, "epoch": (share.epoch, 0xFFFFFFFF)}
        yield self._refuse(this_job, WRONG_EPOCH, constants.DROP_EPOCH)
        yield self._refuse(this_epoch, WRONG_RANK, constants.DROP_RANK)
        for bit, member in enumerate(share.members):
            operation, action, params = self._from_member(share, bit, member)
            yield from self._sender(share, this_epoch, member, operation, action, params)
        if share.above is not None:
            operation, action, params = self._from_above(share)
            yield from self._sender(share, this_epoch, share.above, operation, action, params)

    def _sender(
        self,
        share: SwitchShare,
        this_epoch: dict[str, Field],
        sender: Member | Upstream,
        operation: int,
        action: str,
        params: dict[str, int],
    ) -> Iterator[p4runtime_pb2.Entity]:
        """A sender's entry, and the wider entries below it."""
        this_rank = {**this_epoch, "rank": (sender.rank, 0xFFFF)}
        source = {**this_rank, **_source(sender)}
        asked = {**source, "operation": (operation, 0xFF)}
        slots = {"slot": (share.first_slot, 0xFFFF ^ (share.slots - 1))}
        yield self._refuse(this_rank, WRONG_SOURCE, constants.DROP_SOURCE)
        yield self._refuse(source, WRONG_OPERATION, constants.DROP_OPERATION)
        yield self._refuse(asked, WRONG_SLOT, constants.DROP_SLOT)
        yield self.entry("membership", {**asked, **slots}, action, params, ADMIT)

    def _echo(self, share: SwitchShare, echo: Echo) -> p4runtime_pb2.Entity:
        """An entry that sends a NACK for a slot that there is not back to its sender, with a number as its rank."""
        asked = {
            "job": (share.job_id, 0xFFFF),
            "epoch": (share.epoch, 0xFFFFFFFF),
            "rank": (echo.rank, 0xFFFF),
            **_source(echo),
            "operation": (constants.OPERATION_NACK, 0xFF),
            "slot": (ECHO_SLOT, 0xFFFF),
        }
        back = {"port": echo.port, "mac": echo.mac, "address": int(IPv4Address(echo.address))}
        return self.entry("membership", asked, "ask", {**back, "udp_port": echo.udp_port, "rank": echo.number}, ADMIT)

    @staticmethod
    def _from_member(share: SwitchShare, bit: int, member: Member) -> tuple[int, str, dict[str, int]]:
        """(operation, action, parameters) of what a member may send."""
        bits = {"member": 1 << bit, "full": (1 << len(share.members)) - 1}
        above = share.above
        if above is None:
            return constants.OPERATION_CONTRIBUTION, "contribute", {**bits, "group": share.group}
        up = {
            "port": above.port,
            "mac": above.mac,
            "address": int(IPv4Address(above.address)),
            "udp_port": above.udp_port,
        }
        # A parent knows this switch as one rank; a server is told whose packet triggered the message.
        rank = above.rank if above.kind == "parent" else member.rank
        if share.policy == "chunk":
            return constants.OPERATION_NACK, "ask", {**up, "rank": rank}
        if share.policy == "shared":
            return constants.OPERATION_CONTRIBUTION, "contribute_shared", {**bits, **up, "offset": share.offset}
        operation = constants.OPERATION_CONTRIBUTION if above.kind == "parent" else constants.OPERATION_SUM
        return constants.OPERATION_CONTRIBUTION, "contribute_up", {**bits, **up, "operation": operation, "rank": rank}

    @staticmethod
    def _from_above(share: SwitchShare) -> tuple[int, str, dict[str, int]]:
        """(operation, action, parameters) of what the parent or server may send."""
        if share.policy == "chunk":
            return constants.OPERATION_CHUNK, "chunk_down", {"group": share.group}
        if share.policy == "shared":
            return constants.OPERATION_RESULT, "result_shared", {"group": share.group, "offset": share.offset}
        full = (1 << len(share.members)) - 1
        return constants.OPERATION_RESULT, "result_down", {"full": full, "group": share.group}

    def _refuse(self, match: dict[str, Field], priority: int, reason: int) -> p4runtime_pb2.Entity:
        return self.entry("membership", match, "refuse", {"reason": reason}, priority)
