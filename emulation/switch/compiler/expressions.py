"""Generate C for BMv2 JSON expressions.

BMv2 computes with unbounded integers and masks on assignment. Here every expression has a bound on the bits of its
value. It is computed in int64_t if that suffices, otherwise in 128 bits or in limbs (runtime/big.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emulation.errors import ProgramError
from emulation.switch.compiler.bmv2_json import Field, Header, Program, Stack, Union, c_type, words

NARROW = 62  # bits for which int64_t has room, with a sign and a carry
WIDE = 126  # the same for 128 bits
MOST = 1 << 16  # more bits than any header has
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
Params = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """A C expression of type int64_t (bits <= NARROW), i128 (bits <= WIDE) or big_t."""

    text: str
    bits: int

    def fit(self, bits: int) -> str:
        """Convert to the type for `bits` bits, at least its own."""
        if self.bits > WIDE or bits <= NARROW:
            return self.text
        return f"(i128)({self.text})" if bits <= WIDE else f"big_of({self.text})"

    def truth(self) -> str:
        """Compare with 0, for C's conditions."""
        return f"big_truth({self.text})" if self.bits > WIDE else self.text

    def low(self) -> str:
        """At least its low 64 bits, as an integer."""
        return f"(int64_t)big_low({self.text})" if self.bits > WIDE else self.text


def literal(value: int) -> Code:
    bits = max(1, abs(value).bit_length())
    if bits <= NARROW:
        return Code(f"INT64_C({value})", bits)
    if bits <= WIDE:
        high, low = abs(value) >> 64, abs(value) & (2**64 - 1)
        text = f"(((i128){high}u << 64) | UINT64_C({low}))"
        return Code(f"(-{text})" if value < 0 else text, bits)
    limbs = ", ".join(f"UINT64_C({abs(value) >> 64 * i & (2**64 - 1)})" for i in range(words(bits)))
    text = f"((big_t){{{{{limbs}}}}})"
    return Code(f"big_neg({text})" if value < 0 else text, bits)


def read(field: Field) -> Code:
    """A field's value."""
    if field.width <= 64:
        return Code(f"({'int64_t' if field.width <= NARROW else 'i128'})({field.ref})", field.width)
    return Code(f"big_narrow({field.ref})" if field.width <= WIDE else field.ref, field.width)


def assign(field: Field, value: Code) -> str:
    """`field = value;`, truncated to the field's width."""
    if field.width > 64:
        return f"{field.ref} = big_{'extend' if field.signed else 'cut'}({value.fit(MOST)}, {field.width});"
    kind = c_type(field.width, field.signed)
    if field.signed:
        return f"{field.ref} = ({kind})sign_extend((uint64_t)({value.low()}), {field.width});"
    if field.width in (8, 16, 32, 64):
        return f"{field.ref} = ({kind})({value.low()});"
    return f"{field.ref} = ({kind})((uint64_t)({value.low()}) & UINT64_C({2**field.width - 1:#x}));"


def unsigned(value: Code) -> str:
    """A value for comparison with a size: negative ones become larger than any size."""
    if value.bits > WIDE:
        return f"big_index({value.text})"
    return f"({'uint64_t' if value.bits <= NARROW else 'u128'})({value.text})"


def as_words(value: Code, width: int) -> list[str]:
    """The low `width` bits as 64-bit words, the highest first."""
    if width <= 64:
        cut = "" if width == 64 else f" & UINT64_C({2**width - 1:#x})"
        return [f"((uint64_t)({value.low()}){cut})"]
    return [f"big_cut({value.fit(MOST)}, {width}).w[{i}]" for i in reversed(range(words(width)))]


class Expressions:
    """Translates the expressions of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # For any field, and any expression so far: no more limbs than the program needs.
        self.widest = max([1, *(f.width for t in program.types.values() for f in t.fields if not f.varbit)])
        self.most_bits = max(2 * WIDE, self.widest)

    def code(self, e: dict[str, Any], params: Params = ()) -> Code:
        """A C expression for a JSON one; `params` are the action's parameters, whose values are in d[]."""
        made = self._code(e, params)
        if made.bits > MOST:
            raise ProgramError(f"an expression needs {made.bits} bits")
        self.most_bits = max(self.most_bits, made.bits)
        return made

    def _code(self, e: dict[str, Any], params: Params) -> Code:
        kind, value = e["type"], e["value"]
        if kind == "expression":
            if not isinstance(value, dict) or "op" not in value:
                return self.code(value, params)
            if value["op"] == "access_field":
                return read(self.place(e, params))
            return self._operation(value, params)
        if kind in ("field", "stack_field", "union_stack_field"):
            return read(self.place(e, params))
        if kind == "hexstr":
            return literal(int(value, 16))
        if kind == "bool":
            return literal(int(value))
        if kind in ("runtime_data", "local"):
            return _param(value, params)
        raise ProgramError(f"expressions of type {kind} are not supported")

    # ---- places -----------------------------------------------------------------------------------------------

    def place(self, e: dict[str, Any], params: Params = ()) -> Field:
        """The field that a reference names."""
        kind, value = e["type"], e["value"]
        if kind == "field":
            return self.program.field(value)
        if kind == "stack_field":
            last = self._last(self.program.stacks[value[0]])
            if isinstance(last, Header):
                return _field(last, value[1])
        elif kind == "union_stack_field":
            last = self._last(self.program.stacks[value[0]])
            if isinstance(last, Union):
                return _field(last.members[value[1]], value[2])
        elif kind == "expression":
            if "op" not in value:
                return self.place(value, params)
            if value["op"] == "access_field":
                return self.header(value["left"], params).fields[_number(value["right"])]
        raise ProgramError(f"{kind} names no field")

    def header(self, e: dict[str, Any], params: Params = ()) -> Header:
        """The header that a reference names."""
        found = self.program.headers[e["value"]] if e["type"] == "header" else self._element(e, params)
        if not isinstance(found, Header):
            raise ProgramError(f"{e['type']} names no header")
        return found

    def union(self, e: dict[str, Any], params: Params = ()) -> Union:
        """The header union that a reference names."""
        found = self.program.unions[e["value"]] if e["type"] == "header_union" else self._element(e, params)
        if not isinstance(found, Union):
            raise ProgramError(f"{e['type']} names no header union")
        return found

    def stack(self, e: dict[str, Any]) -> Stack:
        """The stack that a reference names."""
        while e["type"] == "expression":
            e = e["value"]
        if e["type"] not in ("header_stack", "header_union_stack", "stack", "union_stack"):
            raise ProgramError(f"{e['type']} names no stack")
        return self.program.stacks[e["value"]]

    def _element(self, e: dict[str, Any], params: Params) -> Header | Union | None:
        """The element of a stack or union that an expression selects."""
        if e["type"] != "expression":
            return None
        value = e["value"]
        if "op" not in value:
            return self._element(value, params)
        if value["op"] in ("dereference_header_stack", "dereference_union_stack"):
            stack = self.stack(value["left"])
            index = unsigned(self.code(value["right"], params))
            return stack.at(f"at_most({index}, {len(stack.elements)})")
        if value["op"] == "access_union_header":
            return list(self.union(value["left"], params).members.values())[_number(value["right"])]
        return None

    @staticmethod
    def _last(stack: Stack) -> Header | Union:
        """The element that was extracted last; if there is none, the one out of bounds."""
        return stack.at(f"at_most((uint32_t)({stack.next} - 1), {len(stack.elements)})")

    # ---- operations -------------------------------------------------------------------------------------------

    def _operation(self, e: dict[str, Any], params: Params) -> Code:
        op = e["op"]
        if op in ("valid", "valid_union", "last_stack_index", "size_stack"):
            return self._question(op, e["right"], params)
        if op in ("==", "!=") and (both := self._varbits(e)) is not None:
            return Code(f"(int64_t)({'!' if op == '!=' else ''}same_varbit({both}))", 1)
        left = self.code(e["left"], params) if e.get("left") is not None else None
        right = self.code(e["right"], params) if e.get("right") is not None else literal(0)
        if left is None:
            return _unary(op, right)
        if op in COMPARISONS:
            if max(left.bits, right.bits) <= WIDE:
                return Code(f"(int64_t)({left.text} {op} {right.text})", 1)
            return Code(f"(int64_t)(big_compare({left.fit(MOST)}, {right.fit(MOST)}) {op} 0)", 1)
        if op in ("and", "or"):
            # No short circuit: gcc would read neighbouring fields at once, and wait for their separate writes.
            return Code(f"((int64_t)(({left.truth()}) != 0) {'&' if op == 'and' else '|'} (({right.truth()}) != 0))", 1)
        if op == "?":
            condition = self.code(e["cond"], params)
            bits = max(left.bits, right.bits)
            return Code(f"(({condition.truth()}) ? {left.fit(bits)} : {right.fit(bits)})", bits)
        if op in ("two_comp_mod", "sat_cast", "usat_cast"):
            return _cast(op, left, int(e["right"]["value"], 16))
        if op in ("<<", ">>"):
            return self._shift(op, left, right, e["right"])
        if op in ("+", "-"):
            return _arithmetic(op, left, right, max(left.bits, right.bits) + 1)
        if op == "*":
            return _arithmetic(op, left, right, left.bits + right.bits)
        if op in ("&", "|", "^"):
            return _bitwise(op, left, right, e)
        raise ProgramError(f"the operator {op} is not supported")

    def _shift(self, op: str, left: Code, right: Code, amount: dict[str, Any]) -> Code:
        while amount["type"] == "expression" and "op" not in amount["value"]:
            amount = amount["value"]
        constant = min(int(amount["value"], 16), MOST) if amount["type"] == "hexstr" else None
        count = str(constant) if constant is not None else f"shift_count({unsigned(right)})"
        if op == ">>":
            if left.bits > WIDE:
                return Code(f"big_right({left.text}, {count})", left.bits)
            return Code(f"({left.text} >> at_most({count}, {63 if left.bits <= NARROW else 127}))", left.bits)
        if constant is not None and left.bits + constant <= NARROW:
            return Code(f"({left.text} * (INT64_C(1) << {constant}))", left.bits + constant)
        if constant is not None and left.bits + constant <= WIDE:
            return Code(f"((i128)((u128)({left.text}) << {constant}))", left.bits + constant)
        # p4c truncates the result to the operand's width: bits shifted beyond the widest field are lost in any case.
        if self.widest <= 64 and left.bits <= WIDE:
            return Code(f"((i128)shift_left((u128)({left.text}), {count}))", WIDE)
        return Code(f"big_left({left.fit(MOST)}, {count})", max(left.bits, self.widest + 1, WIDE + 1))

    def _question(self, op: str, of: dict[str, Any], params: Params) -> Code:
        if op == "valid":
            return Code(f"(int64_t){self.header(of, params).ref}.valid", 1)
        if op == "valid_union":
            members = self.union(of, params).members.values()
            return Code(f"(int64_t)({' || '.join(f'{member.ref}.valid' for member in members)})", 1)
        stack = self.stack(of)
        if op == "size_stack":
            return Code(f"(int64_t){stack.next}", 32)
        return Code(f"((int64_t){stack.next} - 1)", 33)

    def _varbits(self, e: dict[str, Any]) -> str | None:
        """C arguments for two varbits that are compared; None for anything else."""
        fields = []
        for side in (e.get("left"), e.get("right")):
            if side is None or side["type"] != "field":
                return None
            fields.append(self.program.field(side["value"]))
        if not all(field.varbit for field in fields):
            return None
        return ", ".join(f"{field.ref}.bits, {field.ref}.bytes" for field in fields)


def _field(header: Header, name: str) -> Field:
    return next(field for field in header.fields if field.name == name)


def _number(e: Any) -> int:
    """A constant index, bare or wrapped."""
    if isinstance(e, int):
        return e
    return int(e["value"], 16) if isinstance(e["value"], str) else int(e["value"])


def _param(number: int, params: Params) -> Code:
    width, at = params[number][1], sum(words(w) for _, w in params[:number])
    if width <= 64:
        return Code(f"({'int64_t' if width <= NARROW else 'i128'})d[{at}]", width)
    text = f"big_words(d + {at}, {words(width)})"
    return Code(f"big_narrow({text})" if width <= WIDE else text, width)


def _unary(op: str, right: Code) -> Code:
    if op in ("d2b", "b2d"):
        return Code(f"(int64_t)(({right.truth()}) != 0)", 1)
    if op == "not":
        return Code(f"(int64_t)!({right.truth()})", 1)
    if op == "~":
        bits = right.bits + 1
        return Code(f"big_not({right.fit(bits)})" if bits > WIDE else f"(~{right.fit(bits)})", bits)
    if op == "-":
        return _arithmetic("-", literal(0), right, right.bits + 1)
    raise ProgramError(f"the operator {op} is not supported")


def _bitwise(op: str, left: Code, right: Code, e: dict[str, Any]) -> Code:
    bits = max(left.bits, right.bits)
    # A mask bounds the result: p4c masks after each operation.
    masks = [c.bits for c, side in ((left, e["left"]), (right, e["right"])) if side["type"] == "hexstr"]
    bound = min([bits, *masks]) if op == "&" else bits
    if bits > WIDE:
        text = f"big_{ {'&': 'and', '|': 'or', '^': 'xor'}[op] }({left.fit(bits)}, {right.fit(bits)})"
        if bound > WIDE:
            return Code(text, bound)
        text = f"big_narrow({text})"
    else:
        text = f"({left.fit(bits)} {op} {right.fit(bits)})"
    return Code(f"(int64_t){text}" if bound <= NARROW < bits else text, bound)


def _arithmetic(op: str, left: Code, right: Code, bits: int) -> Code:
    if bits <= WIDE:
        return Code(f"({left.fit(bits)} {op} {right.fit(bits)})", bits)
    name = {"+": "add", "-": "subtract", "*": "multiply"}[op]
    return Code(f"big_{name}({left.fit(bits)}, {right.fit(bits)})", bits)


def _cast(op: str, left: Code, width: int) -> Code:
    if op == "two_comp_mod":
        if width <= 64:
            text = f"sign_extend((uint64_t)({left.low()}), {width})"
            return Code(text if width <= NARROW else f"(i128){text}", width)
        text = f"big_extend({left.fit(MOST)}, {width})"
        return Code(f"big_narrow({text})" if width <= WIDE else text, width)
    low, high = (0, 2**width - 1) if op == "usat_cast" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
    ends = literal(low), literal(high)
    bits = max(left.bits, ends[0].bits, ends[1].bits, NARROW + 1)
    text = ", ".join(code.fit(bits) for code in (left, *ends))
    if bits > WIDE:
        text = f"big_between({text})"
        return Code(f"big_narrow({text})" if width <= WIDE else text, max(width, NARROW + 1))
    return Code(f"(int64_t)between({text})" if width <= NARROW else f"between({text})", width)
