"""Custom CRCs: catalogue parameters on the catalogue's message, and what a program's hashes do with them."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import astuple

import pytest

from emulation.errors import ProgramError
from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.cc import compile_library, compile_program
from emulation.switch.compiler.crc import DEFAULTS, Crc, CrcSetting
from emulation.switch.compiler.program_writer import Generator
from emulation.switch.dataplane import Dataplane
from tests.emulation.p4runtime import DATA

CODE = """
#include "hash.h"
uint32_t crc(const crc_t *k, const uint8_t *p, uint32_t bytes) { return crc_custom(k, p, bytes); }
"""
CHECKED = b"123456789"
A, WIDE = 77, 0x0123456789ABCDEF_FEDCBA9876543210
HASHED = bytes([A]) + WIDE.to_bytes(16, "big")  # what language.p4 hashes


class _Crc(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("width", "polynomial", "initial", "final_xor")),
        *((name, ctypes.c_bool) for name in ("reflect_data", "reflect_remainder")),
    ]


@pytest.fixture(scope="module")
def computed() -> Callable[[Crc, bytes], int]:
    library = ctypes.CDLL(str(compile_library(CODE, (), ("-O0",))))
    return lambda crc, data: library.crc(ctypes.byref(_Crc(*astuple(crc))), data, len(data)) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("crc", "check"),
    [
        pytest.param(DEFAULTS["crc16_custom"], 0xBB3D, id="CRC-16/ARC"),
        pytest.param(DEFAULTS["crc32_custom"], 0xCBF43926, id="CRC-32/ISO-HDLC"),
        pytest.param(Crc(16, 0x1021, 0xFFFF, 0, False, False), 0x29B1, id="CRC-16/IBM-3740"),
        pytest.param(Crc(16, 0x1021, 0, 0, True, True), 0x2189, id="CRC-16/KERMIT"),
        pytest.param(Crc(16, 0x3D65, 0, 0xFFFF, False, False), 0xC2B7, id="CRC-16/EN-13757"),
        pytest.param(Crc(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, False, False), 0xFC891918, id="CRC-32/BZIP2"),
        pytest.param(Crc(32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, True, True), 0xE3069283, id="CRC-32/ISCSI"),
    ],
)
def test_catalogue(computed: Callable[[Crc, bytes], int], crc: Crc, check: int) -> None:
    """Source: the CRC catalogue's values of "check"."""
    assert computed(crc, CHECKED) == check


def program() -> Program:
    """language.p4 with custom CRCs for its hashes `calc` (32 bits) and `calc_0`."""
    described = json.loads((DATA / "language.json").read_bytes())
    for calculation in described["calculations"]:
        calculation["algo"] = {"crc32": "crc32_custom", "crc16": "crc16_custom"}.get(
            calculation["algo"], calculation["algo"]
        )
    return Program(json.dumps(described))


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ((), (DEFAULTS["crc32_custom"], DEFAULTS["crc16_custom"])),
        (
            ("calc_0=0x3d65,0,0xffff,no,no", "crc16_custom=0x1021,0,0,yes,yes", "crc32_custom=79764919,1,2,true,false"),
            (Crc(32, 0x04C11DB7, 1, 2, True, False), Crc(16, 0x3D65, 0, 0xFFFF, False, False)),
        ),
    ],
)
def test_a_programs_hashes(
    computed: Callable[[Crc, bytes], int], settings: tuple[str, ...], kinds: tuple[Crc, Crc]
) -> None:
    loaded = program()
    generated = Generator(loaded, tuple(map(CrcSetting.parse, settings))).generate()
    dataplane = Dataplane(compile_program(generated, ("-O0",)), loaded)
    try:
        came = bytes([5, A, 0, 0]) + WIDE.to_bytes(16, "big")
        ((_, left),) = dataplane.process(1, came)
    finally:
        dataplane.close()
    found = int.from_bytes(left[20:24], "big"), int.from_bytes(left[24:26], "big")
    assert found == tuple(computed(crc, HASHED) for crc in kinds)


def test_settings_that_no_program_can_have() -> None:
    for text in ("crc16_custom", "crc16_custom=1,2,3,true", "crc16_custom=x,2,3,true,false", "=1,2,3,true,true"):
        with pytest.raises(ProgramError, match="NAME=POLYNOMIAL"):
            CrcSetting.parse(text)
    with pytest.raises(ProgramError, match=r"calc_9 is no custom CRC: .* one of the program's \(calc, calc_0\)"):
        Generator(program(), (CrcSetting.parse("calc_9=1,2,3,true,true"),))
    with pytest.raises(ProgramError, match="its polynomial 0x11021 has more than 16 bits"):
        Generator(program(), (CrcSetting.parse("crc16_custom=0x11021,0,0,true,true"),)).generate()
