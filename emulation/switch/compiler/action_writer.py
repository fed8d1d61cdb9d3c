"""Generate C for actions: one function each, one or a few statements per primitive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulation.errors import ProgramError
from emulation.switch.compiler.bmv2_json import Action, Field, Header, Program, Stack, c_name, source
from emulation.switch.compiler.expressions import NARROW, WIDE, Code, Expressions, assign, unsigned
from emulation.switch.compiler.header_writer import linkage
from emulation.switch.compiler.late_headers import LateHeaders

Parameters = list[dict[str, Any]]


def _combined(op: str, parameters: Parameters) -> dict[str, Any]:
    """The expression of two operands."""
    return {"type": "expression", "value": {"op": op, "left": parameters[0], "right": parameters[1]}}


class PrimitiveWriter:
    """Generates the actions of one program."""

    def __init__(self, program: Program, expressions: Expressions, late: LateHeaders) -> None:
        self.program, self.expressions, self.late = program, expressions, late
        self.counters = {c["name"]: c for c in program.counters}
        self.meters = {m["name"]: m for m in program.meters}
        self.writers: dict[str, Callable[[Parameters, Action], list[str]]] = {
            "assign": self._assign,
            "modify_field": self._assign,
            "add_to_field": lambda g, a: self._assign([g[0], _combined("+", g)], a),
            "subtract_from_field": lambda g, a: self._assign([g[0], _combined("-", g)], a),
            "assign_VL": self._assign_varbit,
            "assign_header": self._assign_header,
            "assign_union": self._assign_union,
            "assign_header_stack": self._assign_stack,
            "assign_union_stack": self._assign_stack,
            "add_header": lambda g, a: self._add_header(self.expressions.header(g[0], a.params)),
            "remove_header": lambda g, a: self._remove_header(self.expressions.header(g[0], a.params)),
            "push": lambda g, _: self._shift_stack("push", g),
            "pop": lambda g, _: self._shift_stack("pop", g),
            "register_read": self._register_read,
            "register_write": self._register_write,
            "count": self._count,
            "execute_meter": self._execute_meter,
            "mark_to_drop": self._mark_to_drop,
            "drop": self._mark_to_drop,
            "modify_field_with_hash_based_offset": self._hash,
            "modify_field_rng_uniform": self._random,
            "clone_ingress_pkt_to_egress": self._clone,
            "clone_egress_pkt_to_egress": self._clone,
            "resubmit": lambda g, a: [f"c->resubmit = (uint32_t)({self._code(g[0], a).low()});"],
            "recirculate": lambda g, a: [f"c->recirculate = (uint32_t)({self._code(g[0], a).low()});"],
            "generate_digest": lambda g, a: [f"c->digest = (uint32_t)({self._code(g[1], a).low()});"],
            "truncate": lambda g, a: [f"c->truncate = (uint32_t)({self._code(g[0], a).low()}) + 1;"],
            "exit": lambda *_: ["c->exited = true;", "return;"],
            "log_msg": self._log,
            "assert": self._assert,
            "assume": self._assert,
            "no_op": lambda *_: [],
        }

    def _code(self, e: dict[str, Any], action: Action) -> Code:
        return self.expressions.code(e, action.params)

    def _place(self, e: dict[str, Any], action: Action) -> Field:
        return self.expressions.place(e, action.params)

    # ---- actions ----------------------------------------------------------------------------------------------

    def action(self, action: Action) -> str:
        """`action_ID(c, d)`: d has the entry's parameters, in words."""
        labels = {p["parameters"][-1]["value"] for p in action.primitives if p["op"].startswith("_jump")}
        labels = {int(v, 16) if isinstance(v, str) else v for v in labels}
        lines = [f'TRACE("  action {action.name}");']
        for number, primitive in enumerate(action.primitives):
            if number in labels:
                lines.append(f"p{number}:;")
            try:
                lines += self.primitive(primitive, action)
            except ProgramError as error:
                where = source(primitive)
                raise ProgramError(f"action {action.name}: {error}{f' ({where})' if where else ''}") from error
        if len(action.primitives) in labels:
            lines.append(f"p{len(action.primitives)}:;")
        where = next((source(p) for p in action.primitives if source(p)), "")
        body = "\n".join("    " + line for line in self.late.fold(lines))
        return (
            f"// {action.name}{f'  {where}' if where else ''}\n"
            f"static {linkage(body)} void action_{action.id}(context_t *restrict c, const uint64_t *restrict d) {{\n"
            f"    (void)c; (void)d;\n{body}\n}}"
        )

    def primitive(self, primitive: dict[str, Any], action: Action) -> list[str]:
        """The statements of one primitive."""
        op, parameters = primitive["op"], primitive["parameters"]
        if op in ("_jump", "_jump_if_zero"):
            target = parameters[-1]["value"]
            label = f"goto p{int(target, 16) if isinstance(target, str) else target};"
            return [label if op == "_jump" else f"if (!({self._code(parameters[0], action).truth()})) {label}"]
        if op not in self.writers:
            raise ProgramError(f"the primitive {op} is not supported")
        return self.writers[op](parameters, action)

    def _assign(self, parameters: Parameters, action: Action) -> list[str]:
        return [assign(self._place(parameters[0], action), self._code(parameters[1], action))]

    # ---- headers ----------------------------------------------------------------------------------------------

    def _assign_varbit(self, parameters: Parameters, action: Action) -> list[str]:
        to, of = (self._place(g, action) for g in parameters)
        least = min((f.width + 7) // 8 for f in (to, of))
        return [f"{to.ref}.bits = {of.ref}.bits;", f"memcpy({to.ref}.bytes, {of.ref}.bytes, {least});"]

    def _assign_header(self, parameters: Parameters, action: Action) -> list[str]:
        to, of = (self.expressions.header(g, action.params) for g in parameters)
        others = [f"if ({of.ref}.valid) {sibling}.valid = false;" for sibling in to.siblings]
        return [*others, f"memmove(&{to.ref}, &{of.ref}, sizeof {to.ref});"]

    def _assign_union(self, parameters: Parameters, action: Action) -> list[str]:
        to, of = (self.expressions.union(g, action.params) for g in parameters)
        return [f"memmove(&{to.ref}, &{of.ref}, sizeof {to.ref});"]

    def _assign_stack(self, parameters: Parameters, _: Action) -> list[str]:
        to, of = (self.expressions.stack(g) for g in parameters)
        return [f"memmove(&{to.ref}, &{of.ref}, sizeof {to.ref});", f"{to.next} = {of.next};"]

    def _add_header(self, header: Header) -> list[str]:
        """Make a header valid, and all zeros unless it was valid before."""
        others = [f"{sibling}.valid = false;" for sibling in header.siblings]
        length = f" c->length += {header.type.bits // 8};" if self.program.uses("packet_length") else ""
        fresh = f"memset(&{header.ref}, 0, sizeof {header.ref}); {header.ref}.valid = true;{length}"
        return [*others, f"if (!{header.ref}.valid) {{ {fresh} }}"]

    def _remove_header(self, header: Header) -> list[str]:
        if not self.program.uses("packet_length"):
            return [f"{header.ref}.valid = false;"]
        return [f"if ({header.ref}.valid) c->length -= {header.type.bits // 8};", f"{header.ref}.valid = false;"]

    def _shift_stack(self, op: str, parameters: Parameters) -> list[str]:
        stack: Stack = self.expressions.stack(parameters[0])
        size, count = len(stack.elements), int(parameters[1]["value"], 16)
        kept = max(0, size - count)
        gone = min(size, count)
        one = f"sizeof {stack.ref}[0]"
        if op == "push":
            return [
                f"memmove({stack.ref} + {gone}, {stack.ref}, {kept} * {one});",
                f"memset({stack.ref}, 0, {gone} * {one});",
                f"{stack.next} = {stack.next} + {gone} < {size} ? {stack.next} + {gone} : {size};",
            ]
        return [
            f"memmove({stack.ref}, {stack.ref} + {gone}, {kept} * {one});",
            f"memset({stack.ref} + {kept}, 0, {gone} * {one});",
            f"{stack.next} = {stack.next} > {gone} ? {stack.next} - {gone} : 0;",
        ]

    # ---- state ------------------------------------------------------------------------------------------------

    def _register_read(self, parameters: Parameters, action: Action) -> list[str]:
        register = self.program.registers[parameters[1]["value"]]
        index, width = unsigned(self._code(parameters[2], action)), register.width
        cell = f"registers_{register.family}[{index}][@{register.column}@]"
        # Beyond the end, v1model leaves the value undefined; 0 makes runs repeatable.
        if width > 64:
            value = Code(f"({index} < {register.size} ? {cell} : big_of(0))", WIDE + 1)
        else:
            wide = "int64_t" if width <= NARROW else "i128"
            value = Code(f"({wide})({index} < {register.size} ? {cell} : 0)", width)
        return [assign(self._place(parameters[0], action), value)]

    def _register_write(self, parameters: Parameters, action: Action) -> list[str]:
        register = self.program.registers[parameters[0]["value"]]
        index, value = unsigned(self._code(parameters[1], action)), self._code(parameters[2], action)
        cell = f"registers_{register.family}[{index}][@{register.column}@]"
        return [f"if ({index} < {register.size}) {assign(Field('', '', cell, register.width, False, 0), value)}"]

    def _count(self, parameters: Parameters, action: Action) -> list[str]:
        counter = self.counters[parameters[0]["value"]]
        index = unsigned(self._code(parameters[1], action))
        cell = f"counter_{counter['id']}[{index}]"
        return [f"if ({index} < {counter['size']}) {{ {cell}.packets++; {cell}.bytes += c->packet_bytes; }}"]

    def _execute_meter(self, parameters: Parameters, action: Action) -> list[str]:
        meter = self.meters[parameters[0]["value"]]
        index = unsigned(self._code(parameters[1], action))
        cell = f"meter_{meter['id']}[{index}]"
        color = Code(f"(int64_t)meter_execute(&{cell}, {meter_input(meter)}, c->packet_bytes)", 2)
        return [f"if ({index} < {meter['size']}) {assign(self._place(parameters[2], action), color)}"]

    # ---- packet path --------------------------------------------------------------------------------------------

    def _mark_to_drop(self, parameters: Parameters, _: Action) -> list[str]:
        name = parameters[0]["value"] if parameters else "standard_metadata"
        fields = {f.name: f for f in self.program.headers[name].fields}
        lines = [f"{fields['egress_spec'].ref} = DROP_PORT;"]
        group = fields.get("mcast_grp") or self.program.fields.get(("intrinsic_metadata", "mcast_grp"))
        return lines if group is None else [*lines, f"{group.ref} = 0;"]

    def _clone(self, parameters: Parameters, action: Action) -> list[str]:
        session, fields = (self._code(g, action).low() for g in parameters)
        return [f"c->clone = (uint32_t)({session}) | CLONE;", f"c->clone_list = (uint32_t)({fields});"]

    def _hash(self, parameters: Parameters, action: Action) -> list[str]:
        base, size = (f"(uint64_t)({self._code(parameters[i], action).low()})" for i in (1, 3))
        value = f"(i128)((u128){base} + calculate_{c_name(parameters[2]['value'])}(c) % at_least({size}, 1))"
        return [assign(self._place(parameters[0], action), Code(value, 65))]

    def _random(self, parameters: Parameters, action: Action) -> list[str]:
        low, high = (f"(uint64_t)({self._code(parameters[i], action).low()})" for i in (1, 2))
        value = assign(self._place(parameters[0], action), Code(f"(i128)random_between({low}, {high})", 64))
        return [f"if ({low} <= {high}) {{ {value} }}"]

    # ---- words ------------------------------------------------------------------------------------------------

    def _log(self, parameters: Parameters, action: Action) -> list[str]:
        text = c_string(parameters[0]["value"].replace("%", "%%").replace("{}", "%lld"))
        values = [f", (long long)({self._code(v, action).low()})" for v in parameters[1]["value"]]
        return [f"LOG({text}{''.join(values)});"]

    def _assert(self, parameters: Parameters, action: Action) -> list[str]:
        return [
            f'if (!({self._code(parameters[0], action).truth()})) LOG("assertion failed: %s", {c_string(action.name)});'
        ]


def meter_input(meter: dict[str, Any]) -> str:
    """The number of tokens that a packet takes from a meter."""
    return "c->packet_bytes" if meter["type"] == "bytes" else "1"


def c_string(text: str) -> str:
    """A C string literal."""
    return (
        '"'
        + "".join(
            ch if ch.isascii() and ch.isprintable() and ch not in '"\\?' else f"\\{ord(ch) & 255:03o}" for ch in text
        )
        + '"'
    )
