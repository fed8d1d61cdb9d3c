"""Links: rate, delay and faults of a port. Times are the kernel's; bounds leave room for a busy machine."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from socket import socket

import pytest

from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.cc import compile_program
from emulation.switch.compiler.program_writer import Generator
from emulation.switch.dataplane import MOST_PRIORITIES, STARTED_US, Dataplane
from emulation.switch.ports.open_port import open_ports
from emulation.switch.ports.port_spec import Endpoint, PortSpec
from emulation.switch.ports.registry import parse_port
from emulation.switch.ports.wire import Wire
from tests.conftest import ROOT
from tests.emulation.patch import frame, host, number, patched, receive, stats

ANY = Endpoint("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Link:
    """A switch between two wires: what is sent into the first leaves by the second."""

    dataplane: Dataplane
    first: socket
    second: socket

    def send(self, frames: list[bytes]) -> None:
        """All at once: the switch finds them together."""
        with self.dataplane.writing():
            for data in frames:
                self.first.send(data)

    def through(self, frames: list[bytes], expected: int) -> list[bytes]:
        self.send(frames)
        return [data for _, data in receive(self.second, expected)]


@contextmanager
def link(options: str, trust_dscp: bool = False) -> Iterator[Link]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(host()) for _ in range(2))
        address, port = second.getsockname()
        specs = [PortSpec(1, Wire(ANY)), parse_port(f"2=wire:127.0.0.1:0,{address}:{port},{options}")]
        ports = open_ports(specs)
        for each in ports:
            stack.callback(each.socket.close)
        first.connect(ports[0].socket.getsockname())
        assert receive(second, 1)[0][1] == b""  # The wire says where it begins.
        yield Link(stack.enter_context(patched(ports, None, trust_dscp)), first, second)


def test_a_rate_is_kept_and_nothing_is_lost_or_reordered() -> None:
    count, size = 6000, 1000
    with link(f"bandwidth=20mbit,queue={count}") as made:
        for start in range(0, count, 100):
            made.send([frame(2, start + n, size) for n in range(100)])
        arrived = receive(made.second, count)
    assert [number(data) for _, data in arrived] == list(range(count))
    seconds = arrived[-1][0] - arrived[0][0]
    assert seconds >= 2
    assert (count - 1) * size * 8 / seconds == pytest.approx(20e6, rel=0.1)


def test_a_burst_may_leave_at_once() -> None:
    with link("bandwidth=100kbit,burst=20000") as made:
        before = time.time()
        made.send([frame(2, n, 1000) for n in range(25)])
        last = receive(made.second, 25)[-1][0]
    # 20 of them at once, and 5 more at 80 ms each; without a burst it would be 2 s.
    assert 0.4 <= last - before < 1.5


def test_a_full_queue_drops_what_comes_last() -> None:
    with link("bandwidth=1mbit,queue=10") as made:
        made.send([frame(2, n, 1000) for n in range(50)])
        counted = stats(made.dataplane, 2, queue_dropped=40)
        assert [number(data) for _, data in receive(made.second, 10)] == list(range(10))
        assert (counted["queue_dropped"], counted["queue_depth_max"]) == (40, 10)
        after = stats(made.dataplane, 2, packets_out=10)
        assert (after["queue_depth"], after["bytes_out"]) == (0, 10_000)


NOT_CAPABLE, ECT_1, ECT_0, CE, DSCP = 0, 1, 2, 3, 0xB8  # RFC 3168; a code point beside it


def packet(type_of_service: int, identification: int = 0) -> bytes:
    """A frame of IPv4 that leaves through port 2."""
    header = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        type_of_service,
        120,
        identification,
        0,
        64,
        6,
        0,
        bytes([10, 0, 0, 1]),
        bytes([10, 0, 0, 2]),
    )
    return frame(2)[:12] + b"\x08\x00" + header[:10] + struct.pack("!H", ip_checksum(header)) + header[12:] + bytes(100)


def ip_checksum(header: bytes) -> int:
    """RFC 1071; 0 if the header has a right one."""
    total = sum(struct.unpack("!10H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def test_a_queue_marks_what_finds_it_long_and_mends_the_checksum() -> None:
    sent = [packet(DSCP | ecn, number) for number, ecn in enumerate([ECT_0, ECT_1, ECT_0, ECT_1, CE, ECT_0, ECT_1, CE])]
    with link("bandwidth=1mbit,queue=10,mark=3:3") as made:
        arrived = made.through(sent, len(sent))
        counted = made.dataplane.port_stats(2)
    assert arrived == [*sent[:3], *(packet(DSCP | CE, number) for number in range(3, len(sent)))]
    assert (counted["marked"], counted["queue_dropped_early"], counted["queue_dropped"]) == (5, 0, 0)


def test_every_mended_checksum_is_right() -> None:
    with link("bandwidth=10mbit,queue=200,mark=1:1") as made:
        # One in 100 identifications: carries of the sum come and go.
        for start in range(0, 1 << 16, 100 * 128):
            sent = [packet(ECT_0, number) for number in range(start, min(start + 100 * 128, 1 << 16), 100)]
            arrived = made.through(sent, len(sent))
            assert all(ip_checksum(data[14:34]) == 0 for data in arrived)
            assert [data[15] for data in arrived[1:]] == [CE] * (len(sent) - 1)


def test_a_queue_drops_some_in_place_of_marks_where_the_sender_would_not_listen() -> None:
    sent = [packet(DSCP | NOT_CAPABLE, number) for number in range(1000)]
    with link("bandwidth=5mbit,queue=2000,mark=3:3") as made:
        made.send(sent[:500])
        made.send(sent[500:])
        stats(made.dataplane, 1, packets_in=len(sent))
        counted = made.dataplane.port_stats(2)
        dropped = counted["queue_dropped_early"]
        arrived = [data for _, data in receive(made.second, len(sent) - dropped)]
    assert set(arrived) < set(sent)
    assert 50 < dropped < 200  # a tenth of nearly all
    assert (counted["marked"], counted["queue_dropped"]) == (0, 0)


def test_between_the_two_lengths_a_queue_marks_a_few() -> None:
    sent = [packet(ECT_0, number) for number in range(1000)]
    with link("bandwidth=5mbit,queue=2000,mark=100:1100") as made:
        made.send(sent[:500])
        made.send(sent[500:])
        arrived = [data for _, data in receive(made.second, len(sent))]
        counted = made.dataplane.port_stats(2)
    marked = sum(data[15] == CE for data in arrived)
    assert 0 < counted["marked"] == marked < 100  # some 40 of 1000


def test_frames_that_cannot_say_it_pass_and_nothing_is_marked_unasked() -> None:
    sent = [frame(2, number) for number in range(8)]
    with link("bandwidth=1mbit,queue=10,mark=1:1") as made:
        assert made.through(sent, len(sent)) == sent
    sent = [packet(ECT_0, number) for number in range(8)]
    with link("bandwidth=1mbit,queue=10") as made:
        assert made.through(sent, len(sent)) == sent
        counted = made.dataplane.port_stats(2)
    assert (counted["marked"], counted["queue_dropped_early"]) == (0, 0)


def test_a_delay_is_at_least_what_was_asked_and_keeps_order() -> None:
    with link("delay=50ms,bandwidth=100mbit") as made:
        before = time.time()
        made.send([frame(2, n) for n in range(50)])
        arrived = receive(made.second, 50)
    assert [number(data) for _, data in arrived] == list(range(50))
    assert arrived[0][0] - before >= 0.05


def test_hosts_are_delayed_both_ways() -> None:
    with ExitStack() as stack:
        end = stack.enter_context(host())
        ports = open_ports([parse_port("2=udp:127.0.0.1:0,delay=30ms")])
        stack.callback(ports[0].socket.close)
        stack.enter_context(patched(ports, Endpoint(*end.getsockname())))
        before = time.time()
        end.sendto(b"there and back", ports[0].socket.getsockname())
        ((at, data),) = receive(end, 1)
    assert data == b"there and back" and at - before >= 0.06


FAULTS = "loss=0.2,duplicate=0.2,corrupt=0.2"


def faulty(options: str) -> list[bytes]:
    """What is left of 400 frames."""
    sent = [frame(2, n) for n in range(400)]
    with link(options) as made:
        for start in range(0, len(sent), 50):
            made.send(sent[start : start + 50])
        counted = stats(made.dataplane, 1, packets_in=len(sent))
        counted = made.dataplane.port_stats(2)
        arrived = [data for _, data in receive(made.second, len(sent) - counted["lost"] + counted["duplicated"])]
        assert counted["lost"] > 0 and counted["duplicated"] > 0 and counted["corrupted"] > 0
        damaged = len([data for data in set(arrived) if data not in set(sent)])
        assert damaged == counted["corrupted"]
    return arrived


def test_faults_come_again_with_their_seed() -> None:
    once = faulty(f"{FAULTS},seed=5")
    assert faulty(f"{FAULTS},seed=5") == once
    assert faulty(f"{FAULTS},seed=6") != once


def test_reordered_frames_come_late_and_whole() -> None:
    sent = [frame(2, n) for n in range(200)]
    with link("reorder=0.3,seed=1") as made:
        arrived = made.through(sent, len(sent))
        assert made.dataplane.port_stats(2)["reordered"] > 0
    assert sorted(arrived) == sent and arrived != sent


def test_a_corrupted_frame_differs_in_one_bit() -> None:
    with link("corrupt=0.999,seed=2") as made:
        (arrived,) = made.through([frame(2)], 1)
    difference = int.from_bytes(arrived, "big") ^ int.from_bytes(frame(2), "big")
    assert difference.bit_count() == 1


def test_a_corrupted_datagram_still_reaches_its_host() -> None:
    """Rebuilt headers are none that a link could damage: they say whom the datagram is for."""
    with ExitStack() as stack:
        end = stack.enter_context(host())
        ports = open_ports([parse_port("2=udp:127.0.0.1:0,corrupt=0.999,seed=3")])
        stack.callback(ports[0].socket.close)
        dataplane = stack.enter_context(patched(ports, Endpoint(*end.getsockname())))
        for _ in range(50):
            end.sendto(bytes(100), ports[0].socket.getsockname())
        arrived = [data for _, data in receive(end, 50)]
        assert dataplane.port_stats(2)["corrupted"] >= 90
    # Damaged on the way in, and on the way out.
    assert {int.from_bytes(data, "big").bit_count() for data in arrived} <= {0, 1, 2}


def through_a_queue(
    program: Program, sent: Sequence[bytes], count: int, options: str = "", priorities: int = MOST_PRIORITIES
) -> tuple[list[bytes], dict[str, int]]:
    """What leaves by port 2, at 800 kbit/s, of packets that come together: so many. And the port's counters."""
    library = compile_program(Generator(program).generate())
    with ExitStack() as stack:
        first, second = (stack.enter_context(host()) for _ in range(2))
        address, port = second.getsockname()
        wires = ["1=wire:127.0.0.1:0", f"2=wire:127.0.0.1:0,{address}:{port},bandwidth=800kbit{options}"]
        ports = open_ports([parse_port(text) for text in wires])
        for each in ports:
            stack.callback(each.close)
        dataplane = Dataplane(library, program)
        stack.callback(dataplane.close)
        dataplane.attach(ports, None, priorities=priorities)
        dataplane.start()
        with dataplane.writing():  # They wait together.
            for data in sent:
                first.sendto(data, ports[0].socket.getsockname())
        # A wire says who it is, with nothing in it.
        arrived = [data for _, data in receive(second, count + 1) if data]
        return arrived, dataplane.port_stats(2)


def test_a_program_sees_the_queue_that_its_packet_will_wait_in() -> None:
    """Ten milliseconds each at 800 kbit/s; tests/data/queue.p4 writes what it sees into the packet."""
    program = Program((ROOT / "tests" / "data" / "queue.json").read_bytes())
    arrived, _ = through_a_queue(program, [bytes(1000)] * 30, 30)
    seen = [struct.unpack_from(">4I", data) for data in arrived]
    entered, depths, waits, left_behind = zip(*seen, strict=True)
    assert left_behind == depths and max(depths) > 10
    # Since the switch's start.
    assert time.monotonic() - STARTED_US / 1e6 - 10 < entered[0] / 1e6 < time.monotonic() - STARTED_US / 1e6
    assert (depths[0], waits[0]) == (0, 0) and all(1 <= depths[n] <= n for n in range(1, 30))
    turns = [at + wait for at, wait in zip(entered, waits, strict=True)]
    # The first went to the queue a moment after it had looked.
    assert all(9_999 <= after - before <= 10_001 for before, after in pairwise(turns[1:]))
    # Of those before it, the first may have left in part.
    assert all(wait <= depth * 10_000 for wait, depth in zip(waits, depths, strict=True))
    with_no_rate = Dataplane(compile_program(Generator(program).generate()), program)
    ((_, left),) = with_no_rate.process(1, bytes(1000))
    with_no_rate.close()
    assert struct.unpack_from(">4I", left)[1:] == (0, 0, 0)


def _with_priorities() -> Program:
    """tests/data/queue.p4, whose first 32 bits are the packet's priority, too."""
    described = json.loads((ROOT / "tests" / "data" / "queue.json").read_bytes())
    (ingress,) = (each for each in described["actions"] if each["name"] == "queue22")
    first = {"type": "field", "value": ["queue", "enq_timestamp"]}
    masked = {"op": "&", "left": first, "right": {"type": "hexstr", "value": "0x7"}}
    value = {"type": "expression", "value": {"type": "expression", "value": masked}}
    priority = {"type": "field", "value": ["standard_metadata", "priority"]}
    ingress["primitives"].append({"op": "assign", "parameters": [priority, value]})
    return Program(json.dumps(described).encode())


def test_the_highest_priority_leaves_first_and_others_in_their_order() -> None:
    """Ten milliseconds each at 800 kbit/s; the packets of a priority that has no queue are dropped."""
    program = _with_priorities()
    sent = [0, 0, 0, 2, 3, 2, 4, 7, 1, 3, *[0] * 6]
    packets = [struct.pack(">I12xI", priority, n) + bytes(980) for n, priority in enumerate(sent)]
    arrived, counted = through_a_queue(program, packets, 11, ",queue=6", priorities=4)
    order = [struct.unpack_from(">I", data, 16)[0] for data in arrived]
    # The link was free for the first. Six of priority 0 may be there, with the one that leaves.
    assert order == [0, 4, 9, 3, 5, 8, 1, 2, 10, 11, 12]
    assert (counted["queue_dropped"], counted["queue_depth"]) == (5, 0)
    waits = {n: struct.unpack_from(">8xI", data)[0] for n, data in zip(order, arrived, strict=True)}
    # What a packet sees ahead leaves before it. It cannot see who will overtake it.
    assert 15_000 < waits[9] <= 20_000 and 5_000 < waits[3] <= 10_000


def test_what_others_wait_for_overtakes_where_dscp_is_trusted() -> None:
    """By class: CS6, EF (of class 5), CS1 and none; of IPv4, of IPv6 and behind a VLAN tag."""
    services = [0, 0, 0x20, 0, 0xB8, 0xC0, 0, 0xC0]
    sent = [packet(service, number) for number, service in enumerate(services)]
    sent += [frame(2)[:12] + b"\x86\xdd" + bytes([0x6C, 0]) + bytes(118)]
    sent += [sent[5][:12] + b"\x81\x00\x00\x01" + sent[5][12:], frame(2)[:12] + b"\x88\xb5" + b"\xff" * 110]
    with link("bandwidth=1mbit,queue=20", trust_dscp=True) as made:
        arrived = made.through(sent, len(sent))
    # The link was free for the first.
    assert [sent.index(data) for data in arrived] == [0, 5, 7, 8, 9, 4, 2, 1, 3, 6, 10]
    with link("bandwidth=1mbit,queue=20") as made:
        assert made.through(sent, len(sent)) == sent


def test_a_switch_with_nothing_to_do_sleeps() -> None:
    with link("delay=1ms,bandwidth=1mbit") as made:
        made.through([frame(2)], 1)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(1)
        assert time.process_time() - before < 0.2
