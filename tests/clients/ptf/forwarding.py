"""PTF's tests of control.p4 on a switch with three interfaces; docs/clients.md says how to run them."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import grpc
import ptf
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc
from ptf import testutils
from ptf.base_tests import BaseTest

DATA = Path(__file__).resolve().parents[2] / "data"
HOST, OTHER, BOTH, CONTROLLER = (f"02:00:00:00:00:0{n}" for n in (1, 2, 3, 4))
PUSH = p4rt.SetForwardingPipelineConfigRequest


class Controlled(BaseTest):
    """The primary of a switch that has just got the program."""

    def setUp(self) -> None:
        super().setUp()
        self.dataplane = ptf.dataplane_instance
        self.dataplane.flush()
        self.p4info = text_format.Parse((DATA / "control.p4info.txtpb").read_text(), p4info_pb2.P4Info())
        self.channel = grpc.insecure_channel(testutils.test_param_get("p4rt"))
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.stream = self.stub.StreamChannel(iter(self.requests.get, None))
        bid = p4rt.StreamMessageRequest()
        bid.arbitration.device_id = bid.arbitration.election_id.low = 1
        self.requests.put(bid)
        assert next(self.stream).arbitration.status.code == 0
        push = PUSH(device_id=1, action=PUSH.VERIFY_AND_COMMIT, election_id={"low": 1})
        push.config.p4info.CopyFrom(self.p4info)
        push.config.p4_device_config = (DATA / "control.json").read_bytes()
        self.stub.SetForwardingPipelineConfig(push)

    def tearDown(self) -> None:
        self.requests.put(None)
        self.stream.cancel()
        self.channel.close()
        super().tearDown()

    def p4_id(self, kind: str, alias: str) -> int:
        return next(each.preamble.id for each in getattr(self.p4info, kind) if each.preamble.alias == alias)

    def write(self, *entities: p4rt.Entity, how: int = p4rt.Update.INSERT) -> None:
        updates = [p4rt.Update(type=how, entity=entity) for entity in entities]
        self.stub.Write(p4rt.WriteRequest(device_id=1, election_id={"low": 1}, updates=updates))

    def route(self, mac: str, action: str, value: int) -> p4rt.Entity:
        entity = p4rt.Entity()
        entry = entity.table_entry
        entry.table_id = self.p4_id("tables", "destinations")
        entry.match.add(field_id=1).exact.value = bytes.fromhex(mac.replace(":", ""))
        entry.action.action.action_id = self.p4_id("actions", action)
        entry.action.action.params.add(param_id=1, value=bytes([value]))
        return entity


class Unicast(Controlled):
    def runTest(self) -> None:
        route = self.route(OTHER, "forward", 2)
        self.write(route)
        everything = p4rt.ReadRequest(device_id=1, entities=[p4rt.Entity(table_entry=p4rt.TableEntry())])
        assert [e for response in self.stub.Read(everything) for e in response.entities] == [route]
        packet = testutils.simple_udp_packet(eth_dst=OTHER, eth_src=HOST)
        testutils.send_packet(self, 1, packet)
        testutils.verify_packet(self, packet, 2)
        testutils.send_packet(self, 1, testutils.simple_udp_packet(eth_dst=BOTH, eth_src=HOST))
        testutils.verify_no_other_packets(self)


class Multicast(Controlled):
    def runTest(self) -> None:
        group = p4rt.Entity()
        written = group.packet_replication_engine_entry.multicast_group_entry
        written.multicast_group_id = 9
        for port in (2, 3):
            written.replicas.add(egress_port=port, instance=1)
        self.write(group, self.route(BOTH, "flood", 9))
        packet = testutils.simple_tcp_packet(eth_dst=BOTH, eth_src=HOST)
        testutils.send_packet(self, 1, packet)
        testutils.verify_packets(self, packet, [2, 3])


class PacketInAndOut(Controlled):
    def runTest(self) -> None:
        self.write(self.route(CONTROLLER, "punt", 7))
        packet = testutils.simple_udp_packet(eth_dst=CONTROLLER, eth_src=HOST)
        testutils.send_packet(self, 2, packet)
        received = next(self.stream).packet
        assert received.payload == bytes(packet)
        assert {each.metadata_id: each.value for each in received.metadata} == {1: b"\x02", 2: b"\x07"}
        out = p4rt.StreamMessageRequest()
        out.packet.payload = bytes(packet)
        for number, value in ((1, b"\x03"), (2, b"\x00")):
            out.packet.metadata.add(metadata_id=number, value=value)
        self.requests.put(out)
        testutils.verify_packet(self, packet, 3)


class Clone(Controlled):
    def runTest(self) -> None:
        session, values = p4rt.Entity(), p4rt.Entity()
        written = session.packet_replication_engine_entry.clone_session_entry
        written.session_id, written.packet_length_bytes = 5, 40
        written.replicas.add(egress_port=3, instance=1)
        values.value_set_entry.value_set_id = self.p4_id("value_sets", "mirrored_types")
        values.value_set_entry.members.add().match.add(field_id=1).exact.value = b"\x86\xdd"
        self.write(session, self.route(OTHER, "forward", 2))
        self.write(values, how=p4rt.Update.MODIFY)
        packet = testutils.simple_udpv6_packet(eth_dst=OTHER, eth_src=HOST)
        testutils.send_packet(self, 1, packet)
        testutils.verify_packet(self, packet, 2)
        testutils.verify_packet(self, bytes(packet)[:40], 3)
