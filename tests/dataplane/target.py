"""Where a packet test can run: the embedded switch in this process, BMv2 in a network namespace of its own, or the TNA
program's source.

A target takes whole frames on its ports and says which frames left, on which port, and that nothing else did.
"""

from __future__ import annotations

import functools
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc

from controller.jobs.switch_share import HOSTS_PER_SWITCH
from controller.switches.program import load_artifact
from controller.switches.table_entries import Names
from controller.target import TOFINO
from emulation.switch.p4runtime.pipeline import Pipeline, load_config
from emulation.tofino.harness import HARNESS, Harness
from emulation.tofino.model_pipeline import ModelPipeline
from hostlib.protocol import constants
from hostlib.system.network_namespace import inside, veths
from tests.dataplane import source
from tests.dataplane.tofino import Tofino
from tests.prerequisites import missing

Frames = list[tuple[int, bytes]]
PORTS = range(1, 11)
FABRIC, NEIGHBOUR, NEIGHBOUR_PORT = "10.255.255.254", "10.255.255.253", 8  # this switch's address, and another's
SWITCH_MAC = "02:00:00:00:00:01"
COUNTERS = ("events", "egress_events")
PORT_COUNTERS = ("port_in", "port_out")
PortTraffic = dict[str, dict[int, tuple[int, int]]]
INSERT, DELETE = p4rt.Update.INSERT, p4rt.Update.DELETE


class Target(Protocol):
    """One switch that runs netfold's program: so many elements per packet, slots, and ranks per job."""

    name: str
    elements: int
    slots: int
    ranks: int
    names: Names

    def write(self, how: int, entities: Iterable[p4rt.Entity]) -> None:
        """Insert or delete entries."""

    def send(self, port: int, frame: bytes) -> Frames:
        """One frame in; all that leave because of it, by port, in the order of each port."""

    def counts(self) -> dict[str, dict[int, int]]:
        """Packets by counter and index; zeros left out."""

    def traffic(self) -> PortTraffic:
        """(packets, bytes) by port counter and port; zeros left out."""

    def reset(self) -> None:
        """No entries, and registers and counters as at the start."""

    def close(self) -> None: ...


def _names(elements: int) -> Names:
    return Names(text_format.Parse(load_artifact(elements).p4info, p4info_pb2.P4Info()))


class Embedded:
    """The embedded switch's data plane, one call per packet.

    Args:
        program: other BMv2 JSON than the committed one, with the same P4Info.
    """

    slots, ranks = constants.SLOTS, HOSTS_PER_SWITCH

    def __init__(self, elements: int, program: bytes | None = None) -> None:
        self.name, self.elements, self.names = "embedded", elements, _names(elements)
        self._program = program or load_artifact(elements).program
        self._pipeline = self._load()

    def _load(self) -> Pipeline:
        return Pipeline(load_config(self._program, load_artifact(self.elements).p4info))

    def reset(self) -> None:
        self.close()
        self._pipeline = self._load()

    def write(self, how: int, entities: Iterable[p4rt.Entity]) -> None:
        with self._pipeline.dataplane.writing():
            for entity in entities:
                self._pipeline.update(p4rt.Update(type=how, entity=entity))  # type: ignore[arg-type]

    def send(self, port: int, frame: bytes) -> Frames:
        return sorted(self._pipeline.dataplane.process(port, frame), key=lambda left: left[0])

    def counts(self) -> dict[str, dict[int, int]]:
        return {name: _nonzero(self._pipeline.read(_asked(self.names, name))) for name in COUNTERS}

    def traffic(self) -> PortTraffic:
        return {name: _passed(self._pipeline.read(_asked(self.names, name))) for name in PORT_COUNTERS}

    def close(self) -> None:
        self._pipeline.dataplane.close()


def _asked(names: Names, counter: str) -> p4rt.Entity:
    entity = p4rt.Entity()
    entity.counter_entry.counter_id = names.counter_id(counter)
    return entity


def _nonzero(entities: Iterable[p4rt.Entity]) -> dict[int, int]:
    cells = ((e.counter_entry.index.index, e.counter_entry.data.packet_count) for e in entities)
    return {index: packets for index, packets in cells if packets}


def _passed(entities: Iterable[p4rt.Entity]) -> dict[int, tuple[int, int]]:
    cells = [each.counter_entry for each in entities]
    return {c.index.index: (c.data.packet_count, c.data.byte_count) for c in cells if c.data.packet_count}


# ---- BMv2 -------------------------------------------------------------------------------------------------------

BMV2 = "simple_switch_grpc"
START_S, ANSWER_S = 20.0, 5.0
# A frame that is flooded to every port behind the one under test: BMv2 takes packets one by one and has one queue per
# port, so when the mark is seen there, what came before it has been. No test uses the port that marks come from.
MARK_PORT, MARK_GROUP, MARK_MAC = max(PORTS), 4095, bytes.fromhex("06fe00000001")
MARK, MARK_BYTES = MARK_MAC + bytes.fromhex("06fe00000002") + b"\x88\xb5", 60


class Bmv2:
    """`simple_switch_grpc` between veth pairs, in a network namespace of its own. Needs root."""

    slots, ranks = constants.SLOTS, HOSTS_PER_SWITCH

    def __init__(self, elements: int) -> None:
        self.name, self.elements, self.names = "bmv2", elements, _names(elements)
        self._stack = ExitStack()
        self._marks = self._marks_before = 0
        self._own: list[p4rt.Entity] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        space = self._stack.enter_context(veths(len(PORTS), "test", mtu=9000))
        self._sockets = inside(space, lambda: {port: _raw(f"h{port}") for port in PORTS})
        for each in self._sockets.values():
            self._stack.callback(each.close)
        address = f"unix:{folder}/p4rt"
        # A test run that is killed takes its switch with it.
        command = ["ip", "netns", "exec", space, "setpriv", "--pdeathsig", "KILL"]
        command += [BMV2, "--no-p4", "--device-id", "1"]
        command += [word for port in PORTS for word in ("-i", f"{port}@s{port}")]
        log = self._stack.enter_context((folder / "log").open("wb"))
        process = subprocess.Popen([*command, "--", "--grpc-server-addr", address], stdout=log, stderr=log)
        self._stack.callback(_end, process)
        channel = self._stack.enter_context(grpc.insecure_channel(address))
        ready = grpc.channel_ready_future(channel)
        self._stack.callback(ready.cancel)
        give_up = time.monotonic() + START_S
        while not ready.done():
            if process.poll() is not None or time.monotonic() > give_up:
                raise OSError(f"{BMV2} did not start: {(folder / 'log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        self._become_primary()
        self.reset()

    def _become_primary(self) -> None:
        hello = p4rt.StreamMessageRequest()
        hello.arbitration.device_id = 1
        hello.arbitration.election_id.low = 1
        ended = threading.Event()
        self._stack.callback(ended.set)

        def requests() -> Any:
            yield hello
            ended.wait()

        self._stream = self._stub.StreamChannel(requests())  # kept: the session ends with it
        next(self._stream)
        self._stack.callback(self._stream.cancel)

    def reset(self) -> None:
        if self._own:
            self.write(DELETE, self._own)  # A new program finds the multicast groups of the old one.
        self._marks_before = self._marks
        artifact = load_artifact(self.elements)
        request = p4rt.SetForwardingPipelineConfigRequest(
            device_id=1, action=p4rt.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        )
        request.election_id.low = 1
        request.config.p4_device_config = artifact.program
        text_format.Parse(artifact.p4info, request.config.p4info)
        self._stub.SetForwardingPipelineConfig(request, timeout=START_S)
        group = p4rt.Entity()
        multicast = group.packet_replication_engine_entry.multicast_group_entry
        multicast.multicast_group_id = MARK_GROUP
        for port in PORTS:
            if port != MARK_PORT:
                multicast.replicas.add(egress_port=port)
        mark = self.names.entry("l2", {"dst_mac": int.from_bytes(MARK_MAC, "big")}, "l2_flood", {"group": MARK_GROUP})
        self._own = [group, mark]
        self.write(INSERT, self._own)

    def write(self, how: int, entities: Iterable[p4rt.Entity]) -> None:
        for entity in entities:
            request = p4rt.WriteRequest(device_id=1)
            request.election_id.low = 1
            request.updates.add(type=how, entity=entity)
            self._stub.Write(request, timeout=ANSWER_S)

    def send(self, port: int, frame: bytes) -> Frames:
        self._marks += 1
        mark = MARK + self._marks.to_bytes(MARK_BYTES - len(MARK), "big")
        self._sockets[port].send(frame)
        self._sockets[MARK_PORT].send(mark)
        left: Frames = []
        awaited = {each: number for number, each in self._sockets.items() if number != MARK_PORT}
        give_up = time.monotonic() + ANSWER_S
        while awaited:
            ready, _, _ = select.select(list(awaited), [], [], max(0.0, give_up - time.monotonic()))
            assert ready, f"{BMV2} did not answer on ports {sorted(awaited.values())}"
            for each in ready:
                data, address = each.recvfrom(4096)
                if address[2] == socket.PACKET_OUTGOING:  # type: ignore[attr-defined]
                    continue
                if data == mark:
                    del awaited[each]
                else:
                    left.append((awaited[each], data))
        return sorted(left, key=lambda each: each[0])

    def counts(self) -> dict[str, dict[int, int]]:
        return {name: _nonzero(self._read(name)) for name in COUNTERS}

    def traffic(self) -> PortTraffic:
        """Without the marks."""
        found = {name: _passed(self._read(name)) for name in PORT_COUNTERS}
        marks = self._marks - self._marks_before
        for name, ports in (("port_in", {MARK_PORT}), ("port_out", set(PORTS) - {MARK_PORT})):
            for port in ports:
                packets, bytes_ = found[name].pop(port, (0, 0))
                if packets > marks:
                    found[name][port] = (packets - marks, bytes_ - marks * MARK_BYTES)
        return found

    def _read(self, counter: str) -> list[p4rt.Entity]:
        request = p4rt.ReadRequest(device_id=1, entities=[_asked(self.names, counter)])
        return [e for part in self._stub.Read(request, timeout=ANSWER_S) for e in part.entities]

    def close(self) -> None:
        self._stack.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)


def _raw(interface: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    made.bind((interface, 0))
    return made


# ---- the model of Tofino ----------------------------------------------------------------------------------------


class Model:
    """The compiled TNA program in the model of Tofino 1, without sockets."""

    slots, ranks = TOFINO.slots, TOFINO.ranks

    def __init__(self, elements: int) -> None:
        self.name, self.elements = "tofino", elements
        self._config = load_config(*_program(elements))
        self.names = Names(self._config.p4info)
        self._counters = {each.preamble.alias: each for each in self._config.p4info.counters}
        self._pipeline = self._start()

    def _start(self) -> ModelPipeline:
        return ModelPipeline(self._config, PORTS)

    def reset(self) -> None:
        self.close()
        self._pipeline = self._start()

    def write(self, how: int, entities: Iterable[p4rt.Entity]) -> None:
        with self._pipeline.writing():
            for entity in entities:
                self._pipeline.update(p4rt.Update(type=how, entity=entity))  # type: ignore[arg-type]

    def send(self, port: int, frame: bytes) -> Frames:
        return sorted(self._pipeline.send([(port, frame)]), key=lambda left: left[0])

    def counts(self) -> dict[str, dict[int, int]]:
        return {name: _nonzero(self._pipeline.read(_asked(self.names, name))) for name in COUNTERS}

    def traffic(self) -> PortTraffic:
        found: PortTraffic = {}
        for name in PORT_COUNTERS:
            found[name] = {}
            for port in PORTS:
                asked = _asked(self.names, name)
                asked.counter_entry.index.index = port
                passed = _passed(self._pipeline.read(asked))
                # The chip's counters count the frame check sequence, too.
                found[name] |= {port: (n, bytes_ - 4 * n) for port, (n, bytes_) in passed.items()}
        return found

    @property
    def harness(self) -> Harness:
        """The model's own commands."""
        return self._pipeline._chip.harness

    def close(self) -> None:
        self._pipeline.close()


def _program(elements: int) -> tuple[bytes, str]:
    artifact = load_artifact(elements, target=TOFINO)
    return artifact.program, artifact.p4info


# ---- which are here ---------------------------------------------------------------------------------------------


@functools.cache
def absent(name: str) -> str | None:
    """Why a target cannot be used here; None when it can."""
    if name == "embedded":
        return None
    if name == "bmv2":
        return missing("bmv2") or missing("root")
    if name == "tna":
        compiler = source.missing()
        return compiler and f"needs {compiler} on PATH (p4test reads the program, bf-p4c has tna.p4): docs/tofino.md"
    return None if shutil.which(HARNESS) else f"needs {HARNESS} on PATH: docs/tofino.md"


KINDS: dict[str, Callable[[int], Target]] = {"embedded": Embedded, "bmv2": Bmv2, "tna": Tofino, "tofino": Model}
