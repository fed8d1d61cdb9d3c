"""BMv2 JSON expressions as C.

BMv2 computes on unbounded integers and masks on assignment. Here every expression carries a bound on the bits of its
value, and is computed in int64_t where that is enough and in 128 bits where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emulation.errors import ProgramError
from emulation.switch.program import Field, Program, c_type

NARROW = 62  # bits that int64_t holds with a sign and room for a carry
WIDE = 126


@dataclass(frozen=True, slots=True)
class Code:
    """A C expression of type int64_t (bits <= NARROW) or i128."""

    text: str
    bits: int

    def wide(self) -> str:
        return f"(i128)({self.text})"


def literal(value: int) -> Code:
    bits = max(1, abs(value).bit_length())
    if bits <= NARROW:
        return Code(f"INT64_C({value})", bits)
    if bits > WIDE:
        raise ProgramError(f"the constant {value:#x} has more than {WIDE} bits")
    high, low = abs(value) >> 64, abs(value) & (2**64 - 1)
    text = f"(((i128){high}u << 64) | UINT64_C({low}))"
    return Code(f"(-{text})" if value < 0 else text, bits)


def read(field: Field) -> Code:
    """A field's value."""
    return Code(f"({'int64_t' if field.width <= NARROW else 'i128'})({field.ref})", field.width)


def assign(field: Field, value: Code) -> str:
    """`field = value;`, cut to the field's width."""
    kind = c_type(field.width, field.signed)
    if field.signed:
        return f"{field.ref} = ({kind})sign_extend((uint64_t)({value.text}), {field.width});"
    if field.width in (8, 16, 32, 64):
        return f"{field.ref} = ({kind})({value.text});"
    return f"{field.ref} = ({kind})(({value.text}) & {literal(2**field.width - 1).text});"


def unsigned(value: Code) -> str:
    """A value for comparing with a size: what is negative becomes larger than any."""
    return f"({'uint64_t' if value.bits <= NARROW else 'u128'})({value.text})"


class Expressions:
    """Translates expressions of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def code(self, e: dict[str, Any], params: tuple[tuple[str, int], ...] = ()) -> Code:
        """An expression or primitive parameter as C; `params` are the action's, whose values are in d[]."""
        kind, value = e["type"], e["value"]
        if kind == "expression":
            return (
                self._operation(value, params)
                if isinstance(value, dict) and "op" in value
                else self.code(value, params)
            )
        if kind == "field":
            return read(self.program.field(value))
        if kind == "hexstr":
            return literal(int(value, 16))
        if kind == "bool":
            return literal(int(value))
        if kind in ("runtime_data", "local"):
            width = params[value][1]
            return Code(f"({'int64_t' if width <= NARROW else 'i128'})d[{value}]", width)
        raise ProgramError(f"expressions of type {kind} are not supported")

    def _operation(self, e: dict[str, Any], params: tuple[tuple[str, int], ...]) -> Code:
        op = e["op"]
        left = self.code(e["left"], params) if e.get("left") is not None else None
        right = self.code(e["right"], params) if e.get("right") is not None else literal(0)
        if left is None:
            return self._unary(op, right)
        if op in ("==", "!=", "<", "<=", ">", ">="):
            text = f"({left.text} {op} {right.text})"
            return Code(f"(int64_t){text}", 1)
        if op in ("and", "or"):
            return Code(f"(int64_t)(({left.text}) {'&&' if op == 'and' else '||'} ({right.text}))", 1)
        if op == "?":
            condition = self.code(e["cond"], params)
            return self._sized(f"(({condition.text}) ? {{}} : {{}})", left, right, max(left.bits, right.bits))
        if op in ("two_comp_mod", "sat_cast", "usat_cast"):
            return self._cast(op, left, int(e["right"]["value"], 16))
        if op in ("<<", ">>"):
            return self._shift(op, left, right, e["right"])
        if op in ("+", "-"):
            return self._arithmetic(op, left, right, max(left.bits, right.bits) + 1)
        if op == "*":
            return self._arithmetic(op, left, right, left.bits + right.bits)
        if op == "&":
            masks = [c.bits for c in (left, right) if c.text.startswith(("INT64_C(", "(((i128)"))]
            both = self._sized("({} & {})", left, right, max(left.bits, right.bits))
            bits = min([both.bits, *masks])
            return Code(f"(int64_t){both.text}", bits) if bits <= NARROW < both.bits else Code(both.text, bits)
        if op in ("|", "^"):
            return self._sized(f"({{}} {op} {{}})", left, right, max(left.bits, right.bits))
        raise ProgramError(f"the operator {op} is not supported")

    def _unary(self, op: str, right: Code) -> Code:
        if op in ("d2b", "b2d", "valid"):
            return Code(f"(int64_t)(({right.text}) != 0)", 1)
        if op == "not":
            return Code(f"(int64_t)!({right.text})", 1)
        if op == "~":
            return (
                Code(f"(~{right.text})", right.bits + 1)
                if right.bits < NARROW
                else Code(f"(~{right.wide()})", right.bits + 1)
            )
        if op == "-":
            return self._arithmetic("-", literal(0), right, right.bits + 1)
        raise ProgramError(f"the operator {op} is not supported")

    @staticmethod
    def _sized(form: str, left: Code, right: Code, bits: int) -> Code:
        if bits <= NARROW:
            return Code(form.format(left.text, right.text), bits)
        if bits > 2 * WIDE:
            raise ProgramError(f"an expression needs {bits} bits")
        return Code(form.format(left.wide(), right.wide()), min(bits, WIDE))

    @staticmethod
    def _arithmetic(op: str, left: Code, right: Code, bits: int) -> Code:
        if bits <= NARROW:
            return Code(f"({left.text} {op} {right.text})", bits)
        # Through the unsigned type: what does not fit 128 bits is cut off there, not undefined.
        return Code(f"((i128)((u128){left.wide()} {op} (u128){right.wide()}))", min(bits, WIDE))

    @staticmethod
    def _shift(op: str, left: Code, right: Code, amount: dict[str, Any]) -> Code:
        while amount["type"] == "expression" and "op" not in amount["value"]:
            amount = amount["value"]
        constant = int(amount["value"], 16) if amount["type"] == "hexstr" else None
        if op == ">>":
            constant = None if constant is None else min(constant, WIDE)
            count = str(constant) if constant is not None else f"(({right.text}) > 126 ? 126 : ({right.text}))"
            return Code(
                f"((int64_t)({left.wide()} >> {count}))" if left.bits <= NARROW else f"({left.wide()} >> {count})",
                left.bits,
            )
        if constant is not None and constant > WIDE:
            return literal(0)
        if constant is not None and left.bits + constant <= NARROW:
            return Code(f"({left.text} * (INT64_C(1) << {constant}))", left.bits + constant)
        count = str(constant) if constant is not None else f"(({right.text}) > 126 ? 127 : ({right.text}))"
        # Through the unsigned type: shifting bits out is defined there.
        return Code(f"((i128)((u128)({left.text}) << {count}))", WIDE)

    @staticmethod
    def _cast(op: str, left: Code, width: int) -> Code:
        if width > 64:
            raise ProgramError(f"a cast to {width} bits is not supported")
        if op == "two_comp_mod":
            text = f"sign_extend((uint64_t)({left.text}), {width})"
            return Code(text if width <= NARROW else f"(i128){text}", width)
        low, high = (0, 2**width - 1) if op == "usat_cast" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        text = (
            f"(({left.wide()}) < {literal(low).wide()} ? {literal(low).wide()} : ({left.wide()}) > "
            f"{literal(high).wide()} ? {literal(high).wide()} : ({left.wide()}))"
        )
        return Code(f"(int64_t){text}" if width <= NARROW else text, width)
