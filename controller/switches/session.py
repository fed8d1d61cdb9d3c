"""A P4Runtime session with a switch, over p4runtime-shell's client library."""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import grpc
from google.protobuf import text_format
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import (
    P4RuntimeClient,
    P4RuntimeErrorFormatException,
    P4RuntimeException,
    P4RuntimeWriteException,
    SSLOptions,
    parse_p4runtime_write_error,
)

from controller.errors import ElectionError, SwitchError
from controller.jobs.switch_share import SwitchShare
from controller.switches.entry_comparison import difference, everything
from controller.switches.own_entries import OwnEntries
from controller.switches.program import Artifact
from controller.switches.table_entries import Names
from hostlib.protocol import constants
from hostlib.system.certificate_folder import CertificateFolder

CONNECT_TIMEOUT_S = 10.0
HANDSHAKE_TIMEOUT_S = 2.0
RPC_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 2.0
PROBE_TIMEOUT_S = 4.0
COMPILE_TIMEOUT_S = 60.0
MOST_UNREAD = 256  # messages from the switch
BIDS = 5  # against another controller that bids, too
HIGHEST_ID = 2**128 - 1
# Raised by gRPC: ValueError for a call on a channel that another thread has closed; FutureCancelledError: see
# `interrupt`.
RPC_ERRORS = (
    grpc.RpcError,
    grpc.FutureCancelledError,
    P4RuntimeException,
    P4RuntimeWriteException,
    P4RuntimeErrorFormatException,
    ValueError,
)
INSERT, DELETE = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.DELETE
OURS, ANOTHER, NONE = "ours", "another", "none"  # which program a switch runs


def _mute(record: logging.LogRecord) -> bool:
    return False


class _Bounded(queue.Queue[Any]):
    """A queue that drops what comes when it is full."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        with contextlib.suppress(queue.Full):
            super().put(item, block=False)


class Probe(Protocol):
    """A request that no thread waits for: gRPC's future of a call."""

    def exception(self) -> Exception | None: ...

    def code(self) -> grpc.StatusCode: ...

    def done(self) -> bool: ...


class Client(P4RuntimeClient):
    """The library's client, but it raises where the library prints and exits, and can be closed when the switch does
    not answer.
    """

    _demoted = False

    def handshake(self) -> None:
        """The library calls this when the stream is open; `become_primary` does what it is for.

        What is not an answer to a bid is kept up to a limit: a switch says it unasked.
        """
        for kind in self.stream_in_q:
            if kind != "arbitration":
                self.stream_in_q[kind] = _Bounded(MOST_UNREAD)

    def become_primary(self, take_over: bool, former: int | None, require: Callable[[], None]) -> None:
        """Bid above the highest election id that the switch has seen.

        Args:
            take_over: also if another controller is primary.
            former: the election id of an earlier session, which may still count as open.
            require: called before each bid; raises if this controller may not bid any more.

        Raises:
            ElectionError: another controller is and stays primary, or the stream was closed.
        """
        # The first bid only asks: who is there, and which election ids there were. Two that ask at once must differ.
        told = self._bid(1 + secrets.randbelow(2**32))
        highest = _number(told.election_id)
        if told.status.code == code_pb2.ALREADY_EXISTS and not take_over and highest != former:
            raise ElectionError(f"has another controller as its primary (election id {highest}): --take-over takes it")
        for _ in range(BIDS):
            if highest >= HIGHEST_ID:
                raise ElectionError("has a primary with the highest election id that there is: restart the switch")
            require()
            told = self._bid(max(highest + 1, time.time_ns()))
            if told.status.code == code_pb2.OK:
                return
            highest = max(highest, _number(told.election_id))
        raise ElectionError(f"has another controller as its primary, which outbids this one (election id {highest})")

    def _bid(self, election_id: int) -> Any:
        self.election_id = (election_id >> 64, election_id & (2**64 - 1))
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        self.stream_out_q.put(request)
        reply = self.get_stream_packet("arbitration", timeout=HANDSHAKE_TIMEOUT_S)
        if reply is None:
            # Or it has as many streams as it may have; those that say nothing it ends.
            raise ElectionError(f"closed the P4Runtime stream (is {self.device_id} its device id?)", lasting=False)
        return reply.arbitration

    @property
    def demoted(self) -> bool:
        """Whether another controller has become primary meanwhile."""
        told = self.get_stream_packet("arbitration", timeout=0) if not self.stream_in_q["arbitration"].empty() else None
        if told is not None and told.arbitration.status.code != code_pb2.OK:
            self._demoted = True
        return self._demoted

    def tear_down(self) -> None:
        # Otherwise the library waits for the end of a stream that a stopped switch does not end.
        self.channel.close()
        super().tear_down()


class P4RuntimeSession:
    """A session with a switch that runs netfold's program.

    Args:
        patience_s: time limit for connecting [default: CONNECT_TIMEOUT_S].
        take_over: become primary though another controller is, and replace another program.
        former: the election id of an earlier session of this controller.
        certificates: for TLS, by which both sides know each other; None speaks plain text.
        require: called before each bid; raises a StateError if this controller may not bid any more.

    Attributes:
        election_id: its own.
        dirty: it may have entries of jobs that have ended, because a removal failed or a write's outcome is unknown. A
            push clears it.

    Raises:
        SwitchError: no switch answers at the address.
        ElectionError: another controller is primary.
        StateError: from `require`.
    """

    def __init__(
        self,
        p4rt: str,
        device_id: int,
        patience_s: float | None = None,
        take_over: bool = False,
        former: int | None = None,
        certificates: CertificateFolder | None = None,
        require: Callable[[], None] = lambda: None,
    ) -> None:
        self.p4rt = p4rt
        self._take_over = take_over
        self.dirty = False
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False
        self._writing: grpc.Future[Any] | None = None
        self._names: Names | None = None
        self.program = ""
        # Its own subchannel pool: gRPC would otherwise apply an earlier channel's back-off for this address.
        with _channel(p4rt, certificates) as probe:
            try:
                grpc.channel_ready_future(probe).result(CONNECT_TIMEOUT_S if patience_s is None else patience_s)
            except grpc.FutureTimeoutError:
                how = " with certificates of this authority" if certificates is not None else ""
                raise SwitchError(f"no switch answers P4Runtime at {p4rt}{how}") from None
        logging.getLogger().addFilter(_mute)  # The library also logs what it raises.
        self._client = Client(device_id, p4rt, (0, 0), ssl_options=_ssl_options(certificates))
        try:
            self._client.become_primary(take_over, former, require)
        except BaseException as error:
            self._client.tear_down()  # Otherwise gRPC waits for the stream's end when this process ends.
            if isinstance(error, ElectionError):
                raise ElectionError(f"the switch at {p4rt} {error}", error.lasting) from None
            raise
        self.election_id = self._client.election_id[0] << 64 | self._client.election_id[1]

    def close(self) -> None:
        """End the stream; other threads' requests to the switch fail at once."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._client.tear_down()

    @property
    def up(self) -> bool:
        """Whether the P4Runtime stream to the switch is open, and no other controller has become primary."""
        return not self._closed and bool(self._client.stream_recv_thread.is_alive()) and not self._client.demoted

    def interrupt(self) -> None:
        """Cancel a write in progress: its thread may hold a lock that others need."""
        writing = self._writing
        if writing is not None:
            writing.cancel()

    def probe(self) -> Probe | None:
        """Ask whether the switch is still there, without waiting; see `answered`."""
        try:
            request = p4runtime_pb2.CapabilitiesRequest()
            asked: Probe = self._client.stub.Capabilities.future(request, timeout=PROBE_TIMEOUT_S)
            return asked
        except ValueError:
            return None

    def answered(self, probe: Probe | None) -> bool:
        """Whether the switch answered, if only with an error."""
        if probe is None:
            return False
        unanswered = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
        try:
            return probe.exception() is None or probe.code() not in unanswered
        except grpc.FutureCancelledError:
            return False

    def push(self, artifact: Artifact, own: OwnEntries, anew: bool = False) -> bool:
        """Make the switch run a program, unless it already does and `anew` is false; returns whether it was pushed.

        Raises:
            SwitchError: it runs another program, and this session does not take over; or it did not take the program.
        """
        config = p4runtime_pb2.ForwardingPipelineConfig(p4_device_config=artifact.program)
        text_format.Parse(artifact.p4info, config.p4info, allow_unknown_field=True)
        config.cookie.cookie = artifact.cookie
        self._names, self.program = Names(config.p4info), artifact.name
        running = self._running(artifact)
        if not anew and running == OURS:
            return False
        if running == ANOTHER and not self._take_over:
            raise SwitchError(
                f"the switch at {self.p4rt} runs another program than {artifact.name}: stop who uses it, choose "
                "its --elements, or replace its program with --take-over"
            )
        client = self._client
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=client.device_id, action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        )
        request.election_id.high, request.election_id.low = client.election_id
        request.config.CopyFrom(config)
        try:
            client.stub.SetForwardingPipelineConfig(request, timeout=COMPILE_TIMEOUT_S)
        except RPC_ERRORS as refused:
            raise SwitchError(f"the switch at {self.p4rt} did not take the program: {_reason(refused)}") from refused
        self.dirty = False
        self._write(INSERT, own.entities(self._names))
        return True

    def _running(self, artifact: Artifact) -> str:
        """Whether the switch runs this program, another one, or none."""
        kinds = p4runtime_pb2.GetForwardingPipelineConfigRequest
        try:
            # A Tofino's program is larger than what gRPC takes as an answer.
            if self._config(kinds.COOKIE_ONLY).cookie.cookie == artifact.cookie:
                return OURS
            program = self._config(kinds.DEVICE_CONFIG_AND_COOKIE).p4_device_config
        except RPC_ERRORS as refused:
            code = refused.code() if isinstance(refused, grpc.Call) else None
            return ANOTHER if code == grpc.StatusCode.RESOURCE_EXHAUSTED else NONE  # FAILED_PRECONDITION: none yet
        return NONE if not program else OURS if program == artifact.program else ANOTHER

    def _config(self, what: Any) -> p4runtime_pb2.ForwardingPipelineConfig:
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self._client.device_id, response_type=what)
        return self._client.stub.GetForwardingPipelineConfig(request, timeout=RPC_TIMEOUT_S).config

    def names(self) -> Names:
        if self._names is None:
            raise SwitchError("no program has been pushed to the switch")
        return self._names

    # ---- packets ----------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Have the switch treat a frame as one that came in by its CPU port; it may get lost."""
        request = p4runtime_pb2.StreamMessageRequest()
        request.packet.payload = frame
        self._client.stream_out_q.put(request)

    def received(self) -> list[bytes]:
        """The frames that the switch has sent to its CPU port since the last call, as far as they were kept."""
        frames, waiting = [], self._client.stream_in_q["packet"]
        for _ in range(MOST_UNREAD):
            try:
                message = waiting.get_nowait()
            except queue.Empty:
                break
            if message is not None:
                frames.append(bytes(message.packet.payload))
        return frames

    # ---- jobs -------------------------------------------------------------------------------------------------

    def install(self, shares: Sequence[SwitchShare]) -> None:
        """Insert one job's entries for this switch, all or nothing.

        Raises:
            SwitchError: the switch refused an entry, or is gone; inserted entries have been removed again.
        """
        self._write(INSERT, self.names().job(shares), self.names().echoes(shares))

    def remove(self, shares: Sequence[SwitchShare]) -> None:
        """Delete one job's entries, those of senders first."""
        self._write(DELETE, (), self.names().echoes(shares))
        self._write(DELETE, reversed(self.names().job(shares)))

    def reconcile(self, jobs: Iterable[Sequence[SwitchShare]], own: OwnEntries) -> None:
        """Make the switch have the entries of these jobs, its own ones, and no others.

        Entries that are there stay, with the packets that they let pass meanwhile.

        Raises:
            SwitchError: the switch refused that, or is gone.
        """
        wanted = own.entities(self.names())
        for shares in jobs:
            wanted += self.names().job(shares) + self.names().echoes(shares)
        request = p4runtime_pb2.ReadRequest(device_id=self._client.device_id)
        request.entities.extend(everything(self.names().table_ids()))
        delete, insert = difference(wanted, self._read(request))
        self._write(DELETE, delete)
        self._write(INSERT, insert)
        self.dirty = False

    def _write(
        self,
        how: int,
        entities: Iterable[p4runtime_pb2.Entity],
        together: Sequence[p4runtime_pb2.Entity] = (),
    ) -> None:
        """Write entities in order, and then others in one request, which are independent of each other."""
        # One update per request: the library's error iterator never ends for a batch in which an earlier update
        # succeeded.
        done: list[p4runtime_pb2.Entity] = []
        with self._lock:
            try:
                for entity in entities:
                    self._write_one(how, entity)
                    done.append(entity)
                for entity in () if self._wrote(how, together) else together:
                    self._write_one(how, entity)
                    done.append(entity)
            except RPC_ERRORS as refused:
                if how == INSERT and isinstance(refused, P4RuntimeWriteException):
                    self._take_back(done)
                else:
                    self.dirty = True
                raise SwitchError(f"the switch at {self.p4rt} {_reason(refused)}") from refused

    @parse_p4runtime_write_error
    def _write_one(self, how: int, entity: p4runtime_pb2.Entity) -> None:
        self._request(how, [entity])

    def _wrote(self, how: int, entities: Sequence[p4runtime_pb2.Entity]) -> bool:
        """Write entities at once; returns whether all of them were written. If not, none of those to insert is there."""
        if not entities:
            return True
        try:
            self._request(how, entities)
        except grpc.RpcError as refused:
            # P4Runtime: of some updates, and others were done.
            if how == DELETE or refused.code() != grpc.StatusCode.UNKNOWN:
                raise
            for entity in entities:
                with contextlib.suppress(P4RuntimeWriteException):  # It was not there.
                    self._write_one(DELETE, entity)
            return False
        return True

    def _request(self, how: int, entities: Iterable[p4runtime_pb2.Entity]) -> None:
        # The library's own write has no deadline: a hanging switch would block the controller.
        request = p4runtime_pb2.WriteRequest(device_id=self._client.device_id)
        request.election_id.high, request.election_id.low = self._client.election_id
        for entity in entities:
            request.updates.add(type=how, entity=entity)
        self._writing = self._client.stub.Write.future(request, timeout=RPC_TIMEOUT_S)
        self._writing.result()

    def _take_back(self, entities: list[p4runtime_pb2.Entity]) -> None:
        try:
            for entity in reversed(entities):
                self._write_one(DELETE, entity)
        except RPC_ERRORS:
            self.dirty = True

    # ---- counters ---------------------------------------------------------------------------------------------

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """(events, drops) by name, sums of ingress and egress.

        Raises:
            SwitchError: the switch is gone.
        """
        cells = {index: 0 for index in range(constants.EVENT_CELLS)}
        for name in ("events", "egress_events"):
            for index, packets, _ in self._cells(name):
                cells[index] += packets
        return (
            {name: cells[index] for name, index in constants.EVENTS.items()},
            {name: cells[index] for name, index in constants.DROPS.items()},
        )

    def ports(self) -> dict[int, dict[str, int]]:
        """Packets and bytes by switch port, for ports with traffic; bytes are those of whole Ethernet frames."""
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
        return [
            (e.counter_entry.index.index, e.counter_entry.data.packet_count, e.counter_entry.data.byte_count)
            for e in self._read(request)
        ]

    def _read(self, request: p4runtime_pb2.ReadRequest) -> list[p4runtime_pb2.Entity]:
        try:
            with self._lock:
                responses = self._client.stub.Read(request, timeout=READ_TIMEOUT_S)
                return [entity for response in responses for entity in response.entities]
        except RPC_ERRORS as refused:
            raise SwitchError(f"the switch at {self.p4rt} {_reason(refused)}") from refused


def _ssl_options(certificates: CertificateFolder | None) -> SSLOptions:
    if certificates is None:
        return SSLOptions(True)
    pair = certificates.client
    return SSLOptions(False, str(certificates.authority), str(pair.certificate), str(pair.key))


def _channel(p4rt: str, certificates: CertificateFolder | None) -> grpc.Channel:
    options = [("grpc.use_local_subchannel_pool", 1)]
    if certificates is None:
        return grpc.insecure_channel(p4rt, options)
    pair = certificates.client
    files = (certificates.authority, pair.key, pair.certificate)
    return grpc.secure_channel(p4rt, grpc.ssl_channel_credentials(*(file.read_bytes() for file in files)), options)


def _number(election_id: Any) -> int:
    return int(election_id.high) << 64 | int(election_id.low)


def _reason(refused: Exception) -> str:
    """The reason of an error, in one line."""
    if isinstance(refused, P4RuntimeWriteException):
        return f"refused a write: {refused.errors[0][1].message}"
    if isinstance(refused, P4RuntimeErrorFormatException):
        return f"refused a write without a reason ({refused})"
    error = refused.grpc_error if isinstance(refused, P4RuntimeException) else refused
    if isinstance(error, grpc.FutureCancelledError):
        return "did not answer in time"
    if not isinstance(error, grpc.RpcError) or error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return "is gone"
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "did not answer in time"
    return f"refused: {error.details()}"
