"""The rest of the language: what tests/data/language.p4 does to single frames, against a model in Python.

Random frames of every operation were once compared with BMv2's answers, byte for byte. Recompile after a change with
`p4c-bm2-ss --std p4-16 --p4runtime-files language.p4info.txtpb -o language.json language.p4` in tests/data.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator

import pytest

from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.cc import compile_program
from emulation.switch.compiler.program_writer import Generator
from emulation.switch.dataplane import Dataplane
from tests.conftest import ROOT

DATA = ROOT / "tests/data"
STACK, TEXT, NUMBER, WIDE, HASH, CLONE, RESUBMIT, RECIRCULATE, CUT, BIG, EGRESS_CLONE = range(1, 12)
PORT, CLONES, RESUBMITTED, RECIRCULATED = 1, 2, 3, 4
SESSION = 5
M128 = 2**128 - 1


@pytest.fixture(scope="module")
def switch() -> Iterator[Dataplane]:
    program = Program((DATA / "language.json").read_bytes())
    dataplane = Dataplane(compile_program(Generator(program).generate()), program)
    with dataplane.writing():
        dataplane.session(SESSION, [(CLONES, 0)])
    yield dataplane
    dataplane.close()


def request(op: int, a: int = 0, n: int = 0, wide: int = 0) -> bytes:
    return struct.pack(">BBH", op, a, n) + wide.to_bytes(16, "big")


def items(*values: int) -> bytes:
    """A stack: the last one is marked."""
    return bytes([*values[:-1], values[-1] | 0x80])


@pytest.mark.parametrize(
    ("a", "n", "came", "left"),
    [
        pytest.param(0, 0, items(1, 2, 3), items(1, 2, 3), id="as it came"),
        pytest.param(1, 0, items(1, 2), b"\x55" + items(1, 2), id="pushed"),
        pytest.param(1, 0, items(1, 2, 3, 4), b"\x55\x01\x02\x03", id="pushed out"),
        pytest.param(2, 0, items(1, 2, 3), items(3), id="popped"),
        pytest.param(2, 0, items(1), b"", id="popped empty"),
        pytest.param(3, 2, items(1, 2, 3), items(1, 2, 4), id="by a place that the packet knows"),
        pytest.param(3, 3, items(1, 2), items(1, 2), id="at a place that is not valid"),
        # The fifth does not fit, and stays what comes behind the headers.
        pytest.param(0, 0, items(1, 2, 3, 4, 5), items(1, 2, 3, 4, 5), id="too many"),
    ],
)
def test_stacks(switch: Dataplane, a: int, n: int, came: bytes, left: bytes) -> None:
    assert switch.process(PORT, request(STACK, a, n) + came + b"rest") == [
        (PORT, request(STACK, a, n) + left + b"rest")
    ]


@pytest.mark.parametrize("text", [b"", b"x", b"12345678"])
def test_varbits_are_as_long_as_they_came(switch: Dataplane, text: bytes) -> None:
    head = request(TEXT) + bytes([len(text)]) + text
    ((_, left),) = switch.process(PORT, head + b"\x11rest")
    assert left == head + b"\xff" + bytes([len(text)]) + text + b"\x11rest"


def test_a_varbit_that_is_too_long_or_cut_is_a_parser_error(switch: Dataplane) -> None:
    for frame in (request(TEXT) + b"\x09123456789\x11", request(TEXT) + b"\x05123"):
        assert switch.process(PORT, frame) == [(PORT, frame)]


def test_one_member_of_a_union_is_valid(switch: Dataplane) -> None:
    small, large = request(NUMBER, 0), request(NUMBER, 1)
    assert switch.process(PORT, small + b"\x42rest") == [(PORT, small + b"\xab\x42rest")]
    assert switch.process(PORT, large + b"\x12\x34rest") == [(PORT, large + b"\x77rest")]


def signed(value: int) -> int:
    return value - 2**128 if value >> 127 else value


def numbers() -> Iterator[tuple[int, int, int]]:
    draw = random.Random(7)
    edges = [0, 1, 2**63, 2**64 - 1, 2**64, 2**127 - 1, 2**127, M128]
    for wide in [*edges, *(draw.getrandbits(128) for _ in range(8))]:
        for a in (0, 1, 63, 64, 65, 127, 128, 255):
            yield wide, draw.choice([0, 1, 65535, wide & 0xFFFF]), a


def test_wide_numbers(switch: Dataplane) -> None:
    for wide, n, a in numbers():
        flags = (wide > n) | (signed(wide) < n) << 1 | (wide == n) << 2
        expected = [wide + n, n - wide, wide * n, wide << a, wide >> a, signed(wide) >> a, min(wide + n, M128)]
        answer = b"".join((value & M128).to_bytes(16, "big") for value in expected) + bytes([flags])
        came = request(WIDE, a, n, wide)
        assert switch.process(PORT, came + b"rest") == [(PORT, came + answer + b"rest")], (hex(wide), n, a)


def test_a_field_of_300_bits(switch: Dataplane) -> None:
    draw = random.Random(3)
    for value in [0, 1, 2**300 - 1, *(draw.getrandbits(300) for _ in range(9))]:
        answer = (value * 3 + 1 << 7) % 2**300
        frames = [(number << 4 | 5).to_bytes(38, "big") for number in (value, answer)]
        assert switch.process(PORT, request(BIG) + frames[0] + b"rest") == [(PORT, request(BIG) + frames[1] + b"rest")]


def crc16(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0xA001 if crc & 1 else crc >> 1
    return crc


def sum16(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def xor16(data: bytes) -> int:
    data += bytes(len(data) % 2)
    value = 0
    for word in struct.unpack(f">{len(data) // 2}H", data):
        value ^= word
    return value


@pytest.mark.parametrize(
    ("n", "word"), [(0, 1), (7, 1), (9, 1), (10, 2), (99, 2), (100, 3), (101, 0), (999, 0), (1000, 4), (65535, 4)]
)
def test_hashes_and_ranges(switch: Dataplane, n: int, word: int) -> None:
    a, wide = n % 251, 0x0123456789ABCDEF_FEDCBA9876543210 ^ n
    came = request(HASH, a, n, wide)
    data = bytes([a]) + wide.to_bytes(16, "big")
    expected = struct.pack(
        ">IHHHQB", zlib.crc32(data), crc16(data) % 0x10000, sum16(data), xor16(data), 3 + n % 1000, word
    )
    assert switch.process(PORT, came + b"rest") == [(PORT, came + expected + b"rest")]


def passed(kind: int, kept: int, lost: int, n: int) -> bytes:
    return struct.pack(">BBBH", kind, kept, lost, n)


def test_a_clone_of_ingress_is_the_packet_as_it_came(switch: Dataplane) -> None:
    left = switch.process(PORT, request(CLONE, 7, 1) + b"rest")
    assert sorted(left) == [
        (PORT, passed(0, 7, 9, 0xFFFF) + request(CLONE, 7, 0xFFFF) + b"rest"),
        (CLONES, passed(1, 7, 0, 1) + request(CLONE, 7, 1) + b"rest"),
    ]


def test_a_clone_of_egress_is_the_packet_as_it_is(switch: Dataplane) -> None:
    came = request(EGRESS_CLONE, 7, 1)
    left = switch.process(PORT, came + b"rest")
    assert sorted(left) == [
        (PORT, passed(0, 0, 0, 1) + came + b"rest"),
        (CLONES, passed(2, 7, 0, 1) + came + b"rest"),
    ]


def test_resubmission_begins_anew_with_what_the_field_list_keeps(switch: Dataplane) -> None:
    came = request(RESUBMIT, 7, 1)
    assert switch.process(PORT, came + b"rest") == [(RESUBMITTED, passed(0, 7, 0, 1) + came + b"rest")]


def test_recirculation_begins_with_what_left(switch: Dataplane) -> None:
    left = switch.process(PORT, request(RECIRCULATE, 7, 1) + b"rest")
    assert left == [(RECIRCULATED, passed(0, 7, 0, 2) + request(RECIRCULATE, 7, 2) + b"rest")]


@pytest.mark.parametrize("bytes_", [1, 3, 20, 22, 200])
def test_packets_are_cut(switch: Dataplane, bytes_: int) -> None:
    came = request(CUT, bytes_) + b"rest"
    assert switch.process(PORT, came) == [(PORT, came[:bytes_])]
