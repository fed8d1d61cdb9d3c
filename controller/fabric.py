"""The switch, over P4Runtime, through p4runtime-shell's client library."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Iterable, Sequence

import grpc
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import (
    P4RuntimeClient,
    P4RuntimeException,
    P4RuntimeWriteException,
    parse_p4runtime_write_error,
)

from controller.artifact import Artifact
from controller.entry import Names
from controller.errors import SwitchError
from controller.share import Share
from hostlib import layout

CONNECT_TIMEOUT_S = 10.0
RPC_TIMEOUT_S = 5.0
COMPILE_TIMEOUT_S = 60.0
RPC_ERRORS = (grpc.RpcError, P4RuntimeException, P4RuntimeWriteException)
INSERT, DELETE = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.DELETE


class P4RuntimeFabric:
    """One switch that runs netfold's program.

    Args:
        election_id: higher than any earlier controller's, which then is no longer primary.

    Raises:
        SwitchError: nobody answers at the address, or somebody with a higher election id is primary.
    """

    def __init__(self, p4rt: str, device_id: int, election_id: int) -> None:
        self.p4rt = p4rt
        self._lock = threading.Lock()
        self._names: Names | None = None
        self.program = ""
        with grpc.insecure_channel(p4rt) as probe:
            try:
                grpc.channel_ready_future(probe).result(CONNECT_TIMEOUT_S)
            except grpc.FutureTimeoutError:
                raise SwitchError(f"no switch answers P4Runtime at {p4rt}") from None
        # The library logs, prints and exits where others raise.
        logging.getLogger().addFilter(lambda record: False)
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                self._client = P4RuntimeClient(device_id, p4rt, (election_id >> 64, election_id & (2**64 - 1)))
        except SystemExit:
            raise SwitchError(
                f"the switch at {p4rt} closed the P4Runtime stream (is {device_id} its device id?)"
            ) from None
        if "not the primary" in said.getvalue():
            self._client.tear_down()
            raise SwitchError(f"another controller is primary on the switch at {p4rt}")

    def close(self) -> None:
        """End the stream."""
        self._client.tear_down()

    @property
    def up(self) -> bool:
        """Whether the P4Runtime stream to the switch is open."""
        return bool(self._client.stream_recv_thread.is_alive())

    def push(self, artifact: Artifact, address: str, anew: bool = False) -> bool:
        """Make the switch run a program, unless it already does and need not start `anew`; whether it was pushed.

        Args:
            address: the fabric's own IPv4 address.
        """
        config = p4runtime_pb2.ForwardingPipelineConfig(p4_device_config=artifact.program)
        text_format.Parse(artifact.p4info, config.p4info, allow_unknown_field=True)
        self._names, self.program = Names(config.p4info), artifact.name
        if not anew and self._running() == artifact.program:
            return False
        client = self._client
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=client.device_id, action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        )
        request.election_id.high, request.election_id.low = client.election_id
        request.config.CopyFrom(config)
        try:
            client.stub.SetForwardingPipelineConfig(request, timeout=COMPILE_TIMEOUT_S)
        except grpc.RpcError as refused:
            raise SwitchError(f"the switch refused the program: {refused.details()}") from refused
        self._write(INSERT, [self._names.fabric_address(address)])
        return True

    def _running(self) -> bytes:
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(
            device_id=self._client.device_id,
            response_type=p4runtime_pb2.GetForwardingPipelineConfigRequest.DEVICE_CONFIG_AND_COOKIE,
        )
        try:
            return bytes(
                self._client.stub.GetForwardingPipelineConfig(request, timeout=RPC_TIMEOUT_S).config.p4_device_config
            )
        except grpc.RpcError:
            return b""  # FAILED_PRECONDITION: none yet

    def names(self) -> Names:
        if self._names is None:
            raise SwitchError("no program has been pushed to the switch")
        return self._names

    # ---- jobs -------------------------------------------------------------------------------------------------

    def install(self, shares: Sequence[Share]) -> None:
        """Insert what this switch is told of one job, all or nothing.

        Raises:
            SwitchError: the switch refused an entry, or is gone; what was inserted has been taken back.
        """
        self._write(INSERT, self.names().job(shares))

    def remove(self, shares: Sequence[Share]) -> None:
        """Delete it again: who may send goes first."""
        self._write(DELETE, reversed(self.names().job(shares)))

    def _write(self, how: int, entities: Iterable[p4runtime_pb2.Entity]) -> None:
        # One update per request: the library's error iterator never ends on a batch in which an earlier one succeeded.
        done: list[p4runtime_pb2.Entity] = []
        with self._lock:
            try:
                for entity in entities:
                    self._write_one(how, entity)
                    done.append(entity)
            except RPC_ERRORS as refused:
                if how == INSERT:
                    self._take_back(done)
                raise SwitchError(f"the switch at {self.p4rt} {_reason(refused)}") from refused

    @parse_p4runtime_write_error
    def _write_one(self, how: int, entity: p4runtime_pb2.Entity) -> None:
        # The library's own write has no deadline: a switch that hangs would hang the controller.
        request = p4runtime_pb2.WriteRequest(device_id=self._client.device_id)
        request.election_id.high, request.election_id.low = self._client.election_id
        request.updates.add(type=how, entity=entity)
        self._client.stub.Write(request, timeout=RPC_TIMEOUT_S)

    def _take_back(self, entities: list[p4runtime_pb2.Entity]) -> None:
        for entity in reversed(entities):
            with contextlib.suppress(*RPC_ERRORS):
                self._write_one(DELETE, entity)

    # ---- counters ---------------------------------------------------------------------------------------------

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """(events, drops) by name, ingress and egress together.

        Raises:
            SwitchError: the switch is gone.
        """
        cells = {index: 0 for index in range(layout.EVENT_CELLS)}
        for name in ("events", "egress_events"):
            for index, packets, _ in self._cells(name):
                cells[index] += packets
        return (
            {name: cells[index] for name, index in layout.EVENTS.items()},
            {name: cells[index] for name, index in layout.DROPS.items()},
        )

    def ports(self) -> dict[int, dict[str, int]]:
        """Packets and bytes by switch port, for ports that saw any; bytes are those of whole Ethernet frames."""
        found: dict[int, dict[str, int]] = {}
        for name, way in (("port_in", "in"), ("port_out", "out")):
            for index, packets, bytes_ in self._cells(name):
                if packets:
                    port = found.setdefault(index, {"packets_in": 0, "bytes_in": 0, "packets_out": 0, "bytes_out": 0})
                    port[f"packets_{way}"], port[f"bytes_{way}"] = packets, bytes_
        return found

    def _cells(self, counter: str) -> list[tuple[int, int, int]]:
        request = p4runtime_pb2.ReadRequest(device_id=self._client.device_id)
        request.entities.add().counter_entry.counter_id = self.names().counter_id(counter)
        try:
            with self._lock:
                return [
                    (e.counter_entry.index.index, e.counter_entry.data.packet_count, e.counter_entry.data.byte_count)
                    for response in self._client.stub.Read(request, timeout=RPC_TIMEOUT_S)
                    for e in response.entities
                ]
        except RPC_ERRORS as refused:
            raise SwitchError(f"the switch at {self.p4rt} {_reason(refused)}") from refused


def _reason(refused: Exception) -> str:
    """One line of why."""
    if isinstance(refused, P4RuntimeWriteException):
        return f"refused a write: {refused.errors[0][1].message}"
    error = refused.grpc_error if isinstance(refused, P4RuntimeException) else refused
    if isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.UNAVAILABLE:
        return "is gone"
    if isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"did not answer within {RPC_TIMEOUT_S:.0f} s"
    details = error.details() if isinstance(error, grpc.RpcError) else str(error)
    return f"refused: {details}"
