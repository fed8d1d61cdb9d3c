"""The embedded switch with BMv2's options: what scripts that start simple_switch_grpc rely on."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc
from pyroute2 import IPRoute

from hostlib.system.network_links import shape
from hostlib.system.network_namespace import inside, veths
from tests.conftest import ROOT
from tests.emulation.test_ports import raw
from tests.emulation.test_switch_process import CONFIG, Controller

PROGRAM = ROOT / "tests" / "data" / "queue.json"  # all that comes leaves by port 2
PATIENCE_S = 30.0


@contextmanager
def simple_switch(
    space: str, *options: str, name: str = "netfold-simple-switch-grpc"
) -> Iterator[subprocess.Popen[str]]:
    """Run it in a namespace, by its name on PATH as Mininet does, until SIGTERM."""
    command = ["ip", "netns", "exec", space, str(Path(sys.executable).parent / name), *options]
    switch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield switch
        switch.send_signal(signal.SIGTERM)
        assert switch.wait(PATIENCE_S) == 0
    finally:
        switch.kill()
        switch.wait()
        assert switch.stdout is not None
        switch.stdout.close()


def listening(space: str, port: int) -> None:
    """Wait as the tutorials' P4RuntimeSwitch does."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            return inside(space, lambda: socket.create_connection(("127.0.0.1", port), 1)).close()
        except OSError:
            assert time.monotonic() < give_up
            time.sleep(0.05)


def frames_of(path: Path) -> list[bytes]:
    """The frames of a pcap file, with what its header says."""
    data = path.read_bytes()
    magic, major, minor, _, _, longest, link = struct.unpack_from("=IHHiIII", data)
    assert (magic, major, minor, link) == (0xA1B2C3D4, 2, 4, 1)
    found, at = [], 24
    while at < len(data):
        seconds, micros, kept, size = struct.unpack_from("=4I", data, at)
        assert abs(seconds + micros / 1e6 - time.time()) < 60 and kept == size <= longest
        found.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    return found


@pytest.mark.parametrize("console", [True, False], ids=["log-console", "quiet"])
def test_a_command_line_of_the_tutorials(tmp_path: Path, console: bool) -> None:
    """What p4lang/tutorials' p4runtime_switch.py starts, word for word but for the switch's name."""
    port = 50051
    options = f"-i 1@s1 -i 2@s2 --pcap {tmp_path} --nanolog ipc:///tmp/bm-0-log.ipc --device-id 0 {PROGRAM}"
    options += f"{' --log-console' if console else ''} --thrift-port 9090 -- --grpc-server-addr 0.0.0.0:{port}"
    options += " --cpu-port 255 --priority-queues 8"
    sent = [bytes([n]) * 100 for n in range(1, 20)]
    with veths(2, "test") as space:
        first, second = inside(space, lambda: (raw("h1"), raw("h2")))
        with simple_switch(space, *options.split()) as switch, first, second:
            listening(space, port)
            for frame in sent:
                first.send(frame)
            arrived = [second.recv(2048) for _ in sent]
        # The program overwrites sixteen bytes.
        assert [frame[16:] for frame in arrived] == [frame[16:] for frame in sent]
        assert switch.returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {f"s{n}_{way}.pcap" for n in (1, 2) for way in ("in", "out")}
    assert frames_of(tmp_path / "s1_in.pcap") == sent and frames_of(tmp_path / "s2_out.pcap") == arrived
    assert frames_of(tmp_path / "s1_out.pcap") == frames_of(tmp_path / "s2_in.pcap") == []


def test_what_has_no_counterpart_says_so_and_packets_are_logged(tmp_path: Path) -> None:
    port, log = 50051, tmp_path / "s1.log"
    with veths(2, "test") as space:
        first, second = inside(space, lambda: (raw("h1"), raw("h2")))
        options = (
            f"{PROGRAM} -i 1@s1 -i 2@s2 --grpc-server-addr 127.0.0.1:{port} --debugger --thrift-port 9 --log-flush"
        )
        with simple_switch(space, *options.split(), "--log-file", str(log)) as switch, first, second:
            listening(space, port)
            first.send(bytes(60))
            second.recv(2048)
            switch.send_signal(signal.SIGTERM)
            said = switch.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert [line.split(":")[0] for line in said] == ["--debugger is ignored", "--thrift-port is ignored"]
    assert "leaves by port 2, 60 bytes" in log.read_text()


def test_a_controller_replaces_the_program_that_ran_from_the_start() -> None:
    """Device 0, and a program that has no P4Info until a controller sets one."""
    port = 50051
    with veths(2, "test") as space:
        first, second = inside(space, lambda: (raw("h1"), raw("h2")))
        options = f"-i 1@s1 -i 2@s2 {PROGRAM} -- --grpc-server-addr 127.0.0.1:{port}"
        with simple_switch(space, *options.split(), name="netfold-simple-switch"), first, second:
            listening(space, port)
            first.send(bytes(60))
            second.recv(2048)
            client = [sys.executable, "-c", f"from {__name__} import set_netfolds; set_netfolds({port})"]
            # Its own process: gRPC's threads stay in the namespace in which the first of them began.
            subprocess.run(["ip", "netns", "exec", space, *client], cwd=ROOT, check=True, timeout=PATIENCE_S)
            first.send(b"\x02" * 60)  # that program has no entries
            second.settimeout(0.5)
            with pytest.raises(TimeoutError):
                second.recv(2048)


def set_netfolds(port: int) -> None:
    """Set netfold's program at device 0, which has none that a controller could find."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        controller = Controller(p4runtime_pb2_grpc.P4RuntimeStub(channel), 1)
        assert controller.arbitrate(device_id=0) == 0
        none = controller.stub.GetForwardingPipelineConfig(p4rt.GetForwardingPipelineConfigRequest(device_id=0))
        assert not none.HasField("config")
        controller.config(
            CONFIG.VERIFY_AND_COMMIT, (ROOT / "p4/build/netfold-v1model-64.json").read_bytes(), device_id=0
        )
        controller.stream.cancel()


def test_a_folder_that_is_full_ends_the_capture_and_nothing_else(tmp_path: Path) -> None:
    """Six pages of memory, of which each of four files takes one at least."""
    port = 50051
    with veths(2, "test") as space:
        first, second = inside(space, lambda: (raw("h1"), raw("h2")))
        options = f"-i 1@s1 -i 2@s2 {PROGRAM} --pcap {tmp_path} -- --grpc-server-addr 127.0.0.1:{port}"
        mounted = f"mount -t tmpfs -o size=24k none {tmp_path} && exec {sys.executable} -m emulation switch --like-bmv2 {options}"
        command = ["unshare", "--mount", "ip", "netns", "exec", space, "sh", "-c", mounted]
        switch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        with first, second:
            try:
                listening(space, port)
                for n in range(20):
                    first.send(bytes([n]) * 1000)
                    assert second.recv(2048)[16:] == bytes([n]) * 984
            finally:
                switch.terminate()
                said, _ = switch.communicate(timeout=PATIENCE_S)
    assert said.count("a capture ends here: no room") == 2


def test_a_slow_interface_shows_its_queue_and_holds_up_no_other() -> None:
    """The queue is the kernel's, as Mininet's links have it; tests/data/queue.p4 writes what it sees into the packet."""
    port, sent = 50051, [struct.pack(">16xI", n) + bytes(980) for n in range(400)]
    with veths(2, "test") as space:
        inside(space, _slow)
        first, second = inside(space, lambda: (raw("h1"), raw("h2")))
        options = f"-i 1@s1 -i 2@s2 {PROGRAM} -- --grpc-server-addr 127.0.0.1:{port}"
        with simple_switch(space, *options.split()), first, second:
            listening(space, port)
            second.settimeout(1)
            for frame in sent[:300]:
                first.send(frame)
            time.sleep(0.5)  # The switch learns how fast the kernel sends.
            for frame in sent[300:]:
                first.send(frame)
            arrived: list[tuple[int, ...]] = []
            with contextlib.suppress(TimeoutError):
                while True:
                    arrived.append(struct.unpack_from(">5I", second.recv(2048)))
    entered, depths, waits, _, numbers = zip(*arrived, strict=True)
    assert list(numbers) == sorted(numbers) and numbers[:50] == tuple(range(50))
    # What the kernel holds is not seen, and what neither has room for is dropped.
    assert depths[0] == 0 and max(depths) > 50 and len(arrived) < 400
    assert max(waits) > 50_000
    # All went to the queue as they came, although the port took more than a second to send them.
    assert entered[49] - entered[0] < 300_000 and entered[-1] - entered[0] < 900_000


def _slow() -> None:
    """A link of 1 Mbit/s: eight milliseconds for each frame."""
    with IPRoute() as kernel:
        shape(kernel, "s2", 1e6)


def test_a_burst_of_signals_ends_it() -> None:
    """A parent's death sends one for each of the parent's threads."""
    with veths(1, "test") as space:
        command = ["ip", "netns", "exec", space, str(Path(sys.executable).parent / "netfold-simple-switch")]
        switch = subprocess.Popen([*command, *f"--no-p4 -i 1@s1 -- --grpc-server-addr 127.0.0.1:{50051}".split()])
        try:
            listening(space, 50051)
            for _ in range(500):
                switch.send_signal(signal.SIGTERM)
            assert switch.wait(PATIENCE_S) in (0, -signal.SIGTERM)
        finally:
            switch.kill()
            switch.wait()
