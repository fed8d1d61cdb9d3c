"""Generate C for a program's parser: one function with a label per state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulation.errors import ProgramError
from emulation.switch.compiler.bmv2_json import Action, Field, Header, Program, Stack, source, words
from emulation.switch.compiler.expressions import NARROW, Code, Expressions, as_words, assign, read, unsigned
from emulation.switch.compiler.loop_folding import INDEX

# Limit on visits of looping states per packet: states that extract nothing could loop forever. Loops that end extract a
# byte or more in nearly every state, from frames that are much shorter.
MOST_VISITS = 1 << 16

# The ends of parsing, by label and by the name of P4's standard error.
ENDS = {
    "too_short": "PacketTooShort",
    "no_room": "StackOutOfBounds",
    "too_long": "HeaderTooShort",
    "not_bytes": "ParserInvalidArgument",
}


class ParserWriter:
    """Generates one program's parser.

    Args:
        primitive: translates an action primitive, which parser states may also have.
        error_field: standard_metadata.parser_error, if the program has it.
    """

    def __init__(
        self,
        program: Program,
        expressions: Expressions,
        primitive: Callable[[dict[str, Any], Action], list[str]],
        error_field: Field | None,
    ) -> None:
        self.program, self.expressions = program, expressions
        self.primitive, self.error_field = primitive, error_field
        self.value_sets = {each["name"]: i for i, each in enumerate(program.value_sets)}
        self.loops = _loops(program.json["parsers"][0]["parse_states"])

    def write(self) -> str:
        """The whole parser as one C function."""
        parser = self.program.json["parsers"][0]
        first = parser["init_state"] or parser["parse_states"][0]["name"]
        out = [
            "// Leaves the rest of the packet as payload. An error ends parsing; the packet goes on to ingress.",
            "static bool parse(context_t *restrict c, const uint8_t *p, uint32_t bytes) {",
            "    uint32_t at = 0, error = 0;",
            *(["    uint32_t visits = 0;"] if self.loops else []),
            f"    goto {self._state_label(parser, first)};",
        ]
        for state in parser["parse_states"]:
            where = source(state)
            out.append(f"state_{state['id']}:  // {state['name']}{f'  {where}' if where else ''}")
            out.append(f'    TRACE("parser state {state["name"]}");')
            if state["name"] in self.loops:
                out.append(f"    if (++visits > {MOST_VISITS}) goto timeout;")
            out += ["    " + line for op in state["parser_ops"] for line in self._parser_op(op, state["name"])]
            out += ["    " + line for line in self._transition(parser, state)]
        for label, error in ENDS.items():
            out += [f"{label}:", f"    error = {self.program.errors.get(error, 1)};", "    goto done;"]
        out += ["done:", '    if (error != 0) TRACE("parser error %u", error);']
        out.append(f"    {self.error_field.ref} = error;" if self.error_field is not None else "    (void)error;")
        out += ["    c->payload = p + at;", "    c->payload_bytes = bytes - at;", "    return true;"]
        if self.loops:
            out += ["timeout:", '    TRACE("parser error ParserTimeout: %u states", visits);', "    return false;"]
        out.append("}")
        return INDEX.sub(r"[\1]", "\n".join(out))

    @staticmethod
    def _state_label(parser: dict[str, Any], name: str | None) -> str:
        if name is None:
            return "done"
        return f"state_{next(s['id'] for s in parser['parse_states'] if s['name'] == name)}"

    # ---- operations -------------------------------------------------------------------------------------------

    def _parser_op(self, op: dict[str, Any], state: str) -> list[str]:
        kind, parameters = op["op"], op["parameters"]
        if kind in ("extract", "extract_VL"):
            return self._extract(parameters, state)
        if kind == "set":
            place = self.expressions.place(parameters[0])
            if parameters[1]["type"] == "lookahead":
                check, value = _lookahead(parameters[1]["value"])
                return [check, assign(place, value)]
            return [assign(place, self.expressions.code(parameters[1]))]
        if kind == "verify":
            condition, error = self.expressions.code(parameters[0]).truth(), self.expressions.code(parameters[1]).low()
            return [f"if (!({condition})) {{ error = (uint32_t)({error}); goto done; }}"]
        if kind == "advance":
            amount = unsigned(self.expressions.code(parameters[0]))
            return [
                f"if ({amount} % 8 != 0) goto not_bytes;",
                f"if ({amount} / 8 > bytes - at) goto too_short;",
                f"at += (uint32_t)({amount} / 8);",
            ]
        if kind == "shift":
            return [f"if ({parameters[0]} > bytes - at) goto too_short;", f"at += {parameters[0]};"]
        if kind == "primitive":
            return self.primitive(parameters[0], Action(-1, f"parser state {state}", (), ()))
        raise ProgramError(f"parser state {state}: {kind} is not supported")

    def _extract(self, parameters: list[dict[str, Any]], state: str) -> list[str]:
        kind, value = parameters[0]["type"], parameters[0]["value"]
        before: list[str] = []
        after: list[str] = []
        if kind == "regular":
            header = self.program.headers[value]
        elif kind in ("stack", "union_stack"):
            stack = self.program.stacks[value if kind == "stack" else value[0]]
            header = _next_of(stack, value, kind)
            before = [f"if ({stack.next} >= {len(stack.elements)}) goto no_room;"]
            after = [f"{stack.next}++;"]
        else:
            raise ProgramError(f"parser state {state}: extracting a {kind} is not supported")
        others = [f"{sibling}.valid = false;" for sibling in header.siblings]
        trace = f'TRACE("  extract {header.name}");'
        if len(parameters) == 1:
            size = header.type.bits // 8
            call = f"extract_{header.type.c_name}(&{header.ref}, p + at);"
            return [
                *before,
                f"if (bytes - at < {size}) goto too_short;",
                *others,
                trace,
                call,
                f"at += {size};",
                *after,
            ]
        most = next(field.width for field in header.type.fields if field.varbit)
        return [
            *before,
            "{",
            f"    uint64_t varbits = (uint64_t){unsigned(self.expressions.code(parameters[1]))};",
            f"    if (varbits > {most}) goto too_long;",
            f"    if ((varbits + {header.type.bits}) % 8 != 0) goto not_bytes;",
            f"    if (bytes - at < (varbits + {header.type.bits}) / 8) goto too_short;",
            *(f"    {line}" for line in (*others, trace)),
            f"    extract_{header.type.c_name}(&{header.ref}, p + at, (uint32_t)varbits);",
            f"    at += (uint32_t)(varbits + {header.type.bits}) / 8;",
            "}",
            *after,
        ]

    # ---- transitions ------------------------------------------------------------------------------------------

    def _transition(self, parser: dict[str, Any], state: dict[str, Any]) -> list[str]:
        keys, checks = self._keys(state)
        widths = [width for _, width in keys]
        total = sum(map(words, widths))
        out: list[str] = []
        if keys:
            values = ", ".join(word for code, width in keys for word in as_words(code, width))
            out = ["{", *checks, f"const uint64_t key[{total}] = {{{values}}};", "(void)key;"]
        for transition in state["transitions"]:
            target = f"goto {self._state_label(parser, transition['next_state'])};"
            if transition["type"] == "default":
                out.append(target)
                break
            if transition["type"] == "parse_vset":
                number = self.value_sets[transition["value"]]
                out.append(f"if (value_set_has(&value_sets[{number}], key, {total})) {target}")
                continue
            if transition["type"] != "hexstr":
                raise ProgramError(f"parser state {state['name']}: {transition['type']} transitions are not supported")
            mask = None if transition["mask"] is None else int(transition["mask"], 16)
            out.append(f"if ({' && '.join(_tests(widths, int(transition['value'], 16), mask)) or 'true'}) {target}")
        else:
            out.append("goto done;")
        return [*out, "}"] if keys else out

    def _keys(self, state: dict[str, Any]) -> tuple[list[tuple[Code, int]], list[str]]:
        """The values that a state selects on, with their widths; and the checks that come first."""
        keys: list[tuple[Code, int]] = []
        checks = []
        for key in state["transition_key"]:
            if key["type"] in ("field", "stack_field", "union_stack_field"):
                field = self.expressions.place(key)
                keys.append((read(field), field.width))
            elif key["type"] == "lookahead":
                check, value = _lookahead(key["value"])
                checks.append(check)
                keys.append((value, key["value"][1]))
            else:
                raise ProgramError(f"parser state {state['name']}: selecting on {key['type']} is not supported")
        return keys, checks


def _loops(states: list[dict[str, Any]]) -> set[str]:
    """The states that may be visited again."""
    following = {s["name"]: {t["next_state"] for t in s["transitions"]} - {None} for s in states}

    def reached(name: str) -> set[str]:
        found: set[str] = set()
        ahead = list(following[name])
        while ahead:
            if (state := ahead.pop()) not in found:
                found.add(state)
                ahead += following[state]
        return found

    return {name for name in following if name in reached(name)}


def _lookahead(value: list[int]) -> tuple[str, Code]:
    """(length check, the bits) of a lookahead."""
    offset, width = value
    check = f"if ((uint64_t)(bytes - at) * 8 < {offset + width}) goto too_short;"
    if width > 64:
        return check, read(Field("", "", f"get_big(p + at, {offset}, {width})", width, False, 0))
    kind = "int64_t" if width <= NARROW else "i128"
    return check, Code(f"({kind})get_bits(p + at, {offset}, {width})", width)


def _next_of(stack: Stack, value: Any, kind: str) -> Header:
    """The header that an extraction to a stack fills."""
    element = stack.at(stack.next)
    if isinstance(element, Header):
        return element
    return element.members[value[1]] if kind == "union_stack" else next(iter(element.members.values()))


def _tests(widths: list[int], value: int, mask: int | None) -> list[str]:
    """One comparison per word of the select keys; the JSON pads each key to whole bytes, the last one lowest."""
    tests: list[str] = []
    at = sum(map(words, widths))
    for width in reversed(widths):
        here = (mask if mask is not None else -1) & (2**width - 1)
        wanted = value & here
        for i in range(words(width)):
            at -= 1
            part, bits = wanted >> 64 * i & (2**64 - 1), here >> 64 * i & (2**64 - 1)
            if bits == 2 ** min(64, width - 64 * i) - 1:
                tests.append(f"key[{at}] == UINT64_C({part:#x})")
            elif bits:
                tests.append(f"(key[{at}] & UINT64_C({bits:#x})) == UINT64_C({part:#x})")
        packed = (width + 7) // 8 * 8
        value >>= packed
        mask = None if mask is None else mask >> packed
    return tests[::-1]
