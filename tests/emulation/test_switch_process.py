"""The switch as others meet it: P4Runtime from outside, plain forwarding, its command line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc

from emulation.errors import CompilerError
from emulation.switch.compiler.cc import require_compiler
from hostlib.system.process import Starting
from tests.conftest import ROOT

BUILD = ROOT / "p4" / "build"
PROGRAM = [
    "--program",
    str(BUILD / "netfold-v1model-64.json"),
    "--p4info",
    str(BUILD / "netfold-v1model-64.p4info.txtpb"),
]
SWITCH = [sys.executable, "-m", "emulation", "switch"]
CONFIG = p4rt.SetForwardingPipelineConfigRequest


def start_switch(folder: Path, *options: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    ready = folder / "ready.json"
    switch = subprocess.Popen(
        [*SWITCH, "--p4rt", "127.0.0.1:0", "--ready-file", ready, *options], cwd=ROOT, stderr=subprocess.PIPE
    )
    return switch, Starting("the switch", switch, ready, Path(os.devnull)).wait()


@dataclass(slots=True)
class Controller:
    """A P4Runtime client of the simplest kind."""

    stub: p4runtime_pb2_grpc.P4RuntimeStub
    election: int
    stream: Any = None

    def arbitrate(self, device_id: int = 1) -> int:
        """Open the stream and bid; the status code of the answer."""
        request = p4rt.StreamMessageRequest()
        request.arbitration.device_id, request.arbitration.election_id.low = device_id, self.election

        def requests() -> Iterator[Any]:
            yield request
            while True:
                time.sleep(3600)

        self.stream = self.stub.StreamChannel(requests())
        return int(next(self.stream).arbitration.status.code)

    def write(self, *updates: p4rt.Update) -> None:
        request = p4rt.WriteRequest(device_id=1, updates=updates)
        request.election_id.low = self.election
        self.stub.Write(request)

    def config(self, action: int, program: bytes | None = None, device_id: int = 1) -> None:
        request = CONFIG(device_id=device_id, action=action)
        request.election_id.low = self.election
        if program is not None:
            request.config.p4_device_config = program
            text_format.Parse((BUILD / "netfold-v1model-64.p4info.txtpb").read_text(), request.config.p4info)
        self.stub.SetForwardingPipelineConfig(request)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    switch, ready = start_switch(tmp_path_factory.mktemp("switch"), "--ports", "3", *PROGRAM)
    yield ready
    switch.send_signal(signal.SIGTERM)
    assert switch.wait(10) == 0
    assert switch.stderr is not None
    switch.stderr.close()


@pytest.fixture
def channel(running: dict[str, Any]) -> Iterator[p4runtime_pb2_grpc.P4RuntimeStub]:
    with grpc.insecure_channel(running["p4rt"]) as channel:
        yield p4runtime_pb2_grpc.P4RuntimeStub(channel)


@pytest.fixture
def controller(channel: p4runtime_pb2_grpc.P4RuntimeStub) -> Iterator[Controller]:
    """The primary."""
    controller = Controller(channel, time.time_ns() // 1000)
    assert controller.arbitrate() == code_pb2.OK
    yield controller
    controller.stream.cancel()


def route(address: str, port: int, how: int = p4rt.Update.INSERT) -> p4rt.Update:
    """An ipv4 entry, by the ids of the committed P4Info."""
    info = text_format.Parse(
        (BUILD / "netfold-v1model-64.p4info.txtpb").read_text(), p4rt.p4_dot_config_dot_v1_dot_p4info__pb2.P4Info()
    )
    table = next(t for t in info.tables if t.preamble.alias == "ipv4")
    action = next(a for a in info.actions if a.preamble.alias == "ipv4_forward")
    update = p4rt.Update(type=how)
    entry = update.entity.table_entry
    entry.table_id = table.preamble.id
    field = entry.match.add(field_id=1)
    field.lpm.value, field.lpm.prefix_len = IPv4Address(address).packed, 32
    entry.action.action.action_id = action.preamble.id
    for number, value in enumerate((port, 0x020000000001, 0x020000000002), start=1):
        entry.action.action.params.add(param_id=number, value=value.to_bytes(6, "big").lstrip(b"\0"))
    return update


def refusal(call: Any, *arguments: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        call(*arguments)
    return refused.value


def test_only_the_primary_may_write(controller: Controller, channel: p4runtime_pb2_grpc.P4RuntimeStub) -> None:
    backup = Controller(channel, controller.election - 1)
    assert backup.arbitrate() == code_pb2.ALREADY_EXISTS
    refused = refusal(backup.write, route("10.0.0.1", 1))
    assert refused.code() == grpc.StatusCode.PERMISSION_DENIED
    backup.stream.cancel()


def test_a_higher_bid_takes_over(controller: Controller, channel: p4runtime_pb2_grpc.P4RuntimeStub) -> None:
    later = Controller(channel, controller.election + 1)
    assert later.arbitrate() == code_pb2.OK
    assert next(controller.stream).arbitration.status.code == code_pb2.ALREADY_EXISTS
    assert refusal(controller.write, route("10.0.0.1", 1)).code() == grpc.StatusCode.PERMISSION_DENIED
    later.stream.cancel()


def test_an_unknown_device_and_a_used_election_id_are_refused(
    controller: Controller, channel: p4runtime_pb2_grpc.P4RuntimeStub
) -> None:
    assert refusal(Controller(channel, 1).arbitrate, 7).code() == grpc.StatusCode.NOT_FOUND
    assert refusal(Controller(channel, controller.election).arbitrate).code() == grpc.StatusCode.INVALID_ARGUMENT


def test_each_update_has_its_own_verdict(controller: Controller) -> None:
    unknown_action = route("10.0.0.2", 1)
    unknown_action.entity.table_entry.action.action.action_id = 1
    refused = refusal(controller.write, route("10.0.0.1", 1), route("10.0.0.1", 1), unknown_action)
    assert refused.code() == grpc.StatusCode.UNKNOWN
    metadata = dict(refused.trailing_metadata())
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    codes = []
    for detail in status.details:
        error = p4rt.Error()
        assert detail.Unpack(error)
        codes.append(error.canonical_code)
    assert codes == [code_pb2.OK, code_pb2.ALREADY_EXISTS, code_pb2.INVALID_ARGUMENT]
    controller.write(route("10.0.0.1", 1, p4rt.Update.DELETE))
    assert "no entry has this key" in refusal(controller.write, route("10.0.0.1", 1, p4rt.Update.DELETE)).details()


def test_entries_can_be_read_back(controller: Controller) -> None:
    controller.write(route("10.0.0.1", 1), route("10.0.0.2", 2))
    request = p4rt.ReadRequest(device_id=1)
    request.entities.add().table_entry.table_id = 0
    found = [e.table_entry for response in controller.stub.Read(request) for e in response.entities]
    assert len(found) == 2
    assert found[0] == route("10.0.0.1", 1).entity.table_entry
    controller.write(route("10.0.0.1", 1, p4rt.Update.DELETE), route("10.0.0.2", 2, p4rt.Update.DELETE))


def test_a_program_that_is_none_is_refused_and_the_old_one_stays(controller: Controller) -> None:
    refused = refusal(controller.config, CONFIG.VERIFY_AND_COMMIT, b"{}")
    assert refused.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "not a BMv2 JSON program" in refused.details()
    assert refusal(controller.config, CONFIG.COMMIT).code() == grpc.StatusCode.NOT_FOUND
    assert refusal(controller.config, CONFIG.RECONCILE_AND_COMMIT).code() == grpc.StatusCode.INVALID_ARGUMENT
    request = p4rt.GetForwardingPipelineConfigRequest(device_id=1)
    config = controller.stub.GetForwardingPipelineConfig(request).config
    assert config.p4_device_config == (BUILD / "netfold-v1model-64.json").read_bytes()


def test_saved_and_then_committed(controller: Controller) -> None:
    controller.write(route("10.0.0.9", 1))
    controller.config(CONFIG.VERIFY_AND_SAVE, (BUILD / "netfold-v1model-64.json").read_bytes())
    controller.config(CONFIG.COMMIT)
    controller.write(route("10.0.0.9", 1))  # a new pipeline starts empty
    controller.write(route("10.0.0.9", 1, p4rt.Update.DELETE))


def test_plain_packets_are_routed(controller: Controller, running: dict[str, Any]) -> None:
    """A datagram for a port's own address is an IPv4 packet to there: route it to the socket of a host."""
    info = text_format.Parse(
        (BUILD / "netfold-v1model-64.p4info.txtpb").read_text(), p4rt.p4_dot_config_dot_v1_dot_p4info__pb2.P4Info()
    )
    router = p4rt.Update(type=p4rt.Update.INSERT)
    entry = router.entity.table_entry
    entry.table_id = next(t.preamble.id for t in info.tables if t.preamble.alias == "router_mac")
    entry.match.add(field_id=1).exact.value = bytes.fromhex("020000000001")
    entry.action.action.action_id = next(a.preamble.id for a in info.actions if a.preamble.alias == "NoAction")
    controller.write(router, route("127.0.0.1", 2))
    address, port = running["ports"]["1"].split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        host.settimeout(5)
        # The switch's port 1 is the destination that the headers carry; port 2 forwards to that very address: port 1.
        host.sendto(b"hello", (address, int(port)))
        give_up = time.monotonic() + 5
        while counter(controller, info, "port_in", 1) < 2:
            assert time.monotonic() < give_up
    assert counter(controller, info, "port_out", 2) >= 1
    controller.config(CONFIG.VERIFY_AND_COMMIT, (BUILD / "netfold-v1model-64.json").read_bytes())


def counter(controller: Controller, info: Any, name: str, index: int) -> int:
    request = p4rt.ReadRequest(device_id=1)
    cell = request.entities.add().counter_entry
    cell.counter_id = next(c.preamble.id for c in info.counters if c.preamble.alias == name)
    cell.index.index = index
    (response,) = controller.stub.Read(request)
    return int(response.entities[0].counter_entry.data.packet_count)


# ---- the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "a switch needs ports"),
        (["--port", "1=udp:nowhere"], "is not ADDRESS:PORT"),
        (["--ports", "1", "--loss", "2"], "is not a probability"),
        (["--ports", "1", "--p4rt", "192.0.2.1:1"], "cannot listen for P4Runtime on 192.0.2.1:1"),
        (["--ports", "1", "--program", str(ROOT / "README.md"), "--p4info", PROGRAM[3]], "not a BMv2 JSON program"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(options: list[str], says: str) -> None:
    done = subprocess.run([*SWITCH, *options], cwd=ROOT, capture_output=True, text=True, timeout=60)
    lines = done.stderr.splitlines()
    assert done.returncode in (1, 2)
    assert len(lines) == 1 and lines[0].startswith("error: ") and says in lines[0]


OWN = [f"--program={ROOT}/tests/data/control.json", f"--p4info={ROOT}/tests/data/control.p4info.txtpb"]


@pytest.mark.parametrize("options", [OWN, [*PROGRAM, "--trace-packets"]], ids=["a program of one's own", "traced"])
def test_a_missing_compiler_is_said_at_once(tmp_path: Path, options: list[str]) -> None:
    done = subprocess.run(
        [*SWITCH, "--ports", "1", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/nowhere", "HOME": str(tmp_path), "CC": "no-such-compiler"},
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: no C compiler (no-such-compiler) on PATH: the switch compiles its program; "
        "apt-get install gcc libc6-dev, or set CC\n"
    )


def test_a_switch_that_can_run_no_program_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("emulation.switch.compiler.cc.precompiled", list)
    with pytest.raises(CompilerError, match=r"^no C compiler .*; apt-get install gcc libc6-dev, or set CC$"):
        require_compiler()


def test_netfolds_own_programs_need_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    switch, running = start_switch(tmp_path, *PROGRAM, "--ports", "1")
    switch.terminate()
    assert (switch.communicate(timeout=20)[1], switch.returncode) == (b"", 0)
    assert running["program"] == PROGRAM[1]
    assert not (tmp_path / "cache").exists()


def test_a_trace_tells_each_packets_way(tmp_path: Path) -> None:
    switch, running = start_switch(
        tmp_path, *PROGRAM, "--ports", "1", "--trace-packets", "--udp-destination", "10.0.0.9:9"
    )
    address, port = running["ports"]["1"].split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        host.sendto(b"hello", (address, int(port)))
    lines: list[str] = []
    assert switch.stderr is not None
    while not lines or lines[-1] != "trace: dropped in ingress":
        lines.append(switch.stderr.readline().decode().rstrip())
    assert lines[:3] == [
        "trace: packet of 47 bytes from port 1",
        "trace: parser state start",
        "trace:   extract ethernet",
    ]
    assert "trace: table fabric_address: miss" in lines
    assert "trace:   action ingress.forwarding.drop" in lines
    switch.terminate()
    switch.communicate(timeout=20)
    assert switch.returncode == 0


def test_an_idle_switch_ends_by_itself(tmp_path: Path) -> None:
    switch, _ = start_switch(tmp_path, "--ports", "1", "--exit-when-idle", "500ms")
    assert switch.wait(20) == 0
    assert switch.stderr is not None
    switch.stderr.close()
    assert not (tmp_path / "ready.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    switch, _ = start_switch(tmp_path, "--ports", "1")
    switch.send_signal(number)
    assert switch.wait(10) == 0
    assert switch.stderr is not None
    assert switch.stderr.read() == b""
    switch.stderr.close()
    assert not (tmp_path / "ready.json").exists()


# ---- signals while it starts ------------------------------------------------------------------------------------


def start_slowly(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """A switch that waits for its compiler, and the process that the compiler waits for."""
    compiler, waits = folder / "cc", folder / "waits"
    compiler.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo slow; exit; fi\n'
        f"sleep 300 & echo $! > {waits}.new; mv {waits}.new {waits}; wait\n"
    )
    compiler.chmod(0o755)
    environment = {**os.environ, "CC": str(compiler), "XDG_CACHE_HOME": str(folder)}
    command = [
        *SWITCH,
        "--p4rt",
        "127.0.0.1:0",
        "--ready-file",
        str(folder / "ready.json"),
        "--ports",
        "1",
        *PROGRAM,
    ]
    switch = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + 60
    while not waits.exists():
        assert switch.poll() is None and time.monotonic() < give_up
        time.sleep(0.02)
    return switch, int(waits.read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_its_program_is_compiled(tmp_path: Path, number: signal.Signals) -> None:
    switch, waiting = start_slowly(tmp_path)
    switch.send_signal(number)
    _, errors = switch.communicate(timeout=10)
    assert (switch.returncode, errors) == (0, "")
    assert not Path(f"/proc/{waiting}").exists() or "zombie" in Path(f"/proc/{waiting}/status").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"cc", "waits", "netfold"}
    assert list((tmp_path / "netfold").iterdir()) == []


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8])
def test_sigterm_ends_it_whenever_it_comes(tmp_path: Path, delay_s: float) -> None:
    command = [*SWITCH, "--p4rt", "127.0.0.1:0", "--ready-file", str(tmp_path / "ready.json"), "--ports", "500"]
    with subprocess.Popen([*command, *PROGRAM], cwd=ROOT, stderr=subprocess.PIPE, text=True) as switch:
        time.sleep(delay_s)
        switch.terminate()
        _, errors = switch.communicate(timeout=10)
    # Before it has taken the signal over, there is nothing to clean up.
    assert switch.returncode in (0, -signal.SIGTERM) and errors == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ports", "says"),
    [
        (100_000, "--ports 100000: a switch has ports 0 to 510"),
        (200, "Too many open files: a process may have 128 (ulimit -n)"),
        (100, "100 ports leave too few files: Too many open files: a process may have 128 (ulimit -n)"),
    ],
)
def test_more_ports_than_can_be_are_refused(ports: int, says: str) -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *SWITCH, "--ports", str(ports)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.endswith(f"{says}\n") and done.stderr.count("\n") == 1
