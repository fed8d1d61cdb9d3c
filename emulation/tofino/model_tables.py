"""P4Runtime's table entries as the model's test harness writes them, and how they are taken away again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from emulation.errors import ModelError
from emulation.tofino.chip_memory import SRAM_ROWS, Word, sram, tcam
from emulation.tofino.harness import Harness

# What the harness logs of an entry: of an SRAM's row its new contents and which bits are the entry's.
_MASK = re.compile(r"table:5:  data = [0-9a-f]+  mask = ([0-9a-f]+)")
_SRAM = re.compile(r"table:1:write_sram\((\d+), (\d+):(\d+):(\d+), \d+:(\d+), ([0-9a-f]+)\)")
_TCAM = re.compile(r"table:1:write_tcam\((\d+), (\d+):(\d+):(\d+), ")


@dataclass(slots=True, eq=False)
class _Entry:
    """One entry, and the rows that it takes: of SRAMs with its bits, of TCAMs whole.

    Attributes:
        rank: higher ones are matched first; of ternary tables.
        at: its place in a ternary table.
    """

    line: str
    rank: int = 0
    at: int = -1
    srams: dict[int, int] = field(default_factory=dict)
    tcams: list[int] = field(default_factory=list)


class _Table:
    """One table; ternary ones match from their highest place down."""

    def __init__(self, info: p4info_pb2.Table, described: dict[str, Any]) -> None:
        self.info = info
        self.size: int = described["size"]
        self.ternary = described["match_attributes"]["match_type"] == "ternary"
        self.fields = {each.id: each for each in info.match_fields}
        apart = {each["name"].removesuffix(_APART): each["name"] for each in described.get("match_key_fields", ())}
        self.names = {each.id: apart.get(each.name, each.name) for each in info.match_fields}
        self.entries: dict[bytes, _Entry] = {}
        # The harness keeps the default action's parameters in the last row of some block, where an entry's would be.
        self.places = [at for at in range(self.size) if at % BLOCK != BLOCK - 1]

    def place(self, rank: int) -> int | None:
        """A free place between lower and higher ranks; None when there is none between."""
        taken = {each.at for each in self.entries.values()}
        low = max((each.at for each in self.entries.values() if each.rank < rank), default=-1)
        high = min((each.at for each in self.entries.values() if each.rank > rank), default=self.size)
        middle = (low + high) // 2
        free = (at for at in self.places if low < at < high and at not in taken)
        return min(free, key=lambda at: abs(at - middle), default=None)

    def spread(self, rank: int) -> tuple[list[tuple[_Entry, int]], int]:
        """New places for all entries, evenly, and one for an entry of this rank."""
        ordered: list[tuple[int, _Entry | None]] = [(each.rank, each) for each in self.entries.values()]
        ordered = sorted([*ordered, (rank, None)], key=lambda each: each[0])
        step = len(self.places) / len(ordered)
        placed = [(entry, self.places[int(step * (number + 0.5))]) for number, (_, entry) in enumerate(ordered)]
        return [(entry, at) for entry, at in placed if entry is not None], next(at for e, at in placed if e is None)


_APART = "__key"
BLOCK = 512  # rows of a TCAM block


def keep_apart(described: Sequence[dict[str, Any]]) -> None:
    """Rename match fields with the name of a parameter of one of their table's actions, which the harness takes for one.

    Args:
        described: context.json's tables; changed in place.
    """
    for table in described:
        params = {each["name"] for action in table.get("actions", ()) for each in action["p4_parameters"]}
        for fields, name in _match_fields(table):
            for each in fields:
                if each.get(name) in params:
                    each[name] += _APART


def _match_fields(table: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], str]]:
    """The lists that name a table's match fields, and by which key."""
    yield table.get("match_key_fields", []), "name"
    for entry in table.get("static_entries", ()):
        yield entry["match_key_fields_values"], "field_name"
    for stage in table.get("match_attributes", {}).get("stage_tables", ()):
        for packed in stage.get("pack_format", ()):
            for each in packed.get("entries", ()):
                yield [field for field in each["fields"] if field["source"] == "spec"], "field_name"


def constant_entries(described: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Take the program's constant entries out of context.json's tables; yields the commands that add them.

    The harness would add them itself, but takes 0 &&& 0xff00 for a value that may be anything.
    """
    for table in described:
        match = table.get("match_attributes", {})
        stages, ternary = match.get("stage_tables", ()), match.get("match_type") == "ternary"
        widths = {each["name"]: each["bit_width"] for each in table.get("match_key_fields", ())}
        actions = {each["handle"]: each["name"] for each in table.get("actions", ())}
        for entry in table.pop("static_entries", ()):
            words = ["add", table["name"]]
            if ternary:
                words.append(str(sum(each["size"] for each in stages) - 1 - entry["priority"]))
            for each in entry["match_key_fields_values"]:
                name, width = each["field_name"], widths[each["field_name"]]
                value, mask = int(each["value"], 0), int(each.get("mask", hex((1 << width) - 1)), 0)
                words.append(f"{name}:{_pattern(value, mask, width) if ternary else hex(value)}")
            params = ",".join(f"{p['parameter_name']}:{p['value']}" for p in entry["action_parameters_values"])
            yield " ".join([*words, f"{actions[entry['action_handle']]}({params})"])


def missed_rows(said: Iterable[str]) -> list[Word]:
    """What default actions read whose parameters take several words, from what the harness says as it sets them.

    It writes them into the last row of a block of SRAM, and has the chip read the row in the middle.
    """
    words: list[Word] = []
    rows: list[tuple[int, Word]] = []
    for line in [*said, "script:1:"]:
        if line.startswith("script:1:"):
            words += [row for _, row in rows] if any(part for part, _ in rows) else []
            rows, sets = [], line.startswith("script:1:setdefault")
        elif (found := _SRAM.match(line)) and sets:
            pipe, stage, unit, row, part = map(int, found.groups()[:5])
            where = sram(pipe, stage, unit, row & SRAM_ROWS // 2 - 1)
            rows.append((part, _word(where, int(found[6], 16))))
    return words


def _word(where: int, value: int) -> Word:
    return Word(where, value & (1 << 64) - 1, value >> 64)


class Tables:
    """The tables of a loaded program that controllers write to.

    Args:
        described: context.json's tables, as keep_apart() left them.
    """

    def __init__(self, harness: Harness, p4info: p4info_pb2.P4Info, described: Sequence[dict[str, Any]]) -> None:
        self._harness = harness
        by_name = {each["name"]: each for each in described if each["table_type"] == "match"}
        infos = [each for each in p4info.tables if not each.is_const_table and each.preamble.name in by_name]
        self._tables = {each.preamble.id: _Table(each, by_name[each.preamble.name]) for each in infos}
        self._actions = {each.preamble.id: each for each in p4info.actions}
        self._rows: dict[int, int] = {}  # contents of SRAM rows with entries

    def insert(self, entry: p4runtime_pb2.TableEntry) -> None:
        """Add an entry, or replace the one with its key.

        Raises:
            ModelError: the table is full, or the model refuses it.
        """
        self.delete(entry, missing_ok=True)
        table = self._table(entry)
        written = _Entry(self._line(table, entry), self._rank(table, entry))
        if table.ternary:
            written.at = self._place(table, written.rank)
        self._add(table, written)
        table.entries[key_of(entry)] = written

    def delete(self, entry: p4runtime_pb2.TableEntry, missing_ok: bool = False) -> None:
        """Remove the entry with this key.

        Raises:
            ModelError: there is none.
        """
        table = self._table(entry)
        written = table.entries.pop(key_of(entry), None)
        if written is not None:
            self._remove(written)
        elif not missing_ok:
            raise ModelError(f"table {table.info.preamble.alias}: no entry has this key")

    def _table(self, entry: p4runtime_pb2.TableEntry) -> _Table:
        if entry.table_id not in self._tables:
            raise ModelError(f"no table that can be written has id {entry.table_id:#x}")
        return self._tables[entry.table_id]

    def _place(self, table: _Table, rank: int) -> int:
        if len(table.entries) >= len(table.places):
            raise ModelError(f"table {table.info.preamble.alias} is full: {len(table.places)} entries")
        place = table.place(rank)
        if place is None:
            moved, place = table.spread(rank)
            for each, _ in moved:
                self._remove(each)
            for each, at in moved:
                each.at = at
                self._add(table, each)
        return place

    def _add(self, table: _Table, entry: _Entry) -> None:
        at = f" {entry.at}" if table.ternary else ""
        entry.srams.clear()
        entry.tcams.clear()
        mask = 0
        for line in self._harness.run([f"add {table.info.preamble.name}{at} {entry.line}"]):
            if found := _MASK.match(line):
                mask = int(found[1], 16)
            elif found := _SRAM.match(line):
                where = sram(*map(int, found.groups()[:4]))
                self._rows[where] = int(found[6], 16)
                entry.srams[where] = entry.srams.get(where, 0) | mask
            elif found := _TCAM.match(line):
                entry.tcams.append(tcam(*map(int, found.groups()[:4])))

    def _remove(self, entry: _Entry) -> None:
        words = [Word(where) for where in entry.tcams]  # zeros match nothing
        for where, mask in entry.srams.items():
            self._rows[where] &= ~mask
            words.append(_word(where, self._rows[where]))
        self._harness.write(words)

    def _rank(self, table: _Table, entry: p4runtime_pb2.TableEntry) -> int:
        prefixes = [each.lpm.prefix_len for each in entry.match if each.HasField("lpm")]
        return prefixes[0] if prefixes else int(entry.priority)

    def _line(self, table: _Table, entry: p4runtime_pb2.TableEntry) -> str:
        chosen = self._actions[entry.action.action.action_id]
        given = {each.param_id: _number(each.value) for each in entry.action.action.params}
        params = ",".join(f"{each.name}:{given[each.id]:#x}" for each in chosen.params)
        return f"{' '.join(self._keys(table, entry))} {chosen.preamble.name}({params})"

    def _keys(self, table: _Table, entry: p4runtime_pb2.TableEntry) -> Iterator[str]:
        given = {each.field_id: each for each in entry.match}
        for number, described in table.fields.items():
            width, match = described.bitwidth, given.get(number)
            kind = match.WhichOneof("field_match_type") if match is not None else None
            whole = (1 << width) - 1
            if match is None or kind is None:
                value = mask = 0
            elif kind == "exact":
                value, mask = _number(match.exact.value), whole
            elif kind == "lpm":
                value, mask = _number(match.lpm.value), whole ^ whole >> match.lpm.prefix_len
            else:
                value, mask = _number(match.ternary.value), _number(match.ternary.mask)
            yield f"{table.names[number]}:{_pattern(value, mask, width) if table.ternary else hex(value)}"


def _pattern(value: int, mask: int, width: int) -> str:
    bits = ["01"[value >> place & 1] if mask >> place & 1 else "*" for place in reversed(range(width))]
    return "0b" + "".join(bits)


def key_of(entry: p4runtime_pb2.TableEntry) -> bytes:
    """By which a table entry is found again."""
    match = sorted(each.SerializeToString(deterministic=True) for each in entry.match)
    return repr((entry.table_id, match, entry.priority)).encode()


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")
