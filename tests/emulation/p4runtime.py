"""A P4Runtime client for tests, and a server in this process: calls by name, entries as keyword arguments."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc

from emulation.switch.p4runtime.pipeline import Pipeline, load_config
from emulation.switch.p4runtime.server import SwitchService, serve
from emulation.switch.ports.open_port import open_ports
from emulation.switch.ports.registry import parse_port
from hostlib.system.network_namespace import inside
from tests.conftest import ROOT

DATA = ROOT / "tests" / "data"
UPDATE = p4rt.Update
CONFIG = p4rt.SetForwardingPipelineConfigRequest
CPU_PORT = 510
WAIT_S = 5.0


def number(value: int) -> bytes:
    """A canonical bytestring."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def config(name: str) -> p4rt.ForwardingPipelineConfig:
    """tests/data/NAME as the compiler left it."""
    program, p4info = DATA / f"{name}.json", DATA / f"{name}.p4info.txtpb"
    return load_config(program.read_bytes(), p4info.read_text())


@dataclass
class Refused(Exception):
    """A call that failed: its gRPC code, its text, and the codes of the batch's updates."""

    code: grpc.StatusCode
    text: str
    codes: list[int] = field(default_factory=list)


def refused(refusal: grpc.RpcError) -> Refused:
    metadata = dict(refusal.trailing_metadata() or ())
    codes = []
    if "grpc-status-details-bin" in metadata:
        for detail in status_pb2.Status.FromString(metadata["grpc-status-details-bin"]).details:
            error = p4rt.Error()
            assert detail.Unpack(error)
            codes.append(error.canonical_code)
    return Refused(refusal.code(), refusal.details(), codes)


class Controller:
    """A P4Runtime client with its stream; what comes in is sorted by kind."""

    def __init__(self, channel: grpc.Channel, p4info: Any, election: int = 1, role: str = "") -> None:
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        self.p4info, self.election, self.role = p4info, election, role
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._in: dict[str, queue.SimpleQueue[Any]] = {}
        self.ended: queue.SimpleQueue[Refused] = queue.SimpleQueue()
        self._call = self.stub.StreamChannel(iter(self._out.get, None))
        threading.Thread(target=self._receive, daemon=True).start()

    def _queue(self, kind: str) -> queue.SimpleQueue[Any]:
        return self._in.setdefault(kind, queue.SimpleQueue())

    def _receive(self) -> None:
        try:
            for response in self._call:
                kind = response.WhichOneof("update")
                self._queue(kind).put(getattr(response, kind))
        except grpc.RpcError as error:
            self.ended.put(refused(error))

    def next(self, kind: str, wait_s: float = WAIT_S) -> Any:
        """The next stream message of a kind: arbitration, packet, digest, idle_timeout_notification or error."""
        return self._queue(kind).get(timeout=wait_s)

    def none(self, kind: str, wait_s: float = 0.2) -> bool:
        """Whether no message of a kind comes for so long."""
        try:
            self._queue(kind).get(timeout=wait_s)
        except queue.Empty:
            return True
        return False

    def send(self, **message: Any) -> None:
        self._out.put(p4rt.StreamMessageRequest(**message))

    def bid(self, election: int | None = None, device_id: int = 1, role_config: Any = None) -> None:
        """Send an arbitration update; election 0 leaves the id out."""
        self.election = self.election if election is None else election
        update = p4rt.MasterArbitrationUpdate(device_id=device_id)
        if self.election:
            update.election_id.low = self.election
        if self.role or role_config is not None:
            update.role.name = self.role
        if role_config is not None:
            update.role.config.CopyFrom(role_config)
        self.send(arbitration=update)

    def arbitrate(self, **options: Any) -> int:
        """Bid; the status code of the answer."""
        self.bid(**options)
        return int(self.next("arbitration").status.code)

    def close(self) -> None:
        self._out.put(None)
        self._call.cancel()

    # ---- calls ------------------------------------------------------------------------------------------------

    def call(self, method: Any, request: Any) -> Any:
        try:
            return method(request)
        except grpc.RpcError as error:
            raise refused(error) from None

    def write(self, how: int, *entities: Any, atomicity: int = p4rt.WriteRequest.CONTINUE_ON_ERROR) -> None:
        """Write entities, all in the same way."""
        self.batch([(how, entity) for entity in entities], atomicity)

    def batch(self, updates: list[tuple[int, Any]], atomicity: int = p4rt.WriteRequest.CONTINUE_ON_ERROR) -> None:
        request = p4rt.WriteRequest(device_id=1, role=self.role, atomicity=atomicity)
        request.election_id.low = self.election
        request.updates.extend(p4rt.Update(type=how, entity=wrap(entity)) for how, entity in updates)
        self.call(self.stub.Write, request)

    def insert(self, *entities: Any) -> None:
        self.write(UPDATE.INSERT, *entities)

    def modify(self, *entities: Any) -> None:
        self.write(UPDATE.MODIFY, *entities)

    def delete(self, *entities: Any) -> None:
        self.write(UPDATE.DELETE, *entities)

    def read(self, *entities: Any, role: str = "") -> list[Any]:
        """What a read returns, unwrapped."""
        request = p4rt.ReadRequest(device_id=1, role=role, entities=[wrap(entity) for entity in entities])
        responses = self.call(lambda r: list(self.stub.Read(r)), request)
        return [unwrap(e) for response in responses for e in response.entities]

    def push(self, action: int, pushed: p4rt.ForwardingPipelineConfig | None = None) -> None:
        request = CONFIG(device_id=1, role=self.role, action=action, config=pushed)
        request.election_id.low = self.election
        self.call(self.stub.SetForwardingPipelineConfig, request)
        if pushed is not None:
            self.p4info = pushed.p4info

    # ---- entities by name -------------------------------------------------------------------------------------

    def info(self, name: str) -> Any:
        kinds = ("tables", "actions", "action_profiles", "counters", "meters", "value_sets", "digests", "registers")
        return next(each for kind in kinds for each in getattr(self.p4info, kind) if each.preamble.alias == name)

    def id(self, name: str) -> int:
        return int(self.info(name).preamble.id)

    def action(self, name: str, *params: int) -> p4rt.Action:
        made = p4rt.Action(action_id=self.id(name))
        for i, value in enumerate(params, start=1):
            made.params.add(param_id=i, value=number(value))
        return made

    def entry(self, table: str, *match: Any, action: Any = None, **more: Any) -> p4rt.TableEntry:
        """A table entry: one FieldMatch argument per key (None for one left out), and an Action or a TableAction."""
        made = p4rt.TableEntry(table_id=self.id(table), **more)
        for i, (kind, values) in enumerate((m or ("", {}) for m in match), start=1):
            if kind:
                getattr(made.match.add(field_id=i), kind).MergeFrom(KINDS[kind](**values))
        if isinstance(action, p4rt.Action):
            made.action.action.CopyFrom(action)
        elif action is not None:
            made.action.CopyFrom(action)
        return made


KINDS = {
    "exact": p4rt.FieldMatch.Exact,
    "lpm": p4rt.FieldMatch.LPM,
    "ternary": p4rt.FieldMatch.Ternary,
    "range": p4rt.FieldMatch.Range,
    "optional": p4rt.FieldMatch.Optional,
}


def exact(value: int) -> tuple[str, dict[str, Any]]:
    return "exact", {"value": number(value)}


def lpm(value: int, prefix: int) -> tuple[str, dict[str, Any]]:
    return "lpm", {"value": number(value), "prefix_len": prefix}


def between(low: int, high: int) -> tuple[str, dict[str, Any]]:
    return "range", {"low": number(low), "high": number(high)}


def optional(value: int) -> tuple[str, dict[str, Any]]:
    return "optional", {"value": number(value)}


def wrap(entity: Any) -> p4rt.Entity:
    """Any kind of entity as p4.v1.Entity."""
    if isinstance(entity, p4rt.Entity):
        return entity
    wrapped = p4rt.Entity()
    if isinstance(entity, (p4rt.MulticastGroupEntry, p4rt.CloneSessionEntry)):
        engine = wrapped.packet_replication_engine_entry
        is_group = isinstance(entity, p4rt.MulticastGroupEntry)
        (engine.multicast_group_entry if is_group else engine.clone_session_entry).CopyFrom(entity)
        return wrapped
    kind = next(f.name for f in wrapped.DESCRIPTOR.fields if f.message_type is entity.DESCRIPTOR)
    getattr(wrapped, kind).CopyFrom(entity)
    return wrapped


def unwrap(entity: p4rt.Entity) -> Any:
    """What is in an entity, or in its packet replication entry."""
    found = getattr(entity, entity.WhichOneof("entity"))
    is_replication = isinstance(found, p4rt.PacketReplicationEngineEntry)
    return getattr(found, found.WhichOneof("type")) if is_replication else found


@dataclass(slots=True)
class Switch:
    """A P4Runtime server in this process."""

    service: SwitchService
    channel: grpc.Channel
    address: str
    controllers: list[Controller] = field(default_factory=list)

    def controller(self, election: int = 1, role: str = "") -> Controller:
        """Another controller, without arbitration; closed with the switch."""
        made = Controller(self.channel, self.service.pipeline and self.service.pipeline.config.p4info, election, role)
        self.controllers.append(made)
        return made

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """A frame through the running program; (port, frame) for each that leaves."""
        assert self.service.pipeline is not None
        return self.service.pipeline.dataplane.process(port, frame)


@contextmanager
def switch(
    program: str | None, *ports: str, cpu_port: int = CPU_PORT, namespace: str | None = None
) -> Iterator[Switch]:
    """A switch that runs tests/data/PROGRAM, with ports as `emulation switch --port` has them, opened in a network
    namespace."""
    specs = [parse_port(text) for text in ports]
    opened = open_ports(specs) if namespace is None else inside(namespace, lambda: open_ports(specs))

    def replace(new: Pipeline, old: Pipeline | None) -> None:
        if old is not None:
            old.dataplane.close()
        new.dataplane.attach(opened, None)
        new.dataplane.start()

    service = SwitchService(1, replace, cpu_port)
    if program is not None:
        service.commit(Pipeline(config(program)))
    server, port = serve(service, "127.0.0.1:0")
    running = Switch(service, grpc.insecure_channel(f"127.0.0.1:{port}"), f"127.0.0.1:{port}")
    try:
        yield running
    finally:
        for controller in running.controllers:
            controller.close()
        running.channel.close()
        server.stop(grace=0.2).wait()
        service.close()
        for each in opened:
            each.close()


def fails(code: grpc.StatusCode, call: Any, *arguments: Any, **options: Any) -> str:
    """A call must fail with this code, or its first failed update must; its text."""
    with pytest.raises(Refused) as refusal:
        call(*arguments, **options)
    found = refusal.value
    first = next((c for c in found.codes if c not in (code_pb2.OK, code_pb2.ABORTED)), None)
    assert (code.value[0] if first is not None else found.code) == (first if first is not None else code), found
    return found.text
