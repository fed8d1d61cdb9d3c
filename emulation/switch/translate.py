"""P4Runtime messages to the data plane's numbers, checked against P4Info.

Every refusal is a RequestError with the gRPC code that the P4Runtime specification asks for and a text that says what
is legal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from emulation.errors import EmulationError
from emulation.switch.program import ConstEntry, Program, Table

KINDS = {
    p4info_pb2.MatchField.EXACT: "exact",
    p4info_pb2.MatchField.LPM: "lpm",
    p4info_pb2.MatchField.TERNARY: "ternary",
    p4info_pb2.MatchField.OPTIONAL: "optional",
}


class RequestError(EmulationError):
    """A P4Runtime request that is refused."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RequestError:
    return RequestError(grpc.StatusCode.INVALID_ARGUMENT, message)


def missing(message: str) -> RequestError:
    return RequestError(grpc.StatusCode.NOT_FOUND, message)


def number(data: bytes, width: int, what: str) -> int:
    """A bytestring of P4Runtime as an integer of at most `width` bits."""
    if not data:
        raise invalid(f"{what}: an empty bytestring is no value")
    value = int.from_bytes(data, "big")
    if value.bit_length() > width:
        raise RequestError(grpc.StatusCode.OUT_OF_RANGE, f"{what}: {value:#x} does not fit {width} bits")
    return value


def canonical(value: int) -> bytes:
    """The shortest bytestring of a value, as P4Runtime wants it."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


@dataclass(frozen=True, slots=True)
class Match:
    """A table entry's key: values and masks in key order, and its priority in the data plane."""

    value: tuple[int, ...]
    mask: tuple[int, ...]
    priority: int


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One table, as P4Info and the program know it."""

    info: Any
    table: Table

    @property
    def kinds(self) -> tuple[str, ...]:
        """How each key is matched, in P4Info's words: the program calls optional keys ternary."""
        return tuple(KINDS.get(field.match_type, "unknown") for field in self.info.match_fields)

    @property
    def ternary(self) -> bool:
        return any(kind in ("ternary", "optional") for kind in self.kinds)


class Schema:
    """P4Info next to the program it belongs to.

    Raises:
        RequestError: P4Info names a table or counter that the program does not have.
    """

    def __init__(self, p4info: p4info_pb2.P4Info, program: Program) -> None:
        self.p4info = p4info
        self.program = program
        self.tables: dict[int, TableInfo] = {}
        for info in p4info.tables:
            table = program.table_names.get(info.preamble.name)
            if table is None:
                raise invalid(f"P4Info's table {info.preamble.name} is not in the program")
            self.tables[info.preamble.id] = TableInfo(info, table)
        self.actions = {a.preamble.id: a for a in p4info.actions}
        self.action_ids = {a.preamble.name: a.preamble.id for a in p4info.actions}
        for known in self.tables.values():
            self._check(known)
        self.direct_counters = {
            counter.direct_table_id for counter in p4info.direct_counters if counter.direct_table_id in self.tables
        }
        by_name = {c["name"]: c for c in program.counters}
        self.counters: dict[int, tuple[int, int]] = {}
        for counter in p4info.counters:
            described = by_name.get(counter.preamble.name)
            if described is None:
                raise invalid(f"P4Info's counter {counter.preamble.name} is not in the program")
            self.counters[counter.preamble.id] = (described["id"], described["size"])

    def _check(self, known: TableInfo) -> None:
        """Refuse P4Info that describes another program's table of this name."""
        name, table = known.info.preamble.name, known.table
        widths = [field.bitwidth for field in known.info.match_fields]
        if widths != [key.field.width for key in table.keys] or "unknown" in known.kinds:
            raise invalid(f"P4Info's table {name} does not have the program's keys: the two do not belong together")
        for ref in known.info.action_refs:
            info = self.actions.get(ref.id)
            action = table.actions.get(info.preamble.name) if info is not None else None
            if info is None or action is None:
                raise invalid(f"P4Info's table {name} has an action ({ref.id:#x}) that the program's table has not")
            if [p.bitwidth for p in info.params] != [width for _, width in self.program.actions[action].params]:
                raise invalid(f"P4Info's action {info.preamble.name} does not have the program's parameters")

    def table(self, table_id: int) -> TableInfo:
        if table_id not in self.tables:
            known = ", ".join(sorted(t.table.name for t in self.tables.values()))
            raise missing(f"no table has id {table_id:#x}; the tables are {known}")
        return self.tables[table_id]

    def counter(self, counter_id: int) -> tuple[int, int]:
        """(id in the data plane, size)."""
        if counter_id not in self.counters:
            raise missing(f"no counter has id {counter_id:#x}")
        return self.counters[counter_id]

    def match(self, table: TableInfo, entry: p4runtime_pb2.TableEntry) -> Match:
        """The key of an entry; fields that are left out match everything where the match kind allows it."""
        given = {field.field_id: field for field in entry.match}
        if len(given) != len(entry.match):
            raise invalid(f"table {table.table.name}: a match field is given twice")
        values, masks, prefix = [], [], 0
        for info, key, expected in zip(table.info.match_fields, table.table.keys, table.kinds, strict=True):
            width, what = key.field.width, f"table {table.table.name}, match field {info.name}"
            value, mask = 0, 0
            field = given.pop(info.id, None)
            if field is None and expected == "exact":
                raise invalid(f"{what}: an exact match is required")
            if field is not None:
                kind = field.WhichOneof("field_match_type")
                if kind != expected:
                    raise invalid(f"{what}: it is matched by {expected}, not {kind}")
                full = 2**width - 1
                if kind == "lpm":
                    prefix = field.lpm.prefix_len
                    if not 0 <= prefix <= width:
                        raise invalid(f"{what}: prefix length {prefix} is not in 0..{width}")
                    mask = full ^ (full >> prefix)
                    value = number(field.lpm.value, width, what)
                elif kind == "ternary":
                    mask = number(field.ternary.mask, width, what)
                    value = number(field.ternary.value, width, what)
                else:
                    mask = full
                    value = number(getattr(field, kind).value, width, what)
                if value & ~mask:
                    raise invalid(f"{what}: the value {value:#x} has bits outside the mask {mask:#x}")
            values.append(value)
            masks.append(mask)
        if given:
            raise invalid(f"table {table.table.name} has no match field with id {next(iter(given))}")
        if table.ternary and entry.priority <= 0:
            raise invalid(f"table {table.table.name} has ternary keys: an entry needs a priority above 0")
        if not table.ternary and entry.priority != 0:
            raise invalid(f"table {table.table.name} has no ternary keys: an entry has no priority")
        return Match(tuple(values), tuple(masks), entry.priority if table.ternary else prefix)

    def action(
        self, table: TableInfo, action: p4runtime_pb2.TableAction, default: bool = False
    ) -> tuple[int, list[int]]:
        """(action id in the data plane, parameters)."""
        if action.WhichOneof("type") != "action":
            raise invalid(f"table {table.table.name}: an entry needs an action")
        chosen = action.action
        info = self.actions.get(chosen.action_id)
        barred = p4info_pb2.ActionRef.TABLE_ONLY if default else p4info_pb2.ActionRef.DEFAULT_ONLY
        legal = {ref.id for ref in table.info.action_refs if ref.scope != barred}
        if info is None or chosen.action_id not in legal:
            names = ", ".join(sorted(self.actions[i].preamble.name for i in legal))
            raise invalid(f"table {table.table.name}: no action with id {chosen.action_id:#x}; its actions are {names}")
        given = {param.param_id: param.value for param in chosen.params}
        if len(given) != len(info.params) or given.keys() != {p.id for p in info.params}:
            names = ", ".join(p.name for p in info.params) or "none"
            raise invalid(f"action {info.preamble.name}: its parameters are {names}, each exactly once")
        params = [number(given[p.id], p.bitwidth, f"action {info.preamble.name}, {p.name}") for p in info.params]
        return table.table.actions[info.preamble.name], params

    # ---- what the program brings along ------------------------------------------------------------------------

    def const_entries(self, table: TableInfo) -> Iterator[tuple[Match, p4runtime_pb2.TableEntry]]:
        """The entries that the program defines, in its order, as a controller would have written them."""
        for entry in table.table.entries:
            message = p4runtime_pb2.TableEntry(table_id=table.info.preamble.id, is_const=table.info.is_const_table)
            fields = zip(table.info.match_fields, table.kinds, entry.value, entry.mask, strict=True)
            for info, kind, value, mask in fields:
                if kind != "exact" and mask == 0:
                    continue  # What matches everything is left out.
                field = getattr(message.match.add(field_id=info.id), kind)
                field.value = canonical(value)
                if kind == "lpm":
                    field.prefix_len = mask.bit_count()
                elif kind == "ternary":
                    field.mask = canonical(mask)
            if table.ternary:
                message.priority = entry.priority
            self._set_action(message, entry.action, entry.params)
            yield Match(entry.value, entry.mask, entry.priority if table.ternary else _prefix(table, entry)), message

    def initial_default(self, table: TableInfo) -> p4runtime_pb2.TableEntry | None:
        """The default entry as the program defines it; None when it names none."""
        described = table.table.default
        if described is None:
            return None
        message = p4runtime_pb2.TableEntry(table_id=table.info.preamble.id, is_default_action=True)
        params = tuple(int(value, 16) for value in described["action_data"])
        return message if self._set_action(message, described["action_id"], params) else None

    def _set_action(self, message: p4runtime_pb2.TableEntry, action: int, params: tuple[int, ...]) -> bool:
        """Name an action of the program by its P4Info id; False when P4Info does not know it."""
        action_id = self.action_ids.get(self.program.actions[action].name)
        if action_id is None:
            return False
        message.action.action.action_id = action_id
        for info, value in zip(self.actions[action_id].params, params, strict=True):
            message.action.action.params.add(param_id=info.id, value=canonical(value))
        return True


def _prefix(table: TableInfo, entry: ConstEntry) -> int:
    """What `Schema.match` gives such an entry as its priority in a table without ternary keys."""
    return entry.priority if "lpm" in table.kinds else 0
