"""What switches have, read back from them over P4Runtime by somebody who is not their controller."""

from __future__ import annotations

from collections import Counter

import grpc
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from controller.state_file import State
from controller.topology import Switch
from tests.conftest import Fabric

READ_S = 10.0


def entries_of(fabric: Fabric) -> dict[str, Counter[str]]:
    """switch -> its entries of all tables and its multicast groups, as text without numbers of packets.

    A table's entry begins with the table's name.
    """
    state = State.read(fabric.state_dir)
    assert state is not None
    return {switch.name: _read(switch) for switch in state.topology.switches}


def _read(switch: Switch) -> Counter[str]:
    request = p4runtime_pb2.ReadRequest(device_id=switch.device_id)
    request.entities.add().table_entry.SetInParent()
    replication = request.entities.add().packet_replication_engine_entry
    replication.multicast_group_entry.SetInParent()
    with grpc.insecure_channel(switch.p4rt, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        names = _table_names(stub, switch.device_id)
        found = [entity for reply in stub.Read(request, timeout=READ_S) for entity in reply.entities]
    return Counter(_as_text(entity, names) for entity in found)


def _table_names(stub: p4runtime_pb2_grpc.P4RuntimeStub, device_id: int) -> dict[int, str]:
    request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=device_id)
    p4info: p4info_pb2.P4Info = stub.GetForwardingPipelineConfig(request, timeout=READ_S).config.p4info
    return {table.preamble.id: table.preamble.alias for table in p4info.tables}


def _as_text(entity: p4runtime_pb2.Entity, names: dict[int, str]) -> str:
    text: str = text_format.MessageToString(entity, as_one_line=True)
    return f"{names[entity.table_entry.table_id]} {text}" if entity.HasField("table_entry") else text
