"""Entries as the model's test harness is given them, and their places in ternary tables."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from emulation.errors import ModelError
from emulation.tofino.chip_memory import Word, sram, tcam
from emulation.tofino.model_tables import Tables

P4INFO = """
tables { preamble { id: 1 name: "pipe.choose" alias: "choose" }
  match_fields { id: 1 name: "port" bitwidth: 9 match_type: TERNARY }
  match_fields { id: 2 name: "hdr.addr" bitwidth: 32 match_type: TERNARY } action_refs { id: 9 } size: 8 }
tables { preamble { id: 2 name: "pipe.mac" alias: "mac" }
  match_fields { id: 1 name: "mac" bitwidth: 48 match_type: EXACT } action_refs { id: 9 } size: 8 }
tables { preamble { id: 3 name: "pipe.route" alias: "route" }
  match_fields { id: 1 name: "to" bitwidth: 32 match_type: LPM } action_refs { id: 9 } size: 8 }
actions { preamble { id: 9 name: "pipe.go" alias: "go" } params { id: 1 name: "out" bitwidth: 9 } }
"""
DESCRIBED = [
    {"name": name, "table_type": "match", "size": 8, "match_attributes": {"match_type": kind}}
    for name, kind in (("pipe.choose", "ternary"), ("pipe.mac", "exact"), ("pipe.route", "ternary"))
]


class Log:
    """Stands for the harness: what it was told, and which rows it says that it wrote."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.written: list[Word] = []
        self.rows: dict[int, int] = {}
        self.exact = itertools.count()

    def run(self, commands: list[str]) -> list[str]:
        self.told += commands
        words = commands[0].split()
        if words[1] == "pipe.mac":
            # Two entries share each row.
            row, half = divmod(next(self.exact), 2)
            mask = 0xFFFF << 16 * half
            self.rows[row] = self.rows.get(row, 0) & ~mask | 0x1111 * (half + 1) << 16 * half
            return [
                f"table:5:  data = {0:032x}  mask = {mask:032x}",
                f"table:1:write_sram(0, 2:14:{row}, 0:0, {self.rows[row]:032x}), die: 0",
            ]
        return [f"table:1:write_tcam(0, 3:5:{words[2]}, 0:0, 1, 2), die: 0"]

    def write(self, words: list[Word]) -> None:
        self.written += words


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def tables(log: Log) -> Tables:
    harness: Any = log
    return Tables(harness, text_format.Parse(P4INFO, p4info_pb2.P4Info()), DESCRIBED)


def entry(table: int, priority: int = 0, out: int = 3, **match: Any) -> p4runtime_pb2.TableEntry:
    made = p4runtime_pb2.TableEntry(table_id=table, priority=priority)
    for name, (value, other) in match.items():
        field = made.match.add(field_id=int(name[1:]))
        if table == 2:
            field.exact.value = bytes([value])
        elif table == 3:
            field.lpm.value, field.lpm.prefix_len = value.to_bytes(4, "big"), other
        else:
            field.ternary.value, field.ternary.mask = bytes([value]), bytes([other])
    made.action.action.action_id = 9
    made.action.action.params.add(param_id=1, value=bytes([out]))
    return made


def test_entries_are_spelt_out(tables: Tables, log: Log) -> None:
    tables.insert(entry(1, 7, f1=(5, 0xF)))
    tables.insert(entry(2, f1=(0xAB, 0)))
    tables.insert(entry(3, f1=(0x0A000000, 8)))
    anything = "0b" + "*" * 32
    assert log.told == [
        f"add pipe.choose 3 port:0b*****0101 hdr.addr:{anything} pipe.go(out:0x3)",
        "add pipe.mac mac:0xab pipe.go(out:0x3)",
        f"add pipe.route 3 to:0b00001010{'*' * 24} pipe.go(out:0x3)",
    ]


def test_an_entry_takes_only_its_own_part_of_a_row_away(tables: Tables, log: Log) -> None:
    first, second = entry(2, f1=(1, 0)), entry(2, f1=(2, 0))
    tables.insert(first)
    tables.insert(second)
    tables.delete(first)
    assert log.written == [Word(sram(0, 2, 14, 0), 0x2222 << 16)]
    tables.delete(second)
    assert log.written[1:] == [Word(sram(0, 2, 14, 0))]
    with pytest.raises(ModelError, match="table mac: no entry has this key"):
        tables.delete(second)


def test_a_removed_ternary_entry_matches_nothing(tables: Tables, log: Log) -> None:
    tables.insert(entry(1, 7, f1=(5, 0xF)))
    tables.delete(entry(1, 7, f1=(5, 0xF)))
    assert log.written == [Word(tcam(0, 3, 5, 3))]


@pytest.mark.parametrize("seed", range(20))
def test_higher_priorities_are_in_higher_places(tables: Tables, log: Log, seed: int) -> None:
    """Whatever comes and goes, up to a full table."""
    chance, there = Random(seed), {}
    for _ in range(200):
        if there and (len(there) == 8 or chance.random() < 0.4):
            tables.delete(there.pop(chance.choice(list(there))))
        else:
            value, priority = chance.randrange(256), chance.randrange(1, 6)
            if (value, priority) not in there:
                there[value, priority] = entry(1, priority, f1=(value, 0xFF))
                tables.insert(there[value, priority])
        places = sorted((each.at, each.rank) for each in tables._tables[1].entries.values())
        assert len({at for at, _ in places}) == len(places) == len(there)
        assert [rank for _, rank in places] == sorted(rank for _, rank in places)
        assert all(0 <= at < 8 for at, _ in places)


def test_a_full_table_refuses(tables: Tables) -> None:
    for value in range(8):
        tables.insert(entry(1, 1, f1=(value, 0xFF)))
    with pytest.raises(ModelError, match="table choose is full: 8 entries"):
        tables.insert(entry(1, 1, f1=(8, 0xFF)))
    tables.insert(entry(1, 1, out=4, f1=(7, 0xFF)))  # in place of the one with this key


def test_an_unknown_table_is_refused(tables: Tables) -> None:
    with pytest.raises(ModelError, match="no table that can be written has id 0x4"):
        tables.insert(entry(4))
