"""A program's parser as one C function: a label per state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulation.errors import ProgramError
from emulation.switch.expression import NARROW, Code, Expressions, assign, unsigned
from emulation.switch.fold import INDEX
from emulation.switch.program import Action, Field, Program, source


class ParserWriter:
    """Writes the C of one program's parser.

    Args:
        primitive: translates an action primitive, which parser states may hold, too.
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

    def write(self) -> str:
        """The whole parser as one C function."""
        parser = self.program.json["parsers"][0]
        out = [
            "// Leaves the rest of the packet as payload. An error ends parsing; the packet goes on to ingress.",
            "static void parse(context_t *restrict c, const uint8_t *p, uint32_t bytes) {",
            "    uint32_t at = 0, error = 0;",
            f"    goto state_{parser['parse_states'][0]['id']};"
            if parser["init_state"] is None
            else f"    goto {self._state_label(parser, parser['init_state'])};",
        ]
        for state in parser["parse_states"]:
            where = source(state)
            out.append(f"state_{state['id']}:  // {state['name']}{f'  {where}' if where else ''}")
            out += ["    " + line for op in state["parser_ops"] for line in self._parser_op(op, state["name"])]
            out += ["    " + line for line in self._transition(parser, state)]
        out += ["too_short:", f"    error = {self.program.errors.get('PacketTooShort', 1)};", "done:"]
        out.append(f"    {self.error_field.ref} = error;" if self.error_field is not None else "    (void)error;")
        out += [
            "    c->payload = p + at;",
            "    c->payload_bytes = bytes - at;",
            "    return;",
            "    goto too_short;",
            "}",
        ]
        return INDEX.sub(r"[\1]", "\n".join(out))

    @staticmethod
    def _state_label(parser: dict[str, Any], name: str | None) -> str:
        if name is None:
            return "done"
        return f"state_{next(s['id'] for s in parser['parse_states'] if s['name'] == name)}"

    def _parser_op(self, op: dict[str, Any], state: str) -> list[str]:
        kind, given = op["op"], op["parameters"]
        if kind == "extract" and given[0]["type"] == "regular":
            header = self.program.headers[given[0]["value"]]
            size = header.bits // 8
            return [
                f"if (bytes - at < {size}) goto too_short;",
                f"extract_{header.c_name}(c, p + at);",
                f"at += {size};",
            ]
        if kind == "set" and given[1]["type"] == "lookahead":
            lines, text, width = self._lookahead(given[1]["value"], state)
            value = Code(f"({'int64_t' if width <= NARROW else 'i128'}){text}", width)
            return [*lines, assign(self.program.field(given[0]["value"]), value)]
        if kind == "set":
            return [assign(self.program.field(given[0]["value"]), self.expressions.code(given[1]))]
        if kind == "verify":
            condition, error = (self.expressions.code(g).text for g in given)
            return [f"if (!({condition})) {{ error = (uint32_t)({error}); goto done; }}"]
        if kind == "advance":
            amount = unsigned(self.expressions.code(given[0]))
            return [f"if ({amount} / 8 > bytes - at) goto too_short;", f"at += (uint32_t)({amount} / 8);"]
        if kind == "primitive":
            nothing = Action(-1, f"parser state {state}", (), ())
            return self.primitive(given[0], nothing)
        raise ProgramError(f"parser state {state}: {kind} {given[0].get('type', '')} is not supported")

    @staticmethod
    def _lookahead(value: list[int], state: str) -> tuple[list[str], str, int]:
        """(check that so much is there, the bits as C, their number) of a look at what comes next."""
        offset, width = value
        if width > 64:
            raise ProgramError(f"parser state {state}: a lookahead of {width} bits; 64 is the most here")
        return (
            [f"if ((uint64_t)(bytes - at) * 8 < {offset + width}) goto too_short;"],
            f"get_bits(p + at, {offset}, {width})",
            width,
        )

    def _transition(self, parser: dict[str, Any], state: dict[str, Any]) -> list[str]:
        out: list[str] = []
        keys: list[tuple[str, int]] = []
        for number, key in enumerate(state["transition_key"]):
            if key["type"] == "field":
                field = self.program.field(key["value"])
                keys.append((f"(uint64_t)({field.ref})", field.width))
            elif key["type"] == "lookahead":
                lines, text, width = self._lookahead(key["value"], state["name"])
                out += [*lines, f"uint64_t ahead_{state['id']}_{number} = {text};"]
                keys.append((f"ahead_{state['id']}_{number}", width))
            else:
                raise ProgramError(f"parser state {state['name']}: selecting on {key['type']} is not supported")
        if out:
            out = ["{", *out]
        for transition in state["transitions"]:
            target = f"goto {self._state_label(parser, transition['next_state'])};"
            if transition["type"] == "default":
                out.append(target)
                break
            if transition["type"] != "hexstr":
                raise ProgramError(f"parser state {state['name']}: {transition['type']} transitions are not supported")
            tests = self._tests(
                keys, int(transition["value"], 16), None if transition["mask"] is None else int(transition["mask"], 16)
            )
            out.append(f"if ({' && '.join(tests) or 'true'}) {target}")
        else:
            out.append("goto done;")
        if out[0] == "{":
            out.append("}")
        return out

    @staticmethod
    def _tests(keys: list[tuple[str, int]], value: int, mask: int | None) -> list[str]:
        """One comparison per select key; the JSON packs keys into whole bytes each, the last one lowest."""
        tests = []
        for text, width in reversed(keys):
            packed = (width + 7) // 8 * 8
            here = (mask if mask is not None else -1) & (2**width - 1)
            wanted = value & (2**width - 1) & here
            if here == 2**width - 1:
                tests.append(f"({text}) == UINT64_C({wanted:#x})")
            elif here:
                tests.append(f"(({text}) & UINT64_C({here:#x})) == UINT64_C({wanted:#x})")
            value >>= packed
            mask = None if mask is None else mask >> packed
        return list(reversed(tests))
