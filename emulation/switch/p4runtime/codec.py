"""Convert P4Runtime messages to the data plane's numbers, checked against P4Info.

Every refusal is a RequestError with the gRPC code required by the P4Runtime specification and a text that says what is
legal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from emulation.switch.compiler.bmv2_json import ConstEntry, Program, Table
from emulation.switch.p4runtime.bytestrings import canonical, number, shortest
from emulation.switch.p4runtime.sdn_strings import Names
from emulation.switch.p4runtime.status import RequestError, invalid, missing

KINDS = {
    p4info_pb2.MatchField.EXACT: "exact",
    p4info_pb2.MatchField.LPM: "lpm",
    p4info_pb2.MatchField.TERNARY: "ternary",
    p4info_pb2.MatchField.OPTIONAL: "optional",
    p4info_pb2.MatchField.RANGE: "range",
}

# The bytestring fields of each kind of match.
BYTESTRINGS = {
    "exact": ("value",),
    "lpm": ("value",),
    "ternary": ("value", "mask"),
    "optional": ("value",),
    "range": ("low", "high"),
}


def parse(names: Mapping[str, Names], info: Any, data: bytes, width: int, what: str) -> int:
    """Convert a controller's value of a P4Info field or parameter to an integer of at most `width` bits."""
    known = names.get(info.type_name.name)
    return number(data, width, what) if known is None else known.number(data, width, what)


def show(names: Mapping[str, Names], info: Any, value: int) -> bytes:
    """Convert a value to the form that controllers see."""
    known = names.get(info.type_name.name)
    return canonical(value) if known is None else known.shown(value)


def shorten_match(match: Iterable[p4runtime_pb2.FieldMatch]) -> None:
    """Convert the bytestrings of match fields to canonical form, in place."""
    for field in match:
        kind = field.WhichOneof("field_match_type")
        key = getattr(field, kind)
        for part in BYTESTRINGS[kind]:
            setattr(key, part, shortest(getattr(key, part)))


def shorten_action(action: p4runtime_pb2.Action) -> None:
    """Convert the parameters of an action to canonical form, in place."""
    for param in action.params:
        param.value = shortest(param.value)


@dataclass(frozen=True, slots=True)
class Match:
    """A table entry's key: values and masks in key order (of a range: its ends), and its priority in the data plane."""

    value: tuple[int, ...]
    mask: tuple[int, ...]
    priority: int


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One table, according to P4Info and the program."""

    info: Any
    table: Table

    @property
    def kinds(self) -> tuple[str, ...]:
        """Match kind of each key, as in P4Info: the program calls optional keys ternary."""
        return tuple(KINDS.get(field.match_type, "unknown") for field in self.info.match_fields)

    @property
    def prioritised(self) -> bool:
        """Whether entries carry a priority (section 9.1)."""
        return any(kind in ("ternary", "optional", "range") for kind in self.kinds)


class Schema:
    """P4Info together with its program.

    Args:
        names: the types whose values are strings for controllers.

    Raises:
        RequestError: P4Info names what the program does not have.
    """

    def __init__(self, p4info: p4info_pb2.P4Info, program: Program, names: Mapping[str, Names]) -> None:
        self.p4info = p4info
        self.program = program
        self.names = names
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
        self.direct_meters = {
            meter.direct_table_id: meter.spec for meter in p4info.direct_meters if meter.direct_table_id in self.tables
        }
        self.counters = {
            info.preamble.id: (known["id"], known["size"])
            for info, known in _paired("counter", p4info.counters, program.counters)
        }
        indirect = [meter for meter in program.meters if not meter["is_direct"]]
        # Meter id -> (id in the data plane, size, spec).
        self.meters: dict[int, tuple[int, int, Any]] = {
            info.preamble.id: (known["id"], known["size"], info.spec)
            for info, known in _paired("meter", p4info.meters, indirect)
        }
        numbered = [{"name": each["name"], "index": i} for i, each in enumerate(program.value_sets)]
        # Value set id -> (its P4Info, index in the data plane).
        self.value_sets: dict[int, tuple[Any, int]] = {
            info.preamble.id: (info, known["index"])
            for info, known in _paired("value set", p4info.value_sets, numbered)
        }
        # Action profile id -> (its P4Info, index in the data plane, the tables that use it).
        self.profiles: dict[int, tuple[Any, int, list[TableInfo]]] = {}
        profiles = [{"name": name, "index": each.index} for name, each in program.profiles.items()]
        for info, profile in _paired("action profile", p4info.action_profiles, profiles):
            users = [self.tables[table_id] for table_id in info.table_ids if table_id in self.tables]
            self.profiles[info.preamble.id] = (info, profile["index"], users)

    def _check(self, known: TableInfo) -> None:
        """Check that P4Info describes this program's table. Raises RequestError."""
        name, table = known.info.preamble.name, known.table
        if not self._fit(known.info.match_fields, table.widths) or "unknown" in known.kinds:
            raise invalid(f"P4Info's table {name} does not have the program's keys: the two do not belong together")
        for ref in known.info.action_refs:
            info = self.actions.get(ref.id)
            action = table.actions.get(info.preamble.name) if info is not None else None
            if info is None or action is None:
                raise invalid(f"P4Info's table {name} has an action ({ref.id:#x}) that the program's table has not")
            if not self._fit(info.params, self.program.actions[action].widths):
                raise invalid(f"P4Info's action {info.preamble.name} does not have the program's parameters")

    def _fit(self, infos: Sequence[Any], widths: Sequence[int]) -> bool:
        """Whether P4Info's fields or parameters are the program's.

        If controllers see another width than the program (@p4runtime_translation), values are passed on unchanged;
        strings have no width.
        """
        return len(infos) == len(widths) and all(
            info.bitwidth == width
            or (info.HasField("type_name") and (info.bitwidth > 0 or info.type_name.name in self.names))
            for info, width in zip(infos, widths, strict=True)
        )

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
        """The key of an entry (section 9.1.1); a missing field matches everything if its kind allows that.

        Raises:
            RequestError: a field or the priority is wrong.
        """
        name = table.table.name
        values, masks, prefix = match_fields(
            f"table {name}", table.info.match_fields, table.kinds, table.table.widths, entry.match, self.names
        )
        if table.prioritised and entry.priority <= 0:
            raise invalid(f"table {name} has ternary, range or optional keys: an entry needs a priority above 0")
        if not table.prioritised and entry.priority != 0:
            raise invalid(f"table {name} has no ternary, range or optional keys: an entry has no priority")
        return Match(tuple(values), tuple(masks), entry.priority if table.prioritised else prefix)

    def action(self, table: TableInfo, chosen: p4runtime_pb2.Action, default: bool = False) -> tuple[int, list[int]]:
        """(action id in the data plane, parameters), section 9.1.2.

        Raises:
            RequestError: the table does not take this action, or the parameters are wrong.
        """
        info = self.actions.get(chosen.action_id)
        barred = p4info_pb2.ActionRef.TABLE_ONLY if default else p4info_pb2.ActionRef.DEFAULT_ONLY
        legal = {ref.id for ref in table.info.action_refs if ref.scope != barred}
        if info is None or chosen.action_id not in legal:
            names = ", ".join(sorted(self.actions[i].preamble.name for i in legal)) or "none"
            text = f"table {table.table.name}: no action with id {chosen.action_id:#x}; its actions are {names}"
            if info is not None and any(ref.id == chosen.action_id for ref in table.info.action_refs):
                where = "in entries" if default else "by default"
                raise RequestError(grpc.StatusCode.PERMISSION_DENIED, f"{text}; {info.preamble.name} is only {where}")
            raise invalid(text)
        arguments = {param.param_id: param.value for param in chosen.params}
        if len(arguments) != len(chosen.params) or arguments.keys() != {p.id for p in info.params}:
            names = ", ".join(p.name for p in info.params) or "none"
            raise invalid(f"action {info.preamble.name}: its parameters are {names}, each exactly once")
        action = table.table.actions[info.preamble.name]
        widths = zip(info.params, self.program.actions[action].widths, strict=True)
        return action, [
            parse(self.names, p, arguments[p.id], width, f"action {info.preamble.name}, {p.name}")
            for p, width in widths
        ]

    # ---- the program's own entries ------------------------------------------------------------------------------

    def const_entries(self, table: TableInfo) -> Iterator[tuple[Match, p4runtime_pb2.TableEntry]]:
        """The program's constant entries, in its order, in the form of a controller's."""
        for entry in table.table.entries:
            message = p4runtime_pb2.TableEntry(table_id=table.info.preamble.id, is_const=table.info.is_const_table)
            widths = table.table.widths
            fields = zip(table.info.match_fields, table.kinds, widths, entry.value, entry.mask, strict=True)
            for info, kind, width, value, mask in fields:
                full = 2**width - 1
                if (kind == "range" and (value, mask) == (0, full)) or (kind not in ("exact", "range") and mask == 0):
                    continue  # Fields that match everything are omitted.
                field = getattr(message.match.add(field_id=info.id), kind)
                if kind == "range":
                    field.low, field.high = canonical(value), canonical(mask)
                    continue
                field.value = show(self.names, info, value)
                if kind == "lpm":
                    field.prefix_len = mask.bit_count()
                elif kind == "ternary":
                    field.mask = canonical(mask)
            if table.prioritised:
                message.priority = entry.priority
            self._set_action(message, entry.action, entry.params)
            yield (
                Match(entry.value, entry.mask, entry.priority if table.prioritised else _prefix(table, entry)),
                message,
            )

    def initial_default(self, table: TableInfo) -> p4runtime_pb2.TableEntry | None:
        """The program's default entry; None if it has none."""
        described = table.table.default
        if described is None:
            return None
        message = p4runtime_pb2.TableEntry(table_id=table.info.preamble.id, is_default_action=True)
        params = tuple(int(value, 16) for value in described["action_data"])
        return message if self._set_action(message, described["action_id"], params) else None

    def _set_action(self, message: p4runtime_pb2.TableEntry, action: int, params: tuple[int, ...]) -> bool:
        """Set an action of the program by its P4Info id; returns False if P4Info does not have it."""
        action_id = self.action_ids.get(self.program.actions[action].name)
        if action_id is None:
            return False
        message.action.action.action_id = action_id
        for info, value in zip(self.actions[action_id].params, params, strict=True):
            message.action.action.params.add(param_id=info.id, value=show(self.names, info, value))
        return True


def match_fields(
    where: str,
    infos: Iterable[Any],
    kinds: Sequence[str],
    widths: Sequence[int],
    fields: Iterable[p4runtime_pb2.FieldMatch],
    names: Mapping[str, Names],
) -> tuple[list[int], list[int], int]:
    """Match fields as (values, masks, prefix length of the lpm key), in key order; of a range: its ends.

    Raises:
        RequestError: a field is missing, unknown, of another kind, or not in canonical form.
    """
    by_id = {}
    for field in fields:
        if field.field_id in by_id:
            raise invalid(f"{where}: match field {field.field_id} is given twice")
        by_id[field.field_id] = field
    values, masks, prefix = [], [], 0
    for info, width, expected in zip(infos, widths, kinds, strict=True):
        what = f"{where}, match field {info.name or info.id}"
        found = by_id.pop(info.id, None)
        if found is None and expected == "exact":
            raise invalid(f"{what}: an exact match is required")
        value, mask = (0, 2**width - 1) if expected == "range" else (0, 0)
        if found is not None:
            kind = found.WhichOneof("field_match_type")
            if kind != expected:
                raise invalid(f"{what}: it is matched by {expected}, not {kind}")
            if info.type_name.name in names:
                if kind not in ("exact", "optional"):
                    raise invalid(f"{what}: strings are matched by exact or optional, not {kind}")
                value, mask = names[info.type_name.name].number(getattr(found, kind).value, width, what), 2**width - 1
            else:
                value, mask = _field(kind, getattr(found, kind), width, what)
            if kind == "lpm":
                prefix = found.lpm.prefix_len
        values.append(value)
        masks.append(mask)
    if by_id:
        known = ", ".join(f"{info.id} ({info.name})" for info in infos) or "none"
        raise invalid(f"{where}: no match field has id {next(iter(by_id))}; they are {known}")
    return values, masks, prefix


def _field(kind: str, field: Any, width: int, what: str) -> tuple[int, int]:
    """(value, mask) of one match field; of a range: its ends."""
    full = 2**width - 1
    if kind == "range":
        low, high = number(field.low, width, what), number(field.high, width, what)
        if low > high:
            raise invalid(f"{what}: the range {low:#x}..{high:#x} is empty")
        if (low, high) == (0, full):
            raise invalid(f"{what}: a range of everything is written by leaving the field out")
        return low, high
    mask = full
    if kind == "lpm":
        if not 0 < field.prefix_len <= width:
            raise invalid(
                f"{what}: prefix length {field.prefix_len} is not in 1..{width}; to match everything, leave it out"
            )
        mask = full ^ (full >> field.prefix_len)
    elif kind == "ternary":
        mask = number(field.mask, width, what)
        if mask == 0:
            raise invalid(f"{what}: a mask of zeros is written by leaving the field out")
    value = number(field.value, width, what)
    if value & ~mask:
        raise invalid(f"{what}: the value {value:#x} has bits outside the mask {mask:#x}")
    return value, mask


def _paired(
    what: str, infos: Iterable[Any], described: Iterable[dict[str, Any]]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Pairs of P4Info's objects of one kind and the program's objects of the same name."""
    by_name = {each["name"]: each for each in described}
    for info in infos:
        if info.preamble.name not in by_name:
            raise invalid(f"P4Info's {what} {info.preamble.name} is not in the program")
        yield info, by_name[info.preamble.name]


def _prefix(table: TableInfo, entry: ConstEntry) -> int:
    """The prefix length that `Schema.match` returns for such an entry in a table without ternary keys."""
    return entry.priority if "lpm" in table.kinds else 0


def the_cells(what: str, entry: Any, size: int) -> range:
    """The cells that a message names: one, or all if it has no index.

    Raises:
        RequestError: there is no such cell.
    """
    if not entry.HasField("index"):
        return range(size)
    index = entry.index.index
    if index < 0:
        raise invalid(f"the {what}'s cells are 0..{size - 1}, not {index}")
    if index >= size:
        raise RequestError(grpc.StatusCode.OUT_OF_RANGE, f"the {what}'s cells are 0..{size - 1}, not {index}")
    return range(index, index + 1)
