"""P4Runtime messages to the data plane's numbers, checked against P4Info.

Every refusal is a RequestError with the gRPC code that the P4Runtime specification asks for and a text that says what
is legal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from emulation.errors import EmulationError
from emulation.switch.program import Program, Table


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
    def ternary(self) -> bool:
        return any(key.kind in ("ternary", "optional") for key in self.table.keys)


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
        by_name = {c["name"]: c for c in program.counters}
        self.counters: dict[int, tuple[int, int]] = {}
        for counter in p4info.counters:
            described = by_name.get(counter.preamble.name)
            if described is None:
                raise invalid(f"P4Info's counter {counter.preamble.name} is not in the program")
            self.counters[counter.preamble.id] = (described["id"], described["size"])

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
        for info, key in zip(table.info.match_fields, table.table.keys, strict=True):
            width, what = key.field.width, f"table {table.table.name}, match field {info.name}"
            value, mask = 0, 0
            field = given.pop(info.id, None)
            if field is None and key.kind == "exact":
                raise invalid(f"{what}: an exact match is required")
            if field is not None:
                kind = field.WhichOneof("field_match_type")
                if kind != key.kind:
                    raise invalid(f"{what}: it is matched by {key.kind}, not {kind}")
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

    def action(self, table: TableInfo, action: p4runtime_pb2.TableAction) -> tuple[int, list[int]]:
        """(action id in the data plane, parameters)."""
        if action.WhichOneof("type") != "action":
            raise invalid(f"table {table.table.name}: an entry needs an action")
        chosen = action.action
        info = self.actions.get(chosen.action_id)
        legal = {ref.id for ref in table.info.action_refs}
        if info is None or chosen.action_id not in legal:
            names = ", ".join(sorted(self.actions[i].preamble.name for i in legal))
            raise invalid(f"table {table.table.name}: no action with id {chosen.action_id:#x}; its actions are {names}")
        given = {param.param_id: param.value for param in chosen.params}
        if len(given) != len(info.params) or given.keys() != {p.id for p in info.params}:
            names = ", ".join(p.name for p in info.params) or "none"
            raise invalid(f"action {info.preamble.name}: its parameters are {names}, each exactly once")
        params = [number(given[p.id], p.bitwidth, f"action {info.preamble.name}, {p.name}") for p in info.params]
        return table.table.actions[info.preamble.name], params
