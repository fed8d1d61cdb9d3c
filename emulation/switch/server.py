"""The P4Runtime server: arbitration, pipeline config, write, read, capabilities.

Source: the P4Runtime specification 1.4, section numbers in the docstrings.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from emulation.errors import PortError
from emulation.switch.pipeline import Pipeline
from emulation.switch.translate import RequestError, invalid

P4RUNTIME_VERSION = "1.4.0"
VERIFY = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY
VERIFY_AND_SAVE = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_SAVE
VERIFY_AND_COMMIT = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
COMMIT = p4runtime_pb2.SetForwardingPipelineConfigRequest.COMMIT


@dataclass(slots=True, eq=False)
class Client:
    """One open stream: a controller, its role and election id once it has said so, and what to tell it."""

    role: str = ""
    election: int | None = None
    outbox: queue.SimpleQueue[p4runtime_pb2.StreamMessageResponse | None] = field(default_factory=queue.SimpleQueue)


def election_number(election: p4runtime_pb2.Uint128) -> int:
    return int(election.high) << 64 | int(election.low)


class SwitchService(p4runtime_pb2_grpc.P4RuntimeServicer):
    """P4Runtime for one device.

    Args:
        device_id: the only one this server answers for.
        replaced: called with the new pipeline when one is committed; starts its packets and stops the old one's.
    """

    def __init__(self, device_id: int, replaced: Callable[[Pipeline, Pipeline | None], None]) -> None:
        self.device_id = device_id
        self.pipeline: Pipeline | None = None
        self._replaced = replaced
        self._saved: Pipeline | None = None
        self._clients: list[Client] = []
        # The highest election id ever seen per role: a primary that left does not make a lower one primary (5.3).
        self._highest: dict[str, int] = {}
        self._lock = threading.RLock()

    @property
    def streams(self) -> int:
        """Open controller streams."""
        return len(self._clients)

    # ---- arbitration (section 5) ------------------------------------------------------------------------------

    def StreamChannel(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        client = Client()
        with self._lock:
            self._clients.append(client)
        context.add_callback(lambda: client.outbox.put(None))
        threading.Thread(target=self._listen, args=(client, requests, context), daemon=True).start()
        try:
            while (message := client.outbox.get()) is not None:
                if isinstance(message, RequestError):
                    context.abort(message.code, str(message))
                yield message
        finally:
            with self._lock:
                self._clients.remove(client)
                if client.election is not None:
                    self._tell_role(client.role)

    def _listen(self, client: Client, requests: Iterator[Any], context: grpc.ServicerContext) -> None:
        try:
            for request in requests:
                if request.WhichOneof("update") == "arbitration":
                    self._arbitrate(client, request.arbitration)
        except RequestError as refused:
            client.outbox.put(refused)  # type: ignore[arg-type]
        except Exception:
            # gRPC ends the iterator with an exception of its own when the peer goes away.
            client.outbox.put(None)
        else:
            client.outbox.put(None)

    def _arbitrate(self, client: Client, wanted: p4runtime_pb2.MasterArbitrationUpdate) -> None:
        if wanted.device_id != self.device_id:
            raise RequestError(
                grpc.StatusCode.NOT_FOUND,
                f"there is no device {wanted.device_id} here; this is device {self.device_id}",
            )
        role, election = wanted.role.name, election_number(wanted.election_id)
        with self._lock:
            taken = any(c is not client and c.role == role and c.election == election for c in self._clients)
            if taken and election:
                raise invalid(f"election id {election} is in use by another controller")
            client.role, client.election = role, election
            self._highest[role] = max(self._highest.get(role, 0), election)
            self._tell_role(role)

    def _primary(self, role: str) -> Client | None:
        return next(
            (c for c in self._clients if c.role == role and c.election == self._highest.get(role) and c.election), None
        )

    def _tell_role(self, role: str) -> None:
        primary = self._primary(role)
        for client in self._clients:
            if client.role != role or client.election is None:
                continue
            response = p4runtime_pb2.StreamMessageResponse()
            response.arbitration.device_id = self.device_id
            if role:
                response.arbitration.role.name = role
            highest = self._highest[role]
            response.arbitration.election_id.high = highest >> 64
            response.arbitration.election_id.low = highest & (2**64 - 1)
            if client is primary:
                response.arbitration.status.code = code_pb2.OK
            elif primary is not None:
                response.arbitration.status.code = code_pb2.ALREADY_EXISTS
                response.arbitration.status.message = "another controller is primary"
            else:
                response.arbitration.status.code = code_pb2.NOT_FOUND
                response.arbitration.status.message = "there is no primary"
            client.outbox.put(response)

    def _require_primary(self, request: Any) -> None:
        self._require_device(request)
        primary = self._primary(request.role)
        if primary is None or primary.election != election_number(request.election_id):
            raise RequestError(
                grpc.StatusCode.PERMISSION_DENIED,
                "only the primary controller may do this: its stream must be open, with this election id",
            )

    def _require_device(self, request: Any) -> None:
        if request.device_id != self.device_id:
            raise RequestError(
                grpc.StatusCode.NOT_FOUND,
                f"there is no device {request.device_id} here; this is device {self.device_id}",
            )

    def _require_pipeline(self) -> Pipeline:
        if self.pipeline is None:
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, "no forwarding pipeline has been committed yet")
        return self.pipeline

    # ---- pipeline config (section 12) -------------------------------------------------------------------------

    def SetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            with self._lock:
                self._require_primary(request)
                self._set_pipeline(request)
        except RequestError as refused:
            context.abort(refused.code, str(refused))
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def _set_pipeline(self, request: Any) -> None:
        if request.action == COMMIT:
            if self._saved is None:
                raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, "no pipeline config was saved to commit")
            self.commit(self._saved)
        elif request.action in (VERIFY, VERIFY_AND_SAVE, VERIFY_AND_COMMIT):
            pipeline = Pipeline(request.config)
            if request.action == VERIFY_AND_COMMIT:
                self.commit(pipeline)
            elif request.action == VERIFY_AND_SAVE:
                self._discard_saved()
                self._saved = pipeline
            else:
                pipeline.dataplane.close()
        else:
            raise RequestError(
                grpc.StatusCode.UNIMPLEMENTED,
                "the actions are VERIFY, VERIFY_AND_SAVE, "
                "VERIFY_AND_COMMIT and COMMIT; reconciliation is not supported",
            )

    def commit(self, pipeline: Pipeline) -> None:
        """Make a pipeline the running one."""
        with self._lock:
            if self._saved is not pipeline:
                self._discard_saved()
            old, self.pipeline, self._saved = self.pipeline, pipeline, None
            self._replaced(pipeline, old)

    def _discard_saved(self) -> None:
        if self._saved is not None:
            self._saved.dataplane.close()
            self._saved = None

    def close(self) -> None:
        """Stop the packets and let go of the programs; later calls find no pipeline."""
        with self._lock:
            self._discard_saved()
            if self.pipeline is not None:
                self.pipeline.dataplane.close()
                self.pipeline = None

    def GetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            self._require_device(request)
            config = self._require_pipeline().config
        except RequestError as refused:
            context.abort(refused.code, str(refused))
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        kinds = p4runtime_pb2.GetForwardingPipelineConfigRequest
        response.config.cookie.CopyFrom(config.cookie)
        if request.response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(config.p4info)
        if request.response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = config.p4_device_config
        return response

    # ---- write and read (sections 11 and 13) ------------------------------------------------------------------

    def Write(self, request: Any, context: grpc.ServicerContext) -> Any:
        errors: list[p4runtime_pb2.Error] = []
        try:
            with self._lock:
                self._require_primary(request)
                if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                    raise RequestError(grpc.StatusCode.UNIMPLEMENTED, "the atomicity here is CONTINUE_ON_ERROR")
                pipeline = self._require_pipeline()
                with pipeline.dataplane.writing():
                    errors = [_attempt(pipeline, update) for update in request.updates]
        except RequestError as refused:
            context.abort(refused.code, str(refused))
        if any(error.canonical_code != code_pb2.OK for error in errors):
            _abort_with_details(context, errors)
        return p4runtime_pb2.WriteResponse()

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            self._require_device(request)
            with self._lock:
                pipeline = self._require_pipeline()
                entities = [found for entity in request.entities for found in pipeline.read(entity)]
        except RequestError as refused:
            context.abort(refused.code, str(refused))
        # In pieces that stay well under gRPC's 4 MiB limit.
        for start in range(0, len(entities), 1000):
            yield p4runtime_pb2.ReadResponse(entities=entities[start : start + 1000])

    def Capabilities(self, request: Any, context: grpc.ServicerContext) -> Any:
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=P4RUNTIME_VERSION)


def _attempt(pipeline: Pipeline, update: p4runtime_pb2.Update) -> p4runtime_pb2.Error:
    """Apply one update of a batch; its outcome in P4Runtime's form."""
    try:
        pipeline.update(update)
    except RequestError as refused:
        return p4runtime_pb2.Error(canonical_code=refused.code.value[0], message=str(refused), space="netfold")
    return p4runtime_pb2.Error(canonical_code=code_pb2.OK)


def _abort_with_details(context: grpc.ServicerContext, errors: list[p4runtime_pb2.Error]) -> None:
    """Section 11.3: code UNKNOWN, and one p4.v1.Error per update in the status details."""
    first = next(error.message for error in errors if error.canonical_code != code_pb2.OK)
    status = status_pb2.Status(code=code_pb2.UNKNOWN, message=first)
    for error in errors:
        packed = any_pb2.Any()
        packed.Pack(error)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, first)


def serve(service: SwitchService, address: str) -> tuple[grpc.Server, int]:
    """Listen on ADDRESS:PORT (port 0: any); (the server, its port).

    Raises:
        PortError: the address is taken.
    """
    # Each open stream keeps a worker thread, hence more of them than calls in flight would need. Reusing the port
    # would let two switches listen on one address, each getting some of the calls.
    server = grpc.server(
        futures.ThreadPoolExecutor(32),
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)],
    )
    p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(service, server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0:
        raise PortError(f"cannot listen for P4Runtime on {address}: the address is in use or not this machine's")
    server.start()
    return server, port
