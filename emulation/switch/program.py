"""BMv2 JSON as typed values: the parts of the format that the embedded switch runs; the rest is refused by name.

Source: the JSON format of p4lang's behavioral-model, as p4c's v1model back end writes it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from emulation.errors import ProgramError

RUN_MINIMUM = 8  # so many consecutive 32-bit fields become one C array
MAX_KEYS = 16  # these two size arrays in runtime/runtime.h
MAX_PARAMS = 16
FIRST_PRIORITY = 2**31 - 1  # of a constant entry; BMv2 counts downwards from the most important one, 1
MATCH_KINDS = ("exact", "lpm", "ternary", "optional")
UNSUPPORTED = (
    "header_stacks",
    "header_union_types",
    "header_unions",
    "header_union_stacks",
    "meter_arrays",
    "parse_vsets",
    "extern_instances",
)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a header instance. `ref` is the C expression for it; an index in it stands between [@ and @]."""

    header: str
    name: str
    ref: str
    width: int
    signed: bool
    offset: int  # bits from the start of the header


@dataclass(frozen=True, slots=True)
class Header:
    """A header or metadata instance."""

    name: str
    c_name: str
    metadata: bool
    fields: tuple[Field, ...]

    @property
    def bits(self) -> int:
        return sum(field.width for field in self.fields)


@dataclass(frozen=True, slots=True)
class Action:
    """An action: parameter names with widths in bits, and primitives as the JSON has them."""

    id: int
    name: str
    params: tuple[tuple[str, int], ...]
    primitives: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Key:
    """One match key of a table."""

    name: str
    kind: str
    field: Field


@dataclass(frozen=True, slots=True)
class ConstEntry:
    """An entry that the program brings along: values and masks in key order; the higher priority wins."""

    value: tuple[int, ...]
    mask: tuple[int, ...]
    priority: int
    action: int
    params: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A match table; `index` is its place in the generated code's array."""

    index: int
    name: str
    keys: tuple[Key, ...]
    actions: dict[str, int]
    next_tables: dict[str, str | None]
    base_default_next: str | None
    default: dict[str, Any] | None
    entries: tuple[ConstEntry, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Pipeline:
    """ingress or egress: tables and conditionals by name."""

    name: str
    first: str | None
    tables: tuple[Table, ...]
    conditionals: tuple[dict[str, Any], ...]


def c_type(width: int, signed: bool) -> str:
    """The smallest C integer that holds a field."""
    size = next(s for s in (8, 16, 32, 64) if width <= s)
    return f"{'' if signed else 'u'}int{size}_t"


def c_name(name: str) -> str:
    """A P4 name as a C identifier."""
    return re.sub(r"\W", "_", name)


def source(described: dict[str, Any]) -> str:
    """`file:line fragment` of a construct, for comments and error messages; empty when the compiler gave none."""
    info = described.get("source_info")
    if not info:
        return ""
    fragment = " ".join(str(info.get("source_fragment", "")).split())[:90]
    return f"{info['filename']}:{info['line']} {fragment}".replace("*/", "* /").rstrip("\\ ")


class Program:
    """A parsed program.

    Raises:
        ProgramError: not BMv2 JSON, or a construct that is not supported; the message names it.
    """

    def __init__(self, text: bytes | str) -> None:
        try:
            self.json: dict[str, Any] = json.loads(text)
            self._load()
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as wrong:
            raise ProgramError(f"not a BMv2 JSON program: {type(wrong).__name__}: {wrong}") from wrong

    def _load(self) -> None:
        for kind in UNSUPPORTED:
            if self.json.get(kind):
                first = self.json[kind][0].get("name", "")
                raise ProgramError(
                    f"the program uses {kind.replace('_', ' ')} ({first}), which this switch does not run"
                )
        types = {t["name"]: t for t in self.json["header_types"]}
        self.headers = {h["name"]: self._header(h, types[h["header_type"]]) for h in self.json["headers"]}
        self.fields = {(f.header, f.name): f for h in self.headers.values() for f in h.fields}
        for alias, target in self.json.get("field_aliases", []):
            self.fields.setdefault(tuple(alias.split(".", 1)), self.fields[tuple(target)])  # type: ignore[arg-type]
        self.actions = [
            Action(
                a["id"], a["name"], tuple((p["name"], p["bitwidth"]) for p in a["runtime_data"]), tuple(a["primitives"])
            )
            for a in self.json["actions"]
        ]
        for action in self.actions:
            if len(action.params) > MAX_PARAMS:
                raise ProgramError(
                    f"action {action.name} has {len(action.params)} parameters; {MAX_PARAMS} are the most"
                )
            for name, width in action.params:
                if width > 64:
                    raise ProgramError(f"action {action.name}: parameter {name} is {width} bits wide; 64 is the most")
        self.registers = self.json["register_arrays"]
        self.counters = [c for c in self.json["counter_arrays"] if not c["is_direct"]]
        self.calculations = {c["name"]: c for c in self.json["calculations"]}
        self.errors = {name: value for name, value in self.json["errors"]}
        self.pipelines: dict[str, Pipeline] = {}
        self.tables: list[Table] = []
        for described in self.json["pipelines"]:
            tables = tuple(self._table(t) for t in described["tables"])
            self.pipelines[described["name"]] = Pipeline(
                described["name"], described["init_table"], tables, tuple(described["conditionals"])
            )
        self.table_names = {table.name: table for table in self.tables}
        if {"ingress", "egress"} - self.pipelines.keys():
            raise ProgramError("the program has no ingress and egress: this switch runs v1model programs")

    def _header(self, instance: dict[str, Any], kind: dict[str, Any]) -> Header:
        name, identifier = instance["name"], c_name(instance["name"])
        plain: list[tuple[str, int, bool, int]] = []
        offset = 0
        for field_name, width, *rest in kind["fields"]:
            if not isinstance(width, int) or width > 64:
                raise ProgramError(f"field {name}.{field_name} is {width} bits wide; 64 is the most here")
            plain.append((field_name, width, bool(rest and rest[0]), offset))
            offset += width
        runs = _runs(plain) if not instance["metadata"] else {}
        fields = []
        for i, (field_name, width, signed, at) in enumerate(plain):
            member = f"run{runs[i][0]}[@{runs[i][1]}@]" if i in runs else f"f_{c_name(field_name)}_{i}"
            fields.append(Field(name, field_name, f"c->{identifier}.{member}", width, signed, at))
        return Header(name, identifier, instance["metadata"], tuple(fields))

    def _table(self, described: dict[str, Any]) -> Table:
        if described["type"] != "simple":
            raise ProgramError(f"table {described['name']} has an action profile, which this switch does not run")
        keys = []
        for key in described["key"]:
            if key["match_type"] not in MATCH_KINDS:
                raise ProgramError(
                    f"table {described['name']}: match kind {key['match_type']} is not one of {', '.join(MATCH_KINDS)}"
                )
            keys.append(Key(key.get("name", ".".join(key["target"])), key["match_type"], self.field(key["target"])))
        if len(keys) > MAX_KEYS:
            raise ProgramError(f"table {described['name']} has {len(keys)} keys; {MAX_KEYS} are the most")
        table = Table(
            len(self.tables),
            described["name"],
            tuple(keys),
            dict(zip(described["actions"], described["action_ids"], strict=True)),
            described["next_tables"],
            described.get("base_default_next"),
            described.get("default_entry"),
            tuple(_const_entry(keys, entry) for entry in described.get("entries", ())),
            source(described),
        )
        self.tables.append(table)
        return table

    def field(self, target: list[str]) -> Field:
        """The field that a JSON reference names; `$valid$` is a one-bit field of every header."""
        header, name = target
        if name == "$valid$":
            return Field(header, name, f"c->{self.headers[header].c_name}.valid", 1, False, 0)
        return self.fields[(header, name)]


def _const_entry(keys: list[Key], described: dict[str, Any]) -> ConstEntry:
    values, masks, prefix = [], [], None
    for key, match in zip(keys, described["match_key"], strict=True):
        full = 2**key.field.width - 1
        mask = full
        if match["match_type"] == "lpm":
            prefix = match["prefix_length"]
            mask = full ^ (full >> prefix)
        elif "mask" in match:
            mask = int(match["mask"], 16) & full
        masks.append(mask)
        values.append(int(match["key"], 16) & mask)
    # The longest prefix wins only in a table that has nothing but exact keys beside its lpm key.
    if prefix is None or any(key.kind in ("ternary", "optional") for key in keys):
        prefix = FIRST_PRIORITY - int(described.get("priority", 1))
    action = described["action_entry"]
    params = tuple(int(value, 16) for value in action["action_data"])
    return ConstEntry(tuple(values), tuple(masks), prefix, action["action_id"], params)


def _runs(fields: list[tuple[str, int, bool, int]]) -> dict[int, tuple[int, int]]:
    """Field index -> (run, place in it), for runs of aligned unsigned 32-bit fields long enough to be an array."""
    found: dict[int, tuple[int, int]] = {}
    run: list[int] = []
    number = 0
    for i, (_, width, signed, offset) in enumerate([*fields, ("", 0, False, 1)]):
        if width == 32 and not signed and offset % 8 == 0:
            run.append(i)
            continue
        if len(run) >= RUN_MINIMUM:
            found |= {index: (number, place) for place, index in enumerate(run)}
            number += 1
        run = []
    return found
