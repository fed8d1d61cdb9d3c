"""The TNA program without a Tofino: its source (source.py), and the switch around it.

That is ports, replication, recirculation, and tables that P4Runtime entities are written into. What a chip adds is not
here: no stages, no timing, no compiler's back end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4rt

from controller.switches.table_entries import Names
from tests.dataplane.source import P4, Block, Entry, Node, Packet, Types, frontend, ternary


class Gress:
    """One direction: parser, control, deparser."""

    def __init__(self, types: Types, parser: Node, control: Node, deparser: Node) -> None:
        self.parser, self.control, self.deparser = (Block(each, types) for each in (parser, control, deparser))
        (_, *parsed), (*_, port) = self.parser.parameters, self.parser.parameters
        self._parsed = [types.zero(of) for _, of in parsed]
        self._rest = [types.zero(of) for _, of in self.control.parameters[len(parsed) :]]
        self._port = types.bits(port[1])

    def intrinsic(self, **fields: int) -> bytes:
        """What the hardware puts in front of each packet: the port metadata's header."""
        packet = Packet(b"", False)
        for name, width in self._port:
            packet.emit(fields.get(name, 0), width)
        return packet.whole()

    def run(self, intrinsic: bytes, frame: bytes, cut_counts: bool) -> tuple[bytes, list[dict[str, Any]]]:
        """What leaves, and the metadata behind the ports': from the parser, for the deparser, and for what is next."""
        packet = Packet(intrinsic + frame, cut_counts)
        parsed, rest = [make() for make in self._parsed], [make() for make in self._rest]
        if UNICAST in rest[-1]:
            rest[-1][UNICAST] = None  # Nowhere, until the program says so.
        rest[0]["parser_err"] = self.parser.run([packet, *parsed], len(frame))
        self.control.run([*parsed, *rest], len(frame))
        self.deparser.run([packet, *parsed[:2], rest[1]], len(frame))
        return packet.whole(), rest


UNICAST = "ucast_egress_port"
PORT_METADATA, RECIRCULATION, PASSES = bytes(8), 68, 4


class Tofino:
    """One Tofino 1 that runs the TNA program's source. Frames are without their check sequence.

    Args:
        sources: another folder than p4/, with the same tables.
        cut_counts: see Packet.
    """

    def __init__(self, elements: int, sources: Path = P4, cut_counts: bool = False) -> None:
        self.name, self.elements, self.slots, self.ranks = "tna", elements, 2048, 31
        described = (P4 / f"build/netfold-tna-{elements}.p4info.txtpb").read_text()
        self._p4info = text_format.Parse(described, p4info_pb2.P4Info())
        self.names = Names(self._p4info)
        self._cut_counts = cut_counts
        program = frontend(elements, sources)
        types, declared = Types(program), {each.name: each for each in program.objects if "name" in each}
        parts = [declared[each.expression.constructedType.path.name] for each in declared["pipe"].arguments]
        self._ingress, self._egress = Gress(types, *parts[:3]), Gress(types, *parts[3:])
        named = {**self._ingress.control.named, **self._egress.control.named}
        self._counters = {c.preamble.alias: named[c.preamble.name] for c in self._p4info.counters}
        self._actions = {a.preamble.id: a for a in self._p4info.actions}
        self._tables = {t.preamble.id: (t, named[t.preamble.name]) for t in self._p4info.tables}
        self._groups: dict[int, list[tuple[int, int]]] = {}

    def send(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        left: list[tuple[int, bytes]] = []
        arriving = [(port, frame)]
        for _ in range(PASSES):
            departing = [each for arrived in arriving for each in self.once(*arrived)]
            left += [each for each in departing if each[0] != RECIRCULATION]
            arriving = [each for each in departing if each[0] == RECIRCULATION]
        assert not arriving, "a frame that goes round in circles"
        return sorted(left, key=lambda each: each[0])

    def once(self, port: int, frame: bytes) -> Iterator[tuple[int, bytes]]:
        """Once through ingress, and through egress for each copy: (port, frame) of all that leave, also to come again."""
        intrinsic = self._ingress.intrinsic(ingress_port=port) + PORT_METADATA
        data, (_, deparsing, manager) = self._ingress.run(intrinsic, frame, self._cut_counts)
        if deparsing["drop_ctl"] & 1:
            return
        copies = self._groups.get(manager["mcast_grp_a"], [])
        if manager[UNICAST] is not None:
            copies = [(manager[UNICAST], 0), *copies]
        for to, replica in copies:
            if manager["bypass_egress"]:
                yield to, data
                continue
            intrinsic = self._egress.intrinsic(egress_port=to, egress_rid=replica, pkt_length=len(data))
            out, (_, dropping, _) = self._egress.run(intrinsic, data, self._cut_counts)
            if not dropping["drop_ctl"] & 1:
                yield to, out

    def write(self, how: int, entities: Iterable[p4rt.Entity]) -> None:
        for entity in entities:
            if entity.HasField("table_entry"):
                self._write_entry(how, entity.table_entry)
            else:
                group = entity.packet_replication_engine_entry.multicast_group_entry
                if how == p4rt.Update.DELETE:
                    del self._groups[group.multicast_group_id]
                else:
                    replicas = [(each.egress_port, each.instance) for each in group.replicas]
                    self._groups[group.multicast_group_id] = replicas

    def _write_entry(self, how: int, entry: p4rt.TableEntry) -> None:
        info, table = self._tables[entry.table_id]
        fields = {each.id: (position, each.bitwidth) for position, each in enumerate(info.match_fields)}
        tests, rank = {}, entry.priority
        for each in entry.match:
            position, width = fields[each.field_id]
            kind = each.WhichOneof("field_match_type")
            value, mask = _number(getattr(each, kind).value), (1 << width) - 1
            if kind == "ternary":
                mask = _number(each.ternary.mask)
            elif kind == "lpm":
                rank = each.lpm.prefix_len
                mask ^= mask >> rank
            elif kind != "exact":
                raise NotImplementedError(kind)
            tests[position] = ternary(value, mask)
        described = self._actions[entry.action.action.action_id]
        arguments = {each.param_id: _number(each.value) for each in entry.action.action.params}
        call = (table.actions[described.preamble.name], tuple(arguments[each.id] for each in described.params))
        match = sorted(each.SerializeToString(deterministic=True) for each in entry.match)
        table.write(how, repr((match, entry.priority)).encode(), Entry(tests, call, rank))

    def counts(self) -> dict[str, dict[int, int]]:
        counted = ("events", "egress_events")
        return {name: {i: packets for i, (packets, _) in self._counters[name].cells.items()} for name in counted}

    def traffic(self) -> dict[str, dict[int, tuple[int, int]]]:
        return {name: dict(self._counters[name].cells) for name in ("port_in", "port_out")}

    def reset(self) -> None:
        self._groups.clear()
        for gress in (self._ingress, self._egress):
            gress.control.reset()

    def close(self) -> None:
        """Nothing is held."""


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")
