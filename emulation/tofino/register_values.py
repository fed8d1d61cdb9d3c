"""What a program's registers hold when it starts, which a chip's driver writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from emulation.tofino.chip_memory import PIPES, SRAM_ROWS, Word, map_entry, sram

_WORD = 128


def initial_values(described: Iterable[dict[str, Any]]) -> Iterator[Word]:
    """The words that give registers their initial values, of those that do not start at 0.

    Args:
        described: context.json's tables.
    """
    for table in described:
        if table["table_type"] != "stateful" or not (table["initial_value_lo"] or table["initial_value_hi"]):
            continue
        value = table["initial_value_lo"] | table["initial_value_hi"] << table["alu_width"]
        for stage in table["stage_tables"]:
            entries = stage["pack_format"][0]["entries_per_table_word"]
            word = sum(value << _WORD // entries * place for place in range(entries))
            for block in stage["memory_resource_allocation"]["memory_units_and_vpns"]:
                for unit, part in zip(block["memory_units"], block["vpns"], strict=True):
                    for pipe, row in product(PIPES, range(SRAM_ROWS)):
                        where = sram(pipe, stage["stage_number"], unit, row)
                        yield Word(where, word & (1 << 64) - 1, word >> 64)
                        yield map_entry(pipe, stage["stage_number"], unit, row, part)
