"""Ports: what goes in comes out, byte for byte, whatever the kernel does to it on the way."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from emulation.errors import PortError
from emulation.switch.dataplane import Dataplane
from emulation.switch.ports.open_port import OpenPort, open_ports
from emulation.switch.ports.packet_socket import PacketSocket
from emulation.switch.ports.port_spec import Endpoint, Faults, PortSpec, Shape
from emulation.switch.ports.registry import parse_port
from emulation.switch.ports.udp import UdpSocket
from emulation.switch.ports.wire import Wire
from hostlib.system.interfaces import CHOSEN_FROM, TRIES, unused_udp_ports
from hostlib.system.network_namespace import inside, veths
from hostlib.system.process import Starting
from tests.conftest import ROOT
from tests.emulation.patch import UDP_SEGMENT, frame, host, mac, number, patched, receive, stats
from tests.iproute import ip

SOL_PACKET, PACKET_AUXDATA = 263, 8
ANY = Endpoint("127.0.0.1", 0)


# ---- specifications ---------------------------------------------------------------------------------------------


def test_an_interface_with_its_link() -> None:
    text = "3=eth:veth1,bandwidth=2.5gbit,delay=150us,queue=10,burst=3000,loss=0.1,corrupt=0.2,seed=7"
    spec = parse_port(text)
    assert (spec.number, spec.place) == (3, PacketSocket("veth1"))
    assert spec.shape == Shape(2.5e9, 150_000, 10, 3000)
    assert spec.faults == Faults(loss=0.1, corrupt=0.2, seed=7)
    assert parse_port("3=veth1,bandwidth=1gbit,mark=20:60").shape == Shape(1e9, mark=(20, 60))
    assert parse_port("3=veth1,bandwidth=1gbit", shape=Shape(mark=(5, 5))).shape == Shape(1e9, mark=(5, 5))
    assert parse_port("3=veth1") == PortSpec(3, PacketSocket("veth1"))
    assert parse_port("3=veth1,direct=yes,direct=no") == PortSpec(3, PacketSocket("veth1", direct=False))


def test_a_port_has_the_defaults_that_it_does_not_change() -> None:
    spec = parse_port("1=wire:127.0.0.1:1,127.0.0.1:2,delay=1s", Faults(loss=0.5, seed=3), Shape(1e6, 5, 7))
    assert spec.faults == Faults(loss=0.5, seed=3)
    assert spec.shape == Shape(1e6, 10**9, 7)
    assert spec.place == Wire(Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1=", "is not WHERE, which is one of udp:ADDRESS:PORT"),
        ("1=tcp:127.0.0.1:1", "is not WHERE, which is one of udp:ADDRESS:PORT"),
        ("1=eth:", "is not WHERE, which is one of udp:ADDRESS:PORT"),
        ("1=a-name-that-is-too-long", "cannot be the name of a network interface"),
        ("1=veth1,veth2", "'veth2' is not NAME=VALUE, and is too much for eth:INTERFACE or INTERFACE"),
        ("1=veth1,rate=fast", "bandwidth 'fast' is not a number and one of bit, kbit, mbit, gbit, tbit (as in 25gbit)"),
        ("1=veth1,bandwidth=0mbit", "is not above 0"),
        ("1=veth1,bandwidth=0.5bit", "less than 1bit"),
        ("1=veth1,delay=2", "delay '2' is not a number and one of ns, us, ms, s (as in 5us)"),
        ("1=veth1,delay=2h", "one of ns, us, ms, s"),
        ("1=veth1,delay=3601s", "longer than an hour"),
        ("1=veth1,loss=1", "loss 1.0 is not a probability in [0, 1)"),
        ("1=veth1,corrupt=often", "'often' is not a probability"),
        ("1=veth1,queue=0", "at least 1 frame"),
        ("1=veth1,queue=-1", "not a whole number"),
        ("1=veth1,mark=20", "mark=20: mark '20' is not two numbers of frames, FROM:TO (as in 30:90)"),
        ("1=veth1,mark=20:x", "is not two numbers of frames"),
        ("1=veth1,mark=60:20", "mark '60:20' is not FROM:TO with FROM at least 1, TO at least FROM"),
        ("1=veth1,mark=0:20", "FROM at least 1"),
        ("1=veth1,mark=20:60", "port 1: mark needs a bandwidth: nothing waits for a link without one"),
        ("1=veth1,direct=often", "direct is yes or no"),
        ("1=udp:127.0.0.1:1,direct=no", "direct is only for eth:INTERFACE or INTERFACE"),
        ("1=veth1,jitter=1ms", "there is no 'jitter'; there are bandwidth, delay, queue, burst, mark, loss"),
    ],
)
def test_what_is_wrong_with_a_port_is_one_line(text: str, says: str) -> None:
    with pytest.raises(PortError) as error:
        parse_port(text)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(PortError, match=r"port 1: there is no network interface nowhere; there are .*lo"):
        open_ports([parse_port("1=nowhere")])


# ---- UDP and wires ----------------------------------------------------------------------------------------------

# Runs that can go as one, and where they end: another size, a shorter one, an empty one.
SIZES = [1000] * 70 + [900] + [1000] * 3 + [0] + [8, 9, 10] + [500] * 40 + [1] + [1000] * 20


def test_datagrams_that_leave_as_one_arrive_as_they_were() -> None:
    sent = [bytes([n % 256]) * size for n, size in enumerate(SIZES)]
    with ExitStack() as stack:
        sender, receiver = stack.enter_context(host()), stack.enter_context(host())
        ports = _opened(stack, PortSpec(1, UdpSocket(ANY)), PortSpec(2, UdpSocket(ANY)))
        dataplane = stack.enter_context(patched(ports, Endpoint(*receiver.getsockname())))
        with dataplane.writing():  # They wait together.
            for data in sent:
                sender.sendto(data, ports[0].socket.getsockname())
        assert [data for _, data in receive(receiver, len(sent))] == sent
        counted = stats(dataplane, 2, packets_out=len(sent))
        assert counted["packets_out"] == len(sent)
        assert counted["bytes_out"] == sum(42 + size for size in SIZES)


def test_datagrams_of_one_size_leave_as_one() -> None:
    with ExitStack() as stack:
        sender, receiver = stack.enter_context(host()), stack.enter_context(host(gro=1))
        ports = _opened(stack, PortSpec(1, UdpSocket(ANY)), PortSpec(2, UdpSocket(ANY)))
        dataplane = stack.enter_context(patched(ports, Endpoint(*receiver.getsockname())))
        with dataplane.writing():
            for n in range(30):
                sender.sendto(bytes([n]) * 1000, ports[0].socket.getsockname())
        ((_, data),) = receive(receiver, 1)
        assert data == b"".join(bytes([n]) * 1000 for n in range(30))


def test_datagrams_that_arrive_as_one_are_told_apart() -> None:
    with ExitStack() as stack:
        sender, receiver = stack.enter_context(host(segment=700)), stack.enter_context(host())
        ports = _opened(stack, PortSpec(1, UdpSocket(ANY)), PortSpec(2, UdpSocket(ANY)))
        dataplane = stack.enter_context(patched(ports, Endpoint(*receiver.getsockname())))
        sent = [bytes([n]) * 700 for n in range(20)] + [b"short"]
        sender.sendto(b"".join(sent), ports[0].socket.getsockname())
        assert [data for _, data in receive(receiver, len(sent))] == sent
        assert dataplane.port_stats(1)["packets_in"] == len(sent)


def test_frames_on_wires() -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(host(segment=200)) for _ in range(2))
        end = Endpoint(*second.getsockname())
        ports = _opened(stack, PortSpec(1, Wire(ANY)), PortSpec(2, Wire(ANY, end)))
        assert receive(second, 1)[0][1] == b""  # The wire says where it begins.
        stack.enter_context(patched(ports))
        sent = [frame(2, n, 200) for n in range(40)]
        first.sendto(b"".join(sent), ports[0].socket.getsockname())
        assert [data for _, data in receive(second, len(sent))] == sent


def test_a_wire_takes_frames_from_its_other_end_alone() -> None:
    """A stranger's datagrams, empty or not, neither get in nor turn the wire round to him."""
    with ExitStack() as stack:
        first, second, stranger = (stack.enter_context(host()) for _ in range(3))
        ends = [Wire(ANY, Endpoint(*end.getsockname())) for end in (first, second)]
        ports = _opened(stack, *(PortSpec(n, end) for n, end in enumerate(ends, 1)))
        assert [receive(end, 1)[0][1] for end in (first, second)] == [b"", b""]
        dataplane = stack.enter_context(patched(ports))
        for port in ports:
            for data in (b"", frame(1), frame(2)):
                stranger.sendto(data, port.socket.getsockname())
        for port in (1, 2):
            counted = stats(dataplane, port, strangers=3)
            assert (counted["strangers"], counted["packets_in"], counted["packets_out"]) == (3, 0, 0)
        for sender, port, receiver in ((first, 0, second), (second, 1, first)):
            sent = frame(2 - port, 7)
            sender.sendto(sent, ports[port].socket.getsockname())
            assert receive(receiver, 1)[0][1] == sent
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.recv(1)


def test_a_wire_that_is_told_no_other_end_keeps_the_first() -> None:
    """Also when another program takes it over."""
    with ExitStack() as stack:
        first, second, stranger = (stack.enter_context(host()) for _ in range(3))
        ports = _opened(stack, PortSpec(1, Wire(ANY)), PortSpec(2, Wire(ANY, Endpoint(*second.getsockname()))))
        receive(second, 1)
        ask, answer = ports[0].socket.getsockname(), ports[1].socket.getsockname()
        with patched(ports) as dataplane:
            second.sendto(frame(1), answer)
            stats(dataplane, 1, send_failed=1)  # nobody is there yet
            first.sendto(b"", ask)
            stranger.sendto(b"", ask)
            assert stats(dataplane, 1, strangers=1)["strangers"] == 1
            second.sendto(frame(1, 5), answer)
            assert number(receive(first, 1)[0][1]) == 5
        with patched(ports) as dataplane:
            stranger.sendto(frame(2), ask)
            assert stats(dataplane, 1, strangers=1)["packets_in"] == 0
            second.sendto(frame(1, 6), answer)
            assert number(receive(first, 1)[0][1]) == 6


def test_a_wire_believes_an_address_with_a_port() -> None:
    """The same port of another address, or another port, is a stranger; who comes back to both is the other end."""
    with ExitStack() as stack:
        (port,) = _opened(stack, PortSpec(1, Wire(ANY, Endpoint("127.0.0.1", unused_udp_ports("127.0.0.1", 1)[0]))))
        wire = port.socket.getsockname()
        other_end = port.spec.place.peer
        dataplane = stack.enter_context(patched([port]))
        dropped = 0
        for restart in range(1, 3):
            for address, number_ in (("127.0.0.2", other_end.port), ("127.0.0.1", 0)):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                    stranger.bind((address, number_))
                    stranger.sendto(frame(1), wire)
                dropped += 1
                assert stats(dataplane, 1, strangers=dropped)["packets_in"] == restart - 1
            with host((other_end.address, other_end.port)) as peer:
                peer.sendto(frame(1, restart), wire)
                assert number(receive(peer, 1)[0][1]) == restart
        assert stats(dataplane, 1)["strangers"] == dropped == 4


def test_ports_for_processes_to_come_are_different_and_unused() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", unused_udp_ports("127.0.0.1", 1)[0]))
        taken = other.getsockname()[1]
        chosen = unused_udp_ports("127.0.0.1", 200)
        assert len({*chosen, taken}) == 201 and all(port in CHOSEN_FROM for port in chosen)
    with pytest.raises(OSError, match=r"127\.0\.0\.1 has no 1001 unused UDP ports in 20000\.\.32767"):
        unused_udp_ports("127.0.0.1", TRIES + 1)


def test_what_is_not_udp_cannot_leave_a_udp_port() -> None:
    with ExitStack() as stack:
        end = stack.enter_context(host())
        ports = _opened(stack, PortSpec(1, Wire(ANY)), PortSpec(2, UdpSocket(ANY)))
        dataplane = stack.enter_context(patched(ports))
        end.sendto(frame(2), ports[0].socket.getsockname())
        counted = stats(dataplane, 2, not_udp=1)
        assert (counted["packets_out"], counted["bytes_out"]) == (0, 0)


def _opened(stack: ExitStack, *specs: PortSpec) -> list[OpenPort]:
    ports = open_ports(list(specs))
    for port in ports:
        stack.callback(port.close)
    return ports


# ---- interfaces -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cabled:
    """A switch between veth pairs: ports 1 and 2, the hosts' ends as packet sockets."""

    space: str
    dataplane: Dataplane
    ports: list[OpenPort]
    hosts: dict[int, socket.socket]


def raw(interface: str, outgoing: bool = False) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    made.settimeout(20)
    made.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)  # SO_RCVBUFFORCE
    made.setsockopt(SOL_PACKET, 23, not outgoing)  # PACKET_IGNORE_OUTGOING
    made.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    made.bind((interface, 0))
    return made


@pytest.fixture(params=[True, False], ids=["direct", "packet-socket"])
def cabled(request: pytest.FixtureRequest) -> Iterator[Cabled]:
    """Whichever way frames leave, the rest is the same."""
    with ExitStack() as stack:
        space = stack.enter_context(veths(2, "test"))
        specs = [PortSpec(n, PacketSocket(f"s{n}", direct=request.param)) for n in (1, 2)]
        ports = inside(space, lambda: open_ports(specs))
        hosts = inside(space, lambda: {n: raw(f"h{n}") for n in (1, 2)})
        for each in [*ports, *hosts.values()]:
            stack.callback(each.close)
        yield Cabled(space, stack.enter_context(patched(ports)), ports, hosts)


@pytest.mark.root
def test_frames_between_interfaces(cabled: Cabled) -> None:
    sent = [frame(2, n, 60 + 17 * n % 1455) for n in range(500)]
    for data in sent:
        cabled.hosts[1].send(data)
    assert [cabled.hosts[2].recv(4096) for _ in sent] == sent
    counted = cabled.dataplane.port_stats(1)
    assert (counted["packets_in"], counted["bytes_in"]) == (len(sent), sum(map(len, sent)))
    # Nothing that the switch sends comes back to it.
    assert cabled.dataplane.port_stats(2)["packets_in"] == 0
    cabled.hosts[2].send(frame(1, 7))
    assert number(cabled.hosts[1].recv(4096)) == 7


@pytest.mark.root
def test_frames_that_come_faster_than_they_are_read_are_counted(cabled: Cabled) -> None:
    count = 5000
    with cabled.dataplane.writing():
        for n in range(count):
            cabled.hosts[1].send(frame(1, n))
    missed = stats(cabled.dataplane, 1, missed=1)["missed"]
    stats(cabled.dataplane, 1, packets_in=count - missed)
    cabled.hosts[1].send(frame(2))  # Room again.
    assert number(cabled.hosts[2].recv(4096)) == 0
    counted = cabled.dataplane.port_stats(1)
    assert (counted["packets_in"], counted["missed"]) == (count - missed + 1, missed)


@pytest.mark.root
def test_frames_that_an_interface_cannot_take_are_counted(cabled: Cabled) -> None:
    """Longer than its MTU; the others of the batch leave."""
    for end in ("s1", "h1"):
        ip("-n", cabled.space, "link", "set", end, "mtu", "1800")
    plain, tag = 1514, b"\x81\x00\x60\x01"
    frames = [frame(2, n, size) for n, size in enumerate([60, plain, plain + 1, plain, 1700, 61])]
    tagged = [data[:12] + tag + data[12:] for data in (frame(2, 6, plain), frame(2, 7, plain + 1))]
    with cabled.dataplane.writing():  # They wait together.
        for data in [*frames, *tagged, frame(2, 8)]:
            cabled.hosts[1].send(data)
    assert [number(cabled.hosts[2].recv(4096)) for _ in range(6)] == [0, 1, 3, 5, 6, 8]
    assert stats(cabled.dataplane, 2, oversized=3)["oversized"] == 3


@pytest.mark.root
def test_vlan_tags_survive(cabled: Cabled) -> None:
    plain = frame(2, 5)
    cabled.hosts[1].send(plain[:12] + struct.pack(">HH", 0x8100, 0x6123) + plain[12:])
    data, control, _, _ = cabled.hosts[2].recvmsg(4096, 256)
    status, _, _, _, _, tag, kind = struct.unpack("IIIHHHH", next(c[2] for c in control if c[1] == PACKET_AUXDATA))
    assert status & 0x10 and (kind, tag) == (0x8100, 0x6123)  # TP_STATUS_VLAN_VALID
    assert data == plain
    assert cabled.dataplane.port_stats(2)["bytes_out"] == len(plain) + 4


def local_socket(cabled: Cabled) -> socket.socket:
    """A UDP socket of the kernel on h1, that reaches 10.0.0.2 through port 2."""
    ip("-n", cabled.space, "address", "add", "10.0.0.1/24", "dev", "h1")
    address = ":".join(f"{byte:02x}" for byte in mac(2).to_bytes(6, "big"))
    ip("-n", cabled.space, "neighbour", "replace", "10.0.0.2", "lladdr", address, "dev", "h1")
    return inside(cabled.space, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


@pytest.mark.root
def test_checksums_that_hardware_would_have_filled_in(cabled: Cabled) -> None:
    with local_socket(cabled) as sender:
        for size in (0, 1, 2, 999, 1400):
            sender.sendto(bytes(n % 256 for n in range(size)), ("10.0.0.2", 5000))
            data = cabled.hosts[2].recv(4096)
            udp = data[34:]
            padded = data[26:34] + struct.pack(">HH", 17, len(udp)) + udp + b"\0" * (len(udp) % 2)
            total = sum(struct.unpack(f">{len(padded) // 2}H", padded))
            assert udp[6:8] != b"\0\0" and total % 0xFFFF == 0


@pytest.mark.root
def test_bursts_that_hardware_would_have_cut_are_dropped_and_counted(cabled: Cabled) -> None:
    with local_socket(cabled) as sender:
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
        sender.sendto(b"x" * 8000, ("10.0.0.2", 5000))
        counted = stats(cabled.dataplane, 1, oversized=1)
        assert (counted["oversized"], counted["packets_in"]) == (1, 0)
    cabled.hosts[1].send(frame(2, 9))
    assert number(cabled.hosts[2].recv(4096)) == 9


@pytest.mark.root
def test_an_interface_that_goes_down_and_comes_back(cabled: Cabled) -> None:
    ip("-n", cabled.space, "link", "set", "s2", "down")
    stats(cabled.dataplane, 2, link_down=1)
    # Nobody listens: the frame is lost, the switch sleeps on.
    ip("-n", cabled.space, "link", "set", "s2", "up")
    ip("-n", cabled.space, "link", "set", "s2", "down")
    cabled.hosts[1].send(frame(2))
    stats(cabled.dataplane, 2, link_down=2, send_failed=1)
    asleep(cabled.dataplane)
    ip("-n", cabled.space, "link", "set", "s2", "up")
    cabled.hosts[1].send(frame(2, 3))
    assert number(cabled.hosts[2].recv(4096)) == 3


@pytest.mark.root
def test_an_interface_that_is_taken_away(cabled: Cabled) -> None:
    ip("-n", cabled.space, "link", "delete", "s2")
    stats(cabled.dataplane, 2, link_down=1)
    cabled.hosts[1].send(frame(2))
    stats(cabled.dataplane, 2, send_failed=1)
    asleep(cabled.dataplane)
    cabled.hosts[1].send(frame(1, 4))
    assert number(cabled.hosts[1].recv(4096)) == 4


def asleep(dataplane: Dataplane) -> None:
    """Within the patience of a busy machine the loop stops turning."""
    for _ in range(100):
        before = dataplane.activity()
        time.sleep(0.2)
        if dataplane.activity() == before:
            return
    raise AssertionError("the packet loop spins")


@pytest.mark.root
def test_another_program_takes_over_the_ports(cabled: Cabled) -> None:
    cabled.hosts[1].send(frame(2, 1))
    assert number(cabled.hosts[2].recv(4096)) == 1
    cabled.dataplane.close()
    with patched(cabled.ports):
        for n in range(3):
            cabled.hosts[1].send(frame(2, n))
            assert number(cabled.hosts[2].recv(4096)) == n


def queued(stack: ExitStack, space: str) -> None:
    subprocess.run(["ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "s2", "root", "pfifo"], check=True)


def jumbo(stack: ExitStack, space: str) -> None:
    for end in ("s2", "h2"):
        ip("-n", space, "link", "set", end, "mtu", "9000")


def taken(stack: ExitStack, space: str) -> None:
    others = inside(space, lambda: open_ports([PortSpec(1, PacketSocket("s2"))]))
    stack.callback(others[0].close)
    stack.enter_context(patched(others))


def unknown(stack: ExitStack, space: str) -> None:
    """To the kernel."""
    stack.enter_context(pytest.MonkeyPatch.context()).setattr("emulation.switch.ports.packet_socket.AF_XDP", 255)


def left(stack: ExitStack, space: str) -> None:
    """Another switch was there a moment ago."""
    for _ in range(2):
        with ExitStack() as before:
            taken(before, space)


@pytest.mark.root
@pytest.mark.parametrize(
    ("prepare", "option", "seen"),
    [
        (None, "", False),
        (left, "", False),
        (None, ",direct=no", True),
        (queued, "", True),
        (jumbo, "", True),
        (taken, "", True),
        (unknown, "", True),
    ],
)
def test_frames_leave_past_taps_where_that_can_be(
    prepare: Callable[[ExitStack, str], None] | None, option: str, seen: bool
) -> None:
    with ExitStack() as stack:
        space = stack.enter_context(veths(2, "test"))
        if prepare is not None:
            prepare(stack, space)
        specs = [parse_port(f"2=s2{option}"), parse_port("1=s1")]
        ports = inside(space, lambda: open_ports(specs))
        hosts = inside(space, lambda: [raw("h1"), raw("h2"), raw("s2", outgoing=True)])
        for each in [*ports, *hosts]:
            stack.callback(each.close)
        stack.enter_context(patched(ports))
        sent = [frame(2, n, 60 + n) for n in range(100)]
        for data in sent:
            hosts[0].send(data)
        assert [hosts[1].recv(4096) for _ in sent] == sent
        hosts[1].send(frame(2, 1000))  # Back to where it came from: the tap hears at least what comes in.
        assert number(hosts[1].recv(4096)) == 1000
        heard = [number(hosts[2].recv(4096))]
        while heard[-1] != 1000:
            heard.append(number(hosts[2].recv(4096)))
        assert heard == ([*range(100), 1000] if seen else [1000])


@pytest.mark.root
def test_the_next_program_leaves_as_directly_as_it_can() -> None:
    def seen() -> list[int]:
        """What a tap at s2 hears of a frame that leaves there, and of one that comes in."""
        hosts[0].send(frame(2, 1))
        assert number(hosts[1].recv(4096)) == 1
        hosts[1].send(frame(2, 2))
        assert number(hosts[1].recv(4096)) == 2
        heard = [number(tap.recv(4096))]
        while heard[-1] != 2:
            heard.append(number(tap.recv(4096)))
        return heard

    with ExitStack() as stack:
        space = stack.enter_context(veths(2, "test"))
        other = inside(space, lambda: open_ports([parse_port("1=s2")]))
        ports = inside(space, lambda: open_ports([parse_port("1=s1"), parse_port("2=s2")]))
        hosts = inside(space, lambda: [raw("h1"), raw("h2")])
        for each in (*other, *ports, *hosts):
            stack.callback(each.close)
        with patched(other), patched(ports), inside(space, lambda: raw("s2", outgoing=True)) as tap:
            assert seen() == [1, 2]
        other[0].close()
        for _ in range(2):
            with patched(ports), inside(space, lambda: raw("s2", outgoing=True)) as tap:
                assert seen() == [2]


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_switch_on_interfaces_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    ready, build = tmp_path / "ready.json", ROOT / "p4" / "build" / "netfold-v1model-64"
    with veths(2, "test") as space:
        command = ["ip", "netns", "exec", space, sys.executable, "-m", "emulation", "switch", "--p4rt", "127.0.0.1:0"]
        command += ["--program", f"{build}.json", "--p4info", f"{build}.p4info.txtpb", "--ready-file", str(ready)]
        command += ["--port", "1=s1,bandwidth=100mbit,delay=2ms", "--port", "2=eth:s2"]
        ip("-n", space, "link", "set", "lo", "up")
        switch = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
        Starting("the switch", switch, ready, Path(os.devnull)).wait()
        assert _promiscuity(space) == 1
        switch.send_signal(number)
        _, errors = switch.communicate(timeout=20)
        assert (switch.returncode, errors) == (-number if number == signal.SIGKILL else 0, b"")
        assert _promiscuity(space) == 0


def _promiscuity(space: str) -> int:
    shown = subprocess.run(["ip", "-n", space, "-d", "link", "show", "s1"], capture_output=True, text=True, check=True)
    return int(shown.stdout.partition("promiscuity ")[2].split()[0])
