"""A chip's ports on sockets: what they carry is what the embedded switch's ports carry."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from emulation.errors import PortError
from emulation.switch.ports.open_port import OpenPort, open_ports
from emulation.switch.ports.port_spec import Endpoint
from emulation.switch.ports.registry import parse_port
from emulation.tofino.port_frames import PortFrames, require_plain

UDP_SEGMENT = 103
INSIDE = Endpoint("10.255.255.254", 4793)


@pytest.fixture
def host() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        made.settimeout(2)
        yield made


def opened(text: str) -> OpenPort:
    (port,) = open_ports([parse_port(text)])
    return port


def await_frames(port: PortFrames, count: int) -> list[bytes]:
    port._socket.setblocking(True)
    port._socket.settimeout(2)
    found: list[bytes] = []
    while len(found) < count:
        port._socket.recv(1, socket.MSG_PEEK)
        found += port.receive(count - len(found))
    return found


def test_a_datagram_gets_the_headers_of_a_network_card(host: socket.socket) -> None:
    raw = opened("7=udp:127.0.0.1:0")
    port = PortFrames(raw, INSIDE)
    host.sendto(b"netfold", raw.socket.getsockname())
    (frame,) = await_frames(port, 1)
    packet = Ether(frame)
    assert packet[Ether].dst == "02:00:00:00:00:01" and packet[Ether].src == "02:00:00:01:00:07"
    assert (packet[IP].src, packet[IP].dst) == (host.getsockname()[0], INSIDE.address)
    assert (packet[UDP].sport, packet[UDP].dport) == (host.getsockname()[1], INSIDE.port)
    assert bytes(packet[UDP].payload) == b"netfold"
    stated = packet[IP].chksum
    del packet[IP].chksum
    assert Ether(bytes(packet))[IP].chksum == stated
    raw.close()


def test_datagrams_that_were_sent_together_are_frames_of_their_own(host: socket.socket) -> None:
    raw = opened("7=udp:127.0.0.1:0")
    port = PortFrames(raw, INSIDE)
    host.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 100)
    host.sendto(bytes(250), raw.socket.getsockname())
    assert [len(Ether(frame)[UDP].payload) for frame in await_frames(port, 3)] == [100, 100, 50]
    raw.close()


def test_a_frame_leaves_as_a_datagram(host: socket.socket) -> None:
    raw = opened("7=udp:127.0.0.1:0")
    address, number = host.getsockname()
    frame = bytes(Ether() / IP(dst=address) / UDP(dport=number) / b"sum")
    cut, arp = frame[:-1], b"\xff" * 12 + b"\x08\x06" + bytes(46)
    PortFrames(raw).send([cut, arp, frame + b"padding"])
    assert host.recvfrom(100) == (b"sum", raw.socket.getsockname())
    raw.close()


def test_a_wire_carries_frames_and_believes_its_other_end_only(host: socket.socket) -> None:
    raw = opened(f"7=wire:127.0.0.1:0,127.0.0.1:{host.getsockname()[1]}")
    port = PortFrames(raw)
    assert host.recv(100) == b"", "where this end is"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"strange", raw.socket.getsockname())
    host.sendto(b"frame", raw.socket.getsockname())
    assert await_frames(port, 1) == [b"frame"]
    port.send([b"back"])
    assert host.recv(100) == b"back"
    raw.close()


def test_losses_and_duplicates_are_drawn_from_the_seed(host: socket.socket) -> None:
    def passed(seed: int) -> list[int]:
        raw = opened(f"7=udp:127.0.0.1:0,loss=0.3,duplicate=0.3,seed={seed}")
        port = PortFrames(raw)
        counted = []
        for _ in range(60):
            host.sendto(b"x", raw.socket.getsockname())
            raw.socket.setblocking(True)
            raw.socket.recv(1, socket.MSG_PEEK)
            counted.append(len(port.receive(1)))
        raw.close()
        return counted

    first = passed(1)
    assert {0, 1, 2} == set(first) and first == passed(1) != passed(2)


@pytest.mark.parametrize("option", ["delay=1ms", "bandwidth=1mbit", "reorder=0.1", "corrupt=0.1"])
def test_what_a_chips_port_does_not_do_is_refused(option: str) -> None:
    with pytest.raises(PortError, match="port 7: of links' options, a chip's ports have loss, duplicate and seed"):
        require_plain(parse_port(f"7=udp:127.0.0.1:0,{option}"))
