"""Parse BMv2 JSON to typed values, for the code generator and the P4Runtime server.

Source: the JSON format of p4lang's behavioral-model, as written by p4c's v1model back end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from emulation.errors import ProgramError
from hostlib.system.user_file import parse_json

RUN_MINIMUM = 8  # minimum number of consecutive 32-bit fields that become one C array
WORD = 64  # size of the unsigned integers of keys, parameters and wide numbers, in bits
FIRST_PRIORITY = 2**31 - 1  # of constant entries, the highest; BMv2 counts the other way, from 1
MATCH_KINDS = ("exact", "lpm", "ternary", "range", "optional")
TABLE_TYPES = ("simple", "indirect", "indirect_ws")
UNSUPPORTED = ("extern_instances",)
# By an instance of metadata that each of their programs has.
OTHER_ARCHITECTURES = {
    "psa_ingress_input_metadata": ("PSA", "p4c-bm2-psa"),
    "pna_main_input_metadata": ("PNA", "p4c-bm2-pna"),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a header type, or of an instance.

    Attributes:
        ref: the C expression for it; an index in it stands between [@ and @].
        width: bits; of a varbit the most.
        offset: bits from the start of the header, varbits not counted.
    """

    header: str
    name: str
    ref: str
    width: int
    signed: bool
    offset: int
    varbit: bool = False

    def of(self, header: str, ref: str) -> Field:
        """This field of the instance `header`, which is `ref` in C."""
        return Field(header, self.name, f"{ref}.{self.ref}", self.width, self.signed, self.offset, self.varbit)


@dataclass(frozen=True, slots=True)
class HeaderType:
    """A header or struct type; its fields' refs are C members."""

    name: str
    c_name: str
    fields: tuple[Field, ...]

    @property
    def bits(self) -> int:
        """Total width, without a varbit."""
        return sum(field.width for field in self.fields if not field.varbit)

    @property
    def most_bytes(self) -> int:
        return (sum(field.width for field in self.fields) + 7) // 8

    @property
    def varbit(self) -> bool:
        return any(field.varbit for field in self.fields)


@dataclass(frozen=True, slots=True)
class Header:
    """A header or metadata instance.

    Attributes:
        siblings: C expressions of the other members of its union: one at most is valid.
    """

    name: str
    ref: str
    type: HeaderType
    metadata: bool = False
    siblings: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(field.of(self.name, self.ref) for field in self.type.fields)


@dataclass(frozen=True, slots=True)
class Union:
    """A header union: member names with the instances."""

    name: str
    ref: str
    members: dict[str, Header]


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of headers or of unions. Its C array has one extra element, for accesses out of bounds."""

    name: str
    ref: str
    next: str
    elements: tuple[Header | Union, ...]

    def at(self, index: str) -> Header | Union:
        """The element at a C expression."""
        ref = f"{self.ref}[{index}]"
        first = self.elements[0]
        if isinstance(first, Header):
            return Header(self.name, ref, first.type)
        return union_of(self.name, ref, {name: member.type for name, member in first.members.items()})


@dataclass(frozen=True, slots=True)
class Action:
    """An action: parameter names with widths in bits, and primitives as the JSON has them."""

    id: int
    name: str
    params: tuple[tuple[str, int], ...]
    primitives: tuple[dict[str, Any], ...]

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(width for _, width in self.params)

    def place(self, param: int) -> int:
        """Index of a parameter's first word."""
        return sum(map(words, self.widths[:param]))


@dataclass(frozen=True, slots=True)
class Key:
    """A match key of a table; with a mask: only these bits of the field."""

    name: str
    kind: str
    field: Field
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class ConstEntry:
    """A constant entry of the program: values and masks in key order (of a range: its ends).

    The higher priority wins.
    """

    value: tuple[int, ...]
    mask: tuple[int, ...]
    priority: int
    action: int
    params: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A match table; `index` is its place in the generated code's array.

    Attributes:
        profile: the action profile that its entries refer to.
        meter: the direct meter array.
    """

    index: int
    name: str
    keys: tuple[Key, ...]
    actions: dict[str, int]
    next_tables: dict[str, str | None]
    base_default_next: str | None
    default: dict[str, Any] | None
    entries: tuple[ConstEntry, ...]
    source: str
    profile: str | None
    meter: str | None
    ages: bool
    counted: bool

    @property
    def always(self) -> int | None:
        """The action that every packet gets in any case: p4c also makes tables of plain statements."""
        fixed = self.default is not None and self.default.get("action_const") and self.default.get("action_entry_const")
        return self.default["action_id"] if fixed and not self.keys and not self.counted else None  # type: ignore[index]

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(key.field.width for key in self.keys)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """(word, shift) of each key in the look-up: as many whole keys to a 64-bit word as fit.

        A range has words of its own, to be compared as a number; for a wide key this is its first word.
        """
        found = []
        alone, word, free = self.ranges, -1, 0
        for key in self.keys:
            width = key.field.width
            if alone or width > free:
                word, free = word + 1, WORD
            found.append((word, free - width if width <= WORD and not alone else 0))
            free -= width
            if width > WORD:
                word, free = word + words(width) - 1, 0
        return tuple(found)

    @property
    def words(self) -> int:
        """Number of 64-bit words of the look-up."""
        if not self.keys:
            return 0
        return self.places[-1][0] + words(self.keys[-1].field.width)

    def laid_out(self, values: Iterable[int]) -> list[int]:
        """Lay out values (or masks), in key order, as the words of the look-up."""
        out = [0] * self.words
        for key, (word, shift), value in zip(self.keys, self.places, values, strict=True):
            for i, part in enumerate(in_words([value], [key.field.width])):
                out[word + i] |= part << shift
        return out

    @property
    def exact(self) -> bool:
        return all(key.kind == "exact" for key in self.keys)

    @property
    def ranges(self) -> bool:
        return any(key.kind == "range" for key in self.keys)


@dataclass(frozen=True, slots=True)
class Profile:
    """An action profile; with a selector, groups choose a member by a hash of these fields."""

    index: int
    name: str
    selector: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Register:
    """A register array.

    Arrays of one size and width are columns of one C array, a family, so that what a program reads with one index is
    adjacent in memory.
    """

    name: str
    size: int
    width: int
    family: int
    column: int


@dataclass(frozen=True, slots=True)
class ControlBlock:
    """ingress or egress: tables and conditionals by name."""

    name: str
    first: str | None
    tables: tuple[Table, ...]
    conditionals: tuple[dict[str, Any], ...]
    calls: tuple[dict[str, Any], ...]


def words(width: int) -> int:
    """Number of 64-bit words for a number of bits."""
    return max(1, -(-width // WORD))


def in_words(values: Iterable[int], widths: Iterable[int]) -> list[int]:
    """Numbers as 64-bit words, the highest word of each first: the form of keys, masks and parameters in C."""
    out = []
    for value, width in zip(values, widths, strict=True):
        out += [value >> WORD * i & (2**WORD - 1) for i in reversed(range(words(width)))]
    return out


def c_type(width: int, signed: bool) -> str:
    """The C type that holds a field: the smallest integer, or limbs."""
    size = next((s for s in (8, 16, 32, 64) if width <= s), None)
    return f"{'' if signed else 'u'}int{size}_t" if size else "big_t"


def c_name(name: str) -> str:
    """A P4 name as (a part of) a C identifier."""
    return re.sub(r"\W", "_", name)


def union_of(name: str, ref: str, types: dict[str, HeaderType]) -> Union:
    refs = {member: f"{ref}.m_{c_name(member)}" for member in types}
    members = {
        member: Header(f"{name}.{member}", refs[member], kind, False, tuple(r for m, r in refs.items() if m != member))
        for member, kind in types.items()
    }
    return Union(name, ref, members)


def source(described: dict[str, Any]) -> str:
    """`file:line fragment` of a construct, for comments and error messages; empty when the compiler gave none."""
    info = described.get("source_info")
    if not info:
        return ""
    fragment = " ".join(str(info.get("source_fragment", "")).split())[:90]
    return f"{info['filename']}:{info['line']} {fragment}".replace("*/", "* /").rstrip("\\ ")


def _complete_transitions(parsers: list[dict[str, Any]]) -> None:
    """Give transitions what older compilers left out: until p4c of 2017, a value was "default" or hexadecimal."""
    for parser in parsers:
        for state in parser["parse_states"]:
            for transition in state["transitions"]:
                transition.setdefault("type", "default" if transition["value"] == "default" else "hexstr")
                transition.setdefault("mask", None)


class Program:
    """A parsed program.

    Raises:
        ProgramError: not BMv2 JSON, or a construct that is not supported; the message names it.
    """

    def __init__(self, text: bytes | str) -> None:
        try:
            self.json: dict[str, Any] = parse_json(text)
            self._load()
        except KeyError as error:
            raise ProgramError(
                f"not a BMv2 JSON program, or an older compiler's, to be compiled again: {error} is missing"
            ) from error
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise ProgramError(f"not a BMv2 JSON program: {type(error).__name__}: {error}") from error

    def _load(self) -> None:
        named = {each["name"] for each in self.json["headers"]}
        for instance, (architecture, compiler) in OTHER_ARCHITECTURES.items():
            if instance in named:
                raise ProgramError(
                    f"a {architecture} program, of {compiler}: this switch runs v1model programs, of p4c-bm2-ss"
                )
        for kind in UNSUPPORTED:
            if self.json.get(kind):
                first = self.json[kind][0].get("name", "")
                raise ProgramError(
                    f"the program uses {kind.replace('_', ' ')} ({first}), which this switch does not run"
                )
        _complete_transitions(self.json["parsers"])
        self.types = {t["name"]: _header_type(t) for t in self.json["header_types"]}
        self.union_types = {
            t["name"]: {member: self.types[kind] for member, kind in t["headers"]}
            for t in self.json.get("header_union_types", ())
        }
        self._instances()
        self.fields = {(f.header, f.name): f for h in self.headers.values() for f in h.fields}
        for alias, target in self.json.get("field_aliases", []):
            self.fields.setdefault(tuple(alias.split(".", 1)), self.fields[tuple(target)])
        self.actions = [
            Action(
                a["id"], a["name"], tuple((p["name"], p["bitwidth"]) for p in a["runtime_data"]), tuple(a["primitives"])
            )
            for a in self.json["actions"]
        ]
        self._register_families()
        self.counters = [c for c in self.json["counter_arrays"] if not c["is_direct"]]
        self.meters = self.json.get("meter_arrays", [])
        self.value_sets = self.json.get("parse_vsets", [])
        self.field_lists = {each["id"]: each["elements"] for each in self.json.get("field_lists", ())}
        self.digests = self.json.get("learn_lists", [])
        self.calculations = {c["name"]: c for c in self.json["calculations"]}
        self.errors = {name: value for name, value in self.json.get("errors", ())}
        self.pipelines: dict[str, ControlBlock] = {}
        self.tables: list[Table] = []
        self.profiles: dict[str, Profile] = {}
        for described in self.json["pipelines"]:
            for each in described.get("action_profiles", ()):
                self.profiles[each["name"]] = Profile(len(self.profiles), each["name"], each.get("selector"))
            tables = tuple(self._table(t) for t in described["tables"])
            self.pipelines[described["name"]] = ControlBlock(
                described["name"],
                described["init_table"],
                tables,
                tuple(described["conditionals"]),
                tuple(described.get("action_calls", ())),
            )
        self.table_names = {table.name: table for table in self.tables}
        if {"ingress", "egress"} - self.pipelines.keys():
            raise ProgramError("the program has no ingress and egress: this switch runs v1model programs")
        used = {key: value for key, value in self.json.items() if key not in ("header_types", "field_aliases")}
        self._used = json.dumps(used)

    def uses(self, *metadata: str) -> bool:
        """Whether the program uses one of these fields of standard_metadata."""
        return any(f'"{name}"' in self._used for name in metadata)

    # ---- headers ----------------------------------------------------------------------------------------------

    def _instances(self) -> None:
        described = {h["id"]: h for h in self.json["headers"]}
        unions = {u["id"]: u for u in self.json.get("header_unions", ())}
        self.headers: dict[str, Header] = {}
        self.unions: dict[str, Union] = {}
        self.stacks: dict[str, Stack] = {}
        # Members of the C context: (type, name, size), size 0 if it is not a stack.
        self.members: list[tuple[str, str, int]] = []

        def union(each: dict[str, Any], ref: str) -> Union:
            made = union_of(each["name"], ref, self.union_types[each["union_type"]])
            for number, member in zip(each["header_ids"], made.members.values(), strict=True):
                instance = described.pop(number)
                self.headers[instance["name"]] = Header(
                    instance["name"], member.ref, member.type, False, member.siblings
                )
            self.unions[each["name"]] = made
            return made

        for stack in self.json.get("header_stacks", ()):
            ref = self._member(f"h_{c_name(self.types[stack['header_type']].name)}", stack["name"], stack["size"])
            elements = []
            for i, number in enumerate(stack["header_ids"]):
                instance = described.pop(number)
                elements.append(Header(instance["name"], f"{ref}[{i}]", self.types[stack["header_type"]]))
                self.headers[instance["name"]] = elements[-1]
            self.stacks[stack["name"]] = Stack(stack["name"], ref, _next(ref), tuple(elements))
        for stack in self.json.get("header_union_stacks", ()):
            ref = self._member(f"u_{c_name(stack['union_type'])}", stack["name"], stack["size"])
            members = tuple(union(unions.pop(n), f"{ref}[{i}]") for i, n in enumerate(stack["header_union_ids"]))
            self.stacks[stack["name"]] = Stack(stack["name"], ref, _next(ref), members)
        for each in unions.values():
            union(each, self._member(f"u_{c_name(each['union_type'])}", each["name"], 0))
        for each in described.values():
            kind = self.types[each["header_type"]]
            ref = self._member(f"h_{kind.c_name}", each["name"], 0)
            self.headers[each["name"]] = Header(each["name"], ref, kind, each["metadata"])

    def _member(self, kind: str, name: str, size: int) -> str:
        """Add a member to the C context; returns its expression."""
        member = c_name(name)
        while any(member == known for _, known, _ in self.members):
            member += "_"
        self.members.append((kind, member, size))
        return f"c->h.{member}"

    def _register_families(self) -> None:
        self.registers: dict[str, Register] = {}
        # Of each family: (size, width, columns).
        sizes: dict[tuple[int, int], tuple[int, list[str]]] = {}
        for each in self.json["register_arrays"]:
            shape = int(each["size"]), int(each["bitwidth"])
            family, names = sizes.setdefault(shape, (len(sizes), []))
            self.registers[each["name"]] = Register(each["name"], *shape, family, len(names))
            names.append(each["name"])
        self.register_families = [(*shape, len(names)) for shape, (_, names) in sizes.items()]

    # ---- tables -----------------------------------------------------------------------------------------------

    def _table(self, described: dict[str, Any]) -> Table:
        if described["type"] not in TABLE_TYPES:
            raise ProgramError(f"table {described['name']}: type {described['type']} is not one of {TABLE_TYPES}")
        keys = []
        for key in described["key"]:
            if key["match_type"] not in MATCH_KINDS:
                raise ProgramError(
                    f"table {described['name']}: match kind {key['match_type']} is not one of {', '.join(MATCH_KINDS)}"
                )
            mask = int(key["mask"], 16) if key.get("mask") else None
            name = key.get("name", ".".join(key["target"]))
            keys.append(Key(name, key["match_type"], self.field(key["target"]), mask))
        table = Table(
            len(self.tables),
            described["name"],
            tuple(keys),
            self._actions_of(described),
            described["next_tables"],
            described.get("base_default_next"),
            described.get("default_entry"),
            tuple(_const_entry(keys, entry) for entry in described.get("entries", ())),
            source(described),
            described["action_profile"] if described["type"] != "simple" else None,
            described.get("direct_meters"),
            bool(described.get("support_timeout")),
            bool(described.get("with_counters")),
        )
        self.tables.append(table)
        return table

    def _actions_of(self, table: dict[str, Any]) -> dict[str, int]:
        """A table's actions and their numbers, which older compilers did not give: names were unique then."""
        if "action_ids" in table:
            return dict(zip(table["actions"], table["action_ids"], strict=True))
        numbers = {action.name: action.id for action in self.actions}
        return {name: numbers[name] for name in table["actions"]}

    def field(self, target: list[str]) -> Field:
        """The field that a JSON reference names; `$valid$` is a one-bit field of every header."""
        header, name = target
        if name == "$valid$":
            return Field(header, name, f"{self.headers[header].ref}.valid", 1, False, 0)
        return self.fields[(header, name)]


def _next(ref: str) -> str:
    """The C expression of a stack's next index."""
    return ref.replace("c->h.", "c->next.", 1)


def _header_type(described: dict[str, Any]) -> HeaderType:
    name = described["name"]
    plain: list[tuple[str, int, bool, int, bool]] = []
    offset = 0
    fixed = sum(width for _, width, *_ in described["fields"] if isinstance(width, int))
    for field_name, width, *rest in described["fields"]:
        varbit = width == "*"
        if varbit:
            width = described["max_length"] * 8 - fixed
        elif not isinstance(width, int):
            raise ProgramError(f"field {name}.{field_name}: {width!r} is no width")
        plain.append((field_name, width, bool(rest and rest[0]), offset, varbit))
        offset += 0 if varbit else width
    runs = {} if any(varbit for *_, varbit in plain) else _runs(plain)
    fields = []
    for i, (field_name, width, signed, at, varbit) in enumerate(plain):
        member = f"run{runs[i][0]}[@{runs[i][1]}@]" if i in runs else f"f_{c_name(field_name)}_{i}"
        fields.append(Field("", field_name, member, width, signed, at, varbit))
    return HeaderType(name, c_name(name), tuple(fields))


def _const_entry(keys: list[Key], described: dict[str, Any]) -> ConstEntry:
    values, masks, prefix = [], [], None
    for key, match in zip(keys, described["match_key"], strict=True):
        full = 2**key.field.width - 1
        mask = full
        if match["match_type"] == "range":
            values.append(int(match["start"], 16))
            masks.append(int(match["end"], 16) & full)
            continue
        if match["match_type"] == "lpm":
            prefix = match["prefix_length"]
            mask = full ^ (full >> prefix)
        elif "mask" in match:
            mask = int(match["mask"], 16) & full
        masks.append(mask)
        values.append(int(match["key"], 16) & mask)
    # The longest prefix only takes precedence in a table with one lpm key and otherwise exact keys.
    if prefix is None or any(key.kind in ("ternary", "range", "optional") for key in keys):
        prefix = FIRST_PRIORITY - int(described.get("priority", 1))
    action = described["action_entry"]
    params = tuple(int(value, 16) for value in action["action_data"])
    return ConstEntry(tuple(values), tuple(masks), prefix, action["action_id"], params)


def _runs(fields: list[tuple[str, int, bool, int, bool]]) -> dict[int, tuple[int, int]]:
    """Field index -> (run, place in it), for runs of aligned unsigned 32-bit fields long enough for an array."""
    found: dict[int, tuple[int, int]] = {}
    run: list[int] = []
    number = 0
    for i, (_, width, signed, offset, _) in enumerate([*fields, ("", 0, False, 1, False)]):
        if width == 32 and not signed and offset % 8 == 0:
            run.append(i)
            continue
        if len(run) >= RUN_MINIMUM:
            found |= {index: (number, place) for place, index in enumerate(run)}
            number += 1
        run = []
    return found
