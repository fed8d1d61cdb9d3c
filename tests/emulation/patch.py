"""The committed program as a patch panel: what comes with a port's MAC as destination leaves there, unchanged. Frames with
a tag, too: what ports do to tags does not depend on whether a program carries them.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4rt

from controller.switches.program import load_artifact
from controller.switches.table_entries import Names
from emulation.switch.dataplane import Dataplane
from emulation.switch.p4runtime.pipeline import Pipeline, load_config
from emulation.switch.ports.open_port import OpenPort
from emulation.switch.ports.port_spec import Endpoint

SWITCH_MAC = 0x0200_0000_0001  # what rebuilt headers are sent to
SO_TIMESTAMPNS, UDP_SEGMENT, UDP_GRO = 35, 103, 104
PATIENCE_S = 20.0


def mac(port: int) -> int:
    return 0x06FE_0000_0000 | port


def frame(port: int, number: int = 0, size: int = 100) -> bytes:
    """A numbered frame that leaves through `port`."""
    head = mac(port).to_bytes(6, "big") + mac(0).to_bytes(6, "big") + b"\x88\xb5" + number.to_bytes(4, "big")
    return head + bytes((i + number) % 251 for i in range(size - len(head)))


def number(data: bytes) -> int:
    return int.from_bytes(data[14:18], "big")


@contextmanager
def patched(
    ports: Sequence[OpenPort], destination: Endpoint | None = None, trust_dscp: bool = False
) -> Iterator[Dataplane]:
    """A running switch on these ports; they stay open. Datagrams to UDP ports leave through port 2."""
    artifact = load_artifact(64)
    names = Names(text_format.Parse(artifact.p4info, p4info_pb2.P4Info()))
    pipeline = Pipeline(load_config(_with_tags(artifact.program), artifact.p4info))
    ways = {mac(port.number): port.number for port in ports} | {SWITCH_MAC: 2}
    try:
        with pipeline.dataplane.writing():
            for address, port in ways.items():
                entity = names.entry("l2", {"dst_mac": address}, "l2_forward", {"port": port})
                pipeline.update(p4rt.Update(type=p4rt.Update.INSERT, entity=entity))
        pipeline.dataplane.attach(ports, destination, trust_dscp=trust_dscp)
        pipeline.dataplane.start()
        yield pipeline.dataplane
    finally:
        pipeline.dataplane.close()


def _with_tags(program: bytes) -> bytes:
    """The program without its branch for frames with a VLAN tag."""
    described = json.loads(program)
    conditions = [each for pipeline in described["pipelines"] for each in pipeline["conditionals"]]
    (tagged,) = (each for each in conditions if "ETHERTYPE_VLAN" in json.dumps(each.get("source_info")))
    tagged["true_next"] = tagged["false_next"]
    return json.dumps(described).encode()


def host(bind: tuple[str, int] = ("127.0.0.1", 0), **options: int) -> socket.socket:
    """A UDP socket of a host, with kernel timestamps; options of SOL_UDP by name."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    for name, value in options.items():
        made.setsockopt(socket.IPPROTO_UDP, {"segment": UDP_SEGMENT, "gro": UDP_GRO}[name], value)
    made.settimeout(PATIENCE_S)
    made.bind(bind)
    return made


def receive(end: socket.socket, count: int) -> list[tuple[float, bytes]]:
    """(time, data) of the next datagrams; the time is the kernel's."""
    found = []
    while len(found) < count:
        data, control, _, _ = end.recvmsg(65536, 256)
        stamp = next(c[2] for c in control if c[:2] == (socket.SOL_SOCKET, SO_TIMESTAMPNS))
        seconds, nanoseconds = struct.unpack("qq", stamp)
        found.append((seconds + nanoseconds / 1e9, data))
    return found


def stats(dataplane: Dataplane, port: int, **awaited: int) -> dict[str, Any]:
    """A port's counters, as soon as these have come to their values."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        found = dataplane.port_stats(port)
        if all(found[name] >= value for name, value in awaited.items()):
            return found
        assert time.monotonic() < give_up, found
        time.sleep(0.005)
