"""Where a Tofino 1 keeps what a driver writes: addresses of its memories, and files that write them.

Source: p4lang/p4c, backends/tofino/bf-asm/tofino/chip.schema (traffic manager); p4lang/open-p4studio,
pkgsrc/tofino-model (stages' memories, and the format of a binary's records).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

PIPES = range(4)
_PIPES, _PIPE, _STAGE = 1 << 41, 37, 33
_PHYSICAL = 2 << 30
_KIND, _ROW, _COLUMN = 18, 14, 10
_SRAM, _MAP, _TCAM = 0, 1, 4
SRAM_COLUMNS, SRAM_ROWS, TCAM_ROWS = 12, 1024, 12

_REPLICATION = 6665789243392 // 16  # of the traffic manager, in words
_GROUPS = (1 << 24) // 16  # a table for each pipe, each so far behind the last, the first behind the nodes
GROUPS_PER_WORD = 4

_GROUPS_PIPES = 0x27F0000  # hi_pv_table.tbl0 of pipe 0: for each multicast group which pipes have copies
MASKS_PER_REGISTER = 8
_PACKET_GENERATOR, _PIPE_BYTES = 0x273D01C, 1 << 23  # port17_ctrl1 of pipe 0, and how far pipes are apart


@dataclass(frozen=True, slots=True)
class Word:
    """One word of 128 bits at an address of the chip's memory, counted in words; of a TCAM, its two words of 64."""

    address: int
    low: int = 0
    high: int = 0


def sram(pipe: int, stage: int, unit: int, index: int) -> int:
    """Address of a row of a stage's SRAM block; `unit` as in context.json."""
    return _physical(pipe, stage, _SRAM, *divmod(unit, SRAM_COLUMNS), index)


def map_entry(pipe: int, stage: int, unit: int, index: int, part: int) -> Word:
    """What says that a row of a stage's SRAM block holds a row of this part of a register; 0: none."""
    return Word(_physical(pipe, stage, _MAP, *divmod(unit, SRAM_COLUMNS), index), part ^ 0x3F)


def tcam(pipe: int, stage: int, unit: int, index: int) -> int:
    """Address of a row of a stage's TCAM block."""
    column, row = divmod(unit, TCAM_ROWS)
    return _physical(pipe, stage, _TCAM, row, column, index)


def _physical(pipe: int, stage: int, kind: int, row: int, column: int, index: int) -> int:
    where = pipe << _PIPE | stage << _STAGE | kind << _KIND | row << _ROW | column << _COLUMN
    return _PIPES | _PHYSICAL | where | index


def node(row: int) -> int:
    """Address of a row of replication nodes."""
    return _REPLICATION + row


def group(pipe: int, word: int) -> int:
    """Address of a word of a pipe's table from multicast groups to nodes."""
    return _REPLICATION + _GROUPS * (1 + pipe) + word


@dataclass(frozen=True, slots=True)
class Register:
    """A register of 32 bits at an address in bytes."""

    address: int
    value: int


def masks(pipe: int, number: int, value: int) -> Register:
    """Register `number` of a pipe's table of which pipes have copies of a multicast group."""
    return Register(_GROUPS_PIPES + pipe * _PIPE_BYTES + 4 * number, value)


def recirculating(pipe: int) -> Register:
    """What lets frames that leave by ports 68 to 71 of a pipe come in again."""
    return Register(_PACKET_GENERATOR + pipe * _PIPE_BYTES, 0xF << 16 | 1)  # all four channels


def record(written: Iterable[Word | Register]) -> bytes:
    """A file in the format of tofino.bin that writes these."""
    return b"".join(
        b"\0\0\0d" + struct.pack("<QIIQQ", each.address, 128, 1, each.low, each.high)
        if isinstance(each, Word)
        else b"\0\0\0r" + struct.pack("<II", each.address, each.value)
        for each in written
    )
