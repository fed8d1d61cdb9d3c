"""The P4Runtime server: its calls, and the stream.

Source: the P4Runtime specification 1.4, section numbers in the docstrings.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from operator import methodcaller
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from emulation.errors import PortError
from emulation.switch.dataplane import TOLD_PACKET
from emulation.switch.p4runtime.context import Served
from emulation.switch.p4runtime.notifier import Notifier
from emulation.switch.p4runtime.pipeline import Pipeline
from emulation.switch.p4runtime.roles import RoleConfig, p4_id
from emulation.switch.p4runtime.status import RequestError, invalid
from emulation.switch.p4runtime.stream import Arbiter, Client, stream_error
from emulation.switch.tls import Tls

P4RUNTIME_VERSION = "1.4.0"
VERIFY = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY
VERIFY_AND_SAVE = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_SAVE
VERIFY_AND_COMMIT = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
COMMIT = p4runtime_pb2.SetForwardingPipelineConfigRequest.COMMIT
RECONCILE_AND_COMMIT = p4runtime_pb2.SetForwardingPipelineConfigRequest.RECONCILE_AND_COMMIT
# Each open stream occupies a worker thread of the server; the rest serve other calls.
WORKERS, MOST_STREAMS = 32, 24
ARBITRATION_S = 5.0  # how long a stream may be open without a word of its controller


class SwitchService(p4runtime_pb2_grpc.P4RuntimeServicer):
    """P4Runtime for one device.

    Args:
        device_id: the only one that this server accepts.
        replaced: called with a newly committed pipeline; starts its packets and stops the old one's.
        cpu_port: the port of packet-ins and packet-outs; 0 for none.
        make: a pipeline of a config that a controller pushes. Raises RequestError: it cannot run here.
    """

    def __init__(
        self,
        device_id: int,
        replaced: Callable[[Any, Any], None],
        cpu_port: int = 0,
        make: Callable[[p4runtime_pb2.ForwardingPipelineConfig], Served] = Pipeline,
    ) -> None:
        self.device_id = device_id
        self._make = make
        self.pipeline: Served | None = None
        self._cpu_port = cpu_port
        self._replaced = replaced
        self._saved: Served | None = None
        self._arbiter = Arbiter(device_id)
        self._notifier = Notifier(self._look)
        self._lock = threading.RLock()

    @property
    def streams(self) -> int:
        """Number of open controller streams."""
        return len(self._arbiter.clients)

    # ---- the stream (sections 5 and 16) -----------------------------------------------------------------------

    def StreamChannel(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        client = Client()
        with self._lock:
            full = self.streams >= MOST_STREAMS
            if not full:
                self._arbiter.clients.append(client)
        if full:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"there are {MOST_STREAMS} streams already")
        context.add_callback(lambda: client.outbox.put(None))
        threading.Thread(target=self._listen, args=(client, requests), daemon=True).start()
        try:
            while (message := self._next_message(client)) is not None:
                if isinstance(message, RequestError):
                    context.abort(message.code, str(message))
                yield message
        finally:
            with self._lock:
                self._arbiter.leave(client)

    @staticmethod
    def _next_message(client: Client) -> p4runtime_pb2.StreamMessageResponse | RequestError | None:
        """What to tell a controller next; the end for one that opens a stream and says nothing."""
        while client.role is None:
            try:
                return client.outbox.get(timeout=ARBITRATION_S)
            except queue.Empty:
                if client.role is None:
                    return RequestError(
                        grpc.StatusCode.DEADLINE_EXCEEDED, f"no arbitration came within {ARBITRATION_S:.0f} s"
                    )
        return client.outbox.get()

    def _listen(self, client: Client, requests: Iterator[Any]) -> None:
        end: RequestError | None = None
        try:
            for request in requests:
                self._message(client, request)
        except RequestError as refused:
            end = refused
        except Exception:
            # gRPC ends the iterator with an exception of its own when the peer disconnects.
            end = None
        client.outbox.put(end)

    def _message(self, client: Client, request: p4runtime_pb2.StreamMessageRequest) -> None:
        """Handle a message of a controller.

        Raises:
            RequestError: for arbitration; the stream has to end.
        """
        kind = request.WhichOneof("update")
        with self._lock:
            if kind == "arbitration":
                if self.pipeline is not None and not any(self._arbiter.primaries()):
                    # Messages from before there was a listener are dropped.
                    self.pipeline.restart()
                self._arbiter.arbitrate(client, request.arbitration)
                self._notifier.wake()
                return
            try:
                if kind == "packet":
                    self._packet_out(client, request.packet)
                elif kind == "digest_ack":
                    self._acknowledge(client, request.digest_ack)
                elif kind == "other":
                    raise RequestError(
                        grpc.StatusCode.UNIMPLEMENTED, "messages of an architecture's own are not supported"
                    )
                else:
                    raise invalid("a stream message is an arbitration, a packet or a digest_ack")
            except RequestError as refused:
                client.tell(stream_error(refused, request))

    def _packet_out(self, client: Client, packet: p4runtime_pb2.PacketOut) -> None:
        """Send a packet-out (section 16.1)."""
        self._require_listener(client)
        pipeline = self._require_running()
        if not self._cpu_port or not isinstance(pipeline, Pipeline):
            raise RequestError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "this switch has no CPU port; `emulation switch --cpu-port N` gives one",
            )
        frame = pipeline.packets.frame(packet)
        with pipeline.dataplane.writing():
            pipeline.dataplane.inject(self._cpu_port, frame)

    def _acknowledge(self, client: Client, ack: p4runtime_pb2.DigestListAck) -> None:
        self._require_listener(client)
        if isinstance(pipeline := self._require_running(), Pipeline):
            pipeline.digests.acknowledge(ack)

    def _require_listener(self, client: Client) -> None:
        if not self._arbiter.is_primary(client):
            raise RequestError(
                grpc.StatusCode.PERMISSION_DENIED, "only a primary controller sends packets and acknowledges digests"
            )

    # ---- messages from the data plane (sections 9.8, 16.1 and 16.5) --------------------------------------------------

    def _look(self) -> bool:
        """Pass on messages; returns whether there may be more."""
        with self._lock:
            pipeline = self.pipeline
            if not isinstance(pipeline, Pipeline) or not any(self._arbiter.primaries()):
                return False
            if not (self._cpu_port or pipeline.digests.active or pipeline.tables.aging):
                return False
            lists = []
            for what, number, data in pipeline.messages():
                if what == TOLD_PACKET:
                    self._packet_in(pipeline, data)
                else:
                    lists += pipeline.digests.learn(number, data)
            for found in lists + pipeline.digests.due():
                response = p4runtime_pb2.StreamMessageResponse(digest=found)
                self._arbiter.tell_primaries(response, methodcaller("allows", found.digest_id))
            self._tell_idle(pipeline.tables.expired())
        return True

    def _packet_in(self, pipeline: Pipeline, frame: bytes) -> None:
        packet = pipeline.packets.packet(frame)
        if packet is not None:
            response = p4runtime_pb2.StreamMessageResponse(packet=packet)
            self._arbiter.tell_primaries(response, lambda role: role.receives(packet))

    def _tell_idle(self, expired: list[p4runtime_pb2.TableEntry]) -> None:
        for client, role in self._arbiter.primaries() if expired else ():
            response = p4runtime_pb2.StreamMessageResponse()
            response.idle_timeout_notification.timestamp = time.time_ns()
            for entry in expired:
                if role.allows(entry.table_id):
                    reported = response.idle_timeout_notification.table_entry.add()
                    reported.CopyFrom(entry)
                    reported.ClearField("action")
            if response.idle_timeout_notification.table_entry:
                client.tell(response)

    # ---- common checks --------------------------------------------------------------------------------------------

    def _require_device(self, request: Any) -> None:
        if request.device_id != self.device_id:
            raise RequestError(
                grpc.StatusCode.NOT_FOUND,
                f"there is no device {request.device_id} here; this is device {self.device_id}",
            )

    def _require_running(self) -> Served:
        if self.pipeline is None:
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, "no forwarding pipeline has been committed yet")
        return self.pipeline

    def _require_pipeline(self) -> Served:
        """The pipeline to read and write: the saved one while it waits for its COMMIT (section 14)."""
        return self._saved if self._saved is not None else self._require_running()

    # ---- pipeline config (section 14) -------------------------------------------------------------------------

    def SetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            with self._lock:
                self._require_device(request)
                if not self._arbiter.require_primary(request).pipeline:
                    raise RequestError(
                        grpc.StatusCode.PERMISSION_DENIED, f"the role {request.role!r} does not push pipelines"
                    )
                self._set_pipeline(request)
                self._notifier.wake()
        except RequestError as refused:
            context.abort(refused.code, str(refused))
        except PortError as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def _set_pipeline(self, request: Any) -> None:
        if request.action == COMMIT:
            if request.HasField("config"):
                raise invalid("COMMIT takes no config: it commits what VERIFY_AND_SAVE has saved")
            if self._saved is None:
                raise RequestError(grpc.StatusCode.NOT_FOUND, "no pipeline config was saved to commit")
            self.commit(self._saved)
        elif request.action in (VERIFY, VERIFY_AND_SAVE, VERIFY_AND_COMMIT, RECONCILE_AND_COMMIT):
            if not request.HasField("config"):
                raise invalid("a config is required: P4Info and the BMv2 JSON of its program")
            pipeline = self._make(request.config)
            if request.action == VERIFY:
                pipeline.close()
            elif request.action == VERIFY_AND_SAVE:
                self._discard_saved()
                self._saved = pipeline
            else:
                if request.action == RECONCILE_AND_COMMIT and self.pipeline is not None:
                    self._take_over(pipeline, self.pipeline)
                self.commit(pipeline)
        else:
            raise invalid("the actions are VERIFY, VERIFY_AND_SAVE, VERIFY_AND_COMMIT, COMMIT and RECONCILE_AND_COMMIT")

    def _take_over(self, pipeline: Served, old: Served) -> None:
        try:
            pipeline.take_over(old)
        except RequestError:
            pipeline.close()
            raise

    def commit(self, pipeline: Served) -> None:
        """Make a pipeline the running one.

        Raises:
            PortError: it cannot take over the ports; then no pipeline runs any more.
        """
        with self._lock:
            if self._saved is not pipeline:
                self._discard_saved()
            old, self.pipeline, self._saved = self.pipeline, pipeline, None
            if isinstance(pipeline, Pipeline):
                pipeline.dataplane.cpu_port(self._cpu_port)
            try:
                self._replaced(pipeline, old)
            except PortError:
                self.pipeline = None
                pipeline.close()
                raise

    def _discard_saved(self) -> None:
        if self._saved is not None:
            self._saved.close()
            self._saved = None

    def close(self) -> None:
        """Stop the packets and release the programs; later calls find no pipeline."""
        self._notifier.close()
        with self._lock:
            self._discard_saved()
            if self.pipeline is not None:
                self.pipeline.close()
                self.pipeline = None

    def GetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Section 15: without a pipeline the config is omitted."""
        try:
            self._require_device(request)
        except RequestError as refused:
            context.abort(refused.code, str(refused))
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        running = self.pipeline
        if running is None:
            return response
        kinds = p4runtime_pb2.GetForwardingPipelineConfigRequest
        response.config.SetInParent()
        if running.config.HasField("cookie"):
            response.config.cookie.CopyFrom(running.config.cookie)
        if request.response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(running.config.p4info)
        if request.response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = running.config.p4_device_config
        return response

    # ---- write and read (sections 12 and 13) ------------------------------------------------------------------

    def Write(self, request: Any, context: grpc.ServicerContext) -> Any:
        errors: list[p4runtime_pb2.Error] = []
        try:
            with self._lock:
                self._require_device(request)
                role = self._arbiter.require_primary(request)
                pipeline = self._require_pipeline()
                with pipeline.writing():
                    if request.atomicity == p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                        errors = [_attempt(pipeline, update, role) for update in request.updates]
                    else:
                        # Packets wait in the meantime, so none has seen updates that are undone.
                        errors = _attempt_all(pipeline, request.updates, role)
                self._notifier.wake()
        except RequestError as refused:
            context.abort(refused.code, str(refused))
        if any(error.canonical_code != code_pb2.OK for error in errors):
            _abort_with_details(context, errors)
        return p4runtime_pb2.WriteResponse()

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            self._require_device(request)
            with self._lock:
                role = self._arbiter.config(request.role)
                pipeline = self._require_pipeline()
                for entity in request.entities:
                    _require_allowed(entity, role)
                entities = [
                    found for entity in request.entities for found in pipeline.read(entity) if role.allows(p4_id(found))
                ]
        except RequestError as refused:
            context.abort(refused.code, str(refused))
        # In pieces well below gRPC's 4 MiB limit.
        for start in range(0, len(entities), 1000):
            yield p4runtime_pb2.ReadResponse(entities=entities[start : start + 1000])

    def Capabilities(self, request: Any, context: grpc.ServicerContext) -> Any:
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=P4RUNTIME_VERSION)


def _require_allowed(entity: p4runtime_pb2.Entity, role: RoleConfig) -> None:
    if not role.allows(p4_id(entity)):
        raise RequestError(grpc.StatusCode.PERMISSION_DENIED, f"P4 id {p4_id(entity):#x} is not this role's")


def _attempt(pipeline: Served, update: p4runtime_pb2.Update, role: RoleConfig) -> p4runtime_pb2.Error:
    """Apply one update of a batch; returns its outcome in P4Runtime's form."""
    try:
        _require_allowed(update.entity, role)
        pipeline.update(update)
    except RequestError as refused:
        return p4runtime_pb2.Error(canonical_code=refused.code.value[0], message=str(refused), space="netfold")
    return p4runtime_pb2.Error(canonical_code=code_pb2.OK)


def _attempt_all(pipeline: Served, updates: Any, role: RoleConfig) -> list[p4runtime_pb2.Error]:
    """Apply all updates of a batch or none (section 12.2); returns their outcomes."""
    undo: list[p4runtime_pb2.Update] = []
    for number, update in enumerate(updates):
        try:
            inverse = pipeline.inverse(update)
        except RequestError:
            inverse = []  # The update itself will be refused with a reason.
        error = _attempt(pipeline, update, role)
        if error.canonical_code == code_pb2.OK:
            undo += reversed(inverse)
            continue
        for each in reversed(undo):
            # Undoing can only run out of memory, as the update itself may: then as much as possible is undone.
            _attempt(pipeline, each, role)
        undone = p4runtime_pb2.Error(
            canonical_code=code_pb2.ABORTED, message=f"not done: update {number} failed", space="netfold"
        )
        return [error if i == number else undone for i in range(len(updates))]
    return [p4runtime_pb2.Error(canonical_code=code_pb2.OK) for _ in updates]


def _abort_with_details(context: grpc.ServicerContext, errors: list[p4runtime_pb2.Error]) -> None:
    """Abort with code UNKNOWN, and one p4.v1.Error per update in the status details (section 12.3)."""
    first = next(e.message for e in errors if e.canonical_code not in (code_pb2.OK, code_pb2.ABORTED))
    status = status_pb2.Status(code=code_pb2.UNKNOWN, message=first)
    for error in errors:
        packed = any_pb2.Any()
        packed.Pack(error)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, first)


def serve(service: SwitchService, address: str, tls: Tls | None = None) -> tuple[grpc.Server, int]:
    """Listen on ADDRESS:PORT (port 0: any); returns (the server, its port).

    Args:
        tls: None speaks plain text.

    Raises:
        PortError: the address is taken, or a certificate cannot be read.
    """
    # Port reuse would let two switches listen on one address, each receiving some of the calls.
    server = grpc.server(
        futures.ThreadPoolExecutor(WORKERS),
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)],
    )
    p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(service, server)
    try:
        port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls.credentials())
    except RuntimeError:
        port = 0
    if port == 0:
        or_tls = "" if tls is None else f", or {tls.own.certificate} and {tls.own.key} are no certificate and its key"
        raise PortError(
            f"cannot listen for P4Runtime on {address}: the address is in use or not this machine's{or_tls}"
        )
    server.start()
    return server, port
