"""A P4Runtime server in this process that keeps what it is told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from emulation.switch.p4runtime.status import RequestError
from emulation.switch.p4runtime.stream import Arbiter, Client

Update = p4runtime_pb2.Update
FULL = p4runtime_pb2.Error(canonical_code=code_pb2.RESOURCE_EXHAUSTED, message="the table is full")


class MemorySwitch(p4runtime_pb2_grpc.P4RuntimeServicer):
    """A P4Runtime server without a data plane.

    Attributes:
        entities: what is installed, serialised, in order.
        refuse_write: number of the write (from 0, counted since it was set) that is refused.
        room: for so many entities, if it is set.
        hung: set, writes wait for ever.
        cells: counter id -> index -> (packets, bytes).
    """

    def __init__(self) -> None:
        self.config = p4runtime_pb2.ForwardingPipelineConfig()
        self.pushes = 0
        self.entities: list[bytes] = []
        self.refuse_write: int | None = None
        self.room: int | None = None
        self.hung = threading.Event()
        self.cells: dict[int, dict[int, tuple[int, int]]] = {}
        self._arbiter = Arbiter(1)
        self._lock = threading.Lock()

    def StreamChannel(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        client = Client()
        self._arbiter.clients.append(client)
        context.add_callback(lambda: client.outbox.put(None))

        def listen() -> None:
            with contextlib.suppress(Exception):  # gRPC's own, when the peer has gone
                for request in requests:
                    with self._lock:
                        self._arbiter.arbitrate(client, request.arbitration)

        threading.Thread(target=listen, daemon=True).start()
        try:
            while (message := client.outbox.get()) is not None:
                yield message
        finally:
            with self._lock:
                self._arbiter.leave(client)

    def _require_primary(self, request: Any, context: grpc.ServicerContext) -> None:
        try:
            self._arbiter.require_primary(request)
        except RequestError as refused:
            context.abort(refused.code, str(refused))

    def Capabilities(self, request: Any, context: grpc.ServicerContext) -> Any:
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version="1.4.0")

    def GetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        if not self.pushes:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no pipeline config")
        return p4runtime_pb2.GetForwardingPipelineConfigResponse(config=self.config)

    def SetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._require_primary(request, context)
        self.config, self.entities = request.config, []
        self.pushes += 1
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def Write(self, request: Any, context: grpc.ServicerContext) -> Any:
        while self.hung.is_set() and context.is_active():
            time.sleep(0.01)
        self._require_primary(request, context)
        if self.refuse_write is not None:
            self.refuse_write -= 1
            if self.refuse_write < 0:
                self.refuse_write = None
                self._refuse(context, [FULL])
        errors = [self._update(update.type, update.entity) for update in request.updates]
        if any(error.canonical_code != code_pb2.OK for error in errors):
            self._refuse(context, errors)
        return p4runtime_pb2.WriteResponse()

    def _update(self, how: int, wanted: p4runtime_pb2.Entity) -> p4runtime_pb2.Error:
        entity = wanted.SerializeToString(deterministic=True)
        if how != Update.DELETE:
            if len(self.entities) == self.room:
                return FULL
            self.entities.append(entity)
        elif entity in self.entities:
            self.entities.remove(entity)
        else:
            return p4runtime_pb2.Error(canonical_code=code_pb2.NOT_FOUND, message="there is no such entry")
        return p4runtime_pb2.Error(canonical_code=code_pb2.OK)

    @staticmethod
    def _refuse(context: grpc.ServicerContext, errors: list[p4runtime_pb2.Error]) -> None:
        status = status_pb2.Status(code=code_pb2.UNKNOWN)
        for error in errors:
            status.details.add().Pack(error)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(grpc.StatusCode.UNKNOWN, "")

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        response = p4runtime_pb2.ReadResponse()
        for asked in request.entities:
            kind = asked.WhichOneof("entity")
            if kind != "counter_entry":
                for entity in map(p4runtime_pb2.Entity.FromString, self.entities):
                    if (
                        entity.WhichOneof("entity") == kind
                        and entity.table_entry.table_id == asked.table_entry.table_id
                    ):
                        response.entities.append(entity)
                continue
            for index, (packets, size) in self.cells.get(asked.counter_entry.counter_id, {}).items():
                entry = response.entities.add().counter_entry
                entry.counter_id = asked.counter_entry.counter_id
                entry.index.index = index
                entry.data.packet_count, entry.data.byte_count = packets, size
        yield response


class Running:
    """A MemorySwitch that listens; `stop` is its death."""

    def __init__(self) -> None:
        self.switch = MemorySwitch()
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(self.switch, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def stop(self) -> None:
        self.server.stop(None).wait(5)
