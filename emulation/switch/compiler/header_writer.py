"""Generate C for header types: a struct, extraction from a packet, and emission."""

from __future__ import annotations

import re
from dataclasses import dataclass

from emulation.errors import ProgramError
from emulation.switch.compiler.bmv2_json import Field, HeaderType, Program, c_name, c_type
from emulation.switch.compiler.late_headers import LateHeaders
from emulation.switch.compiler.loop_folding import INDEX, fold

WHOLE = range(8, 65, 8)  # widths that runtime.h loads and stores at once if aligned to bytes


def declare(program: Program, late: LateHeaders) -> str:
    """Structs of all types, and of all instances together (`headers_t`) with the stacks' next indices."""
    out = [_struct(kind, late.has(kind)) for kind in program.types.values()]
    for name, members in program.union_types.items():
        fields = " ".join(f"h_{kind.c_name} m_{c_name(member)};" for member, kind in members.items())
        out.append(f"typedef struct {{ {fields} }} u_{c_name(name)};")
    # A stack has one extra element, for accesses out of bounds.
    out += ["typedef struct {"]
    out += [f"    {kind} {name}{f'[{size + 1}]' if size else ''};" for kind, name, size in in_order(program)]
    out += ["} headers_t;", "typedef struct {"]
    out += [f"    uint32_t {name};" for _, name, size in program.members if size]
    return "\n".join([*out, "    char none;", "} stacks_next_t;"])


def _struct(kind: HeaderType, late: bool) -> str:
    members = {"late": "const uint8_t *late;"} if late else {}
    for field in kind.fields:
        run = re.match(r"(run\d+)\[@(\d+)@\]", field.ref)
        if run:
            members[run[1]] = f"uint32_t {run[1]}[{int(run[2]) + 1}];"
        elif field.varbit:
            members[field.ref] = f"struct {{ uint32_t bits; uint8_t bytes[{(field.width + 7) // 8}]; }} {field.ref};"
        else:
            members[field.ref] = f"{c_type(field.width, field.signed)} {field.ref};"
    return f"typedef struct {{ bool valid; {' '.join(members.values())} }} h_{kind.c_name};"


def extract(kind: HeaderType, late: bool) -> str:
    """`extract_TYPE(h, p)`: h from the bytes at p; a type with a varbit also takes its number of bits.

    Of a header that is read late also `load_TYPE(h)`.
    """
    if not late:
        return _extract(kind, ["h->valid = true;", *fold(_read(kind))])
    body = _body(fold(_read(kind)))
    return (
        f"{_extract(kind, ['h->valid = true;', 'h->late = p;'])}\n\n"
        f"static VECTOR void load_{kind.c_name}(h_{kind.c_name} *restrict h) {{\n"
        f"    const uint8_t *restrict p = h->late;\n    if (p == NULL) return;\n{body}\n    h->late = NULL;\n}}"
    )


def _extract(kind: HeaderType, statements: list[str]) -> str:
    body = _body(statements)
    length = ", uint32_t varbits" if kind.varbit else ""
    return (
        f"static {linkage(body)} void extract_{kind.c_name}(h_{kind.c_name} *restrict h, const uint8_t *restrict p{length}) {{\n"
        f"    (void)p;\n{body}\n}}"
    )


def _read(kind: HeaderType) -> list[str]:
    """Statements that read all fields from the bytes at p."""
    lines = []
    behind = False  # after a varbit, offsets are only known at run time
    packed = _packed(kind)
    for f in kind.fields:
        to = f"h->{f.ref}"
        if f.varbit:
            lines += [f"{to}.bits = varbits;", f"copy_bits({to}.bytes, 0, p, {f.offset}, varbits);"]
            behind = True
        elif f in packed:
            pack = packed[f]
            value = f"({_load(pack.offset, pack.bits)} >> {pack.shift(f)} & UINT64_C({2**f.width - 1:#x}))"
            cut = f"sign_extend({value}, {f.width})" if f.signed else value
            lines.append(f"{to} = ({c_type(f.width, f.signed)}){cut};")
        elif behind or f.offset % 8 or f.width not in WHOLE:
            at = f"{f.offset}{' + varbits' if behind else ''}"
            lines.append(f"{to} = {_bits(f, at)};")
        elif run := INDEX.search(f.ref):
            first = f.offset // 8 - 4 * int(run[1])
            lines.append(f"{to} = load32(&((const uint8_t (*)[4])(p + {first}))[@{run[1]}@][0]);")
        else:
            value = _load(f.offset, f.width)
            cut = f"sign_extend({value}, {f.width})" if f.signed and f.width in (24, 40, 48, 56) else value
            lines.append(f"{to} = ({c_type(f.width, f.signed)}){cut};")
    return lines


@dataclass(frozen=True, slots=True)
class _Pack:
    """Adjacent fields that fill whole bytes together, loaded and stored at once; offset and size in bits."""

    offset: int
    bits: int
    fields: tuple[Field, ...]

    def shift(self, f: Field) -> int:
        return self.offset + self.bits - f.offset - f.width


def _packed(kind: HeaderType) -> dict[Field, _Pack]:
    """The pack of each field that is in one."""
    found: dict[Field, _Pack] = {}
    run: list[Field] = []
    for f in () if kind.varbit else kind.fields:
        run.append(f)
        if (f.offset + f.width) % 8:
            continue
        bits = sum(each.width for each in run)
        if len(run) > 1 and bits in WHOLE:
            found |= dict.fromkeys(run, _Pack(run[0].offset, bits, tuple(run)))
        run = []
    return found


def _load(offset: int, width: int) -> str:
    return f"p[{offset // 8}]" if width == 8 else f"load{width}(p + {offset // 8})"


def _bits(f: Field, at: str) -> str:
    if f.width > 64:
        return f"{'big_extend' if f.signed else 'big_cut'}(get_big(p, {at}, {f.width}), {f.width})"
    value = f"get_bits(p, {at}, {f.width})"
    return f"({c_type(f.width, f.signed)}){f'sign_extend({value}, {f.width})' if f.signed else value}"


def emit(kind: HeaderType, late: bool) -> str:
    """`emit_TYPE(h, p)`: h to the bytes at p, if it is valid; returns their number."""
    lines = []
    varbit = next((f for f in kind.fields if f.varbit), None)
    packed = _packed(kind)
    for f in kind.fields:
        of = f"h->{f.ref}"
        at = f"{f.offset}{f' + h->{varbit.ref}.bits' if varbit and f is not varbit and _after(kind, varbit, f) else ''}"
        if f.varbit:
            lines.append(f"copy_bits(p, {at}, {of}.bytes, 0, {of}.bits);")
        elif f in packed:
            if f is packed[f].fields[0]:
                lines.append(_store_pack(packed[f]))
        elif f.width > 64:
            lines.append(f"put_big(p, {at}, {f.width}, {of});")
        elif run := INDEX.search(f.ref):
            first = f.offset // 8 - 4 * int(run[1])
            lines.append(f"store32(&((uint8_t (*)[4])(p + {first}))[@{run[1]}@][0], {of});")
        elif not varbit and f.offset % 8 == 0 and f.width == 8:
            lines.append(f"p[{f.offset // 8}] = (uint8_t){of};")
        elif not varbit and f.offset % 8 == 0 and f.width in WHOLE:
            lines.append(f"store{f.width}(p + {f.offset // 8}, ({c_type(f.width, False)}){of});")
        else:
            lines.append(f"put_bits(p, {at}, {f.width}, (uint64_t){of});")
    body = _body(fold(lines))
    size = f"(h->{varbit.ref}.bits + {kind.bits}) / 8" if varbit else str(kind.bits // 8)
    unchanged = (
        f"    if (h->late != NULL) {{\n        memcpy(p, h->late, {size});\n        return {size};\n    }}\n"
        if late
        else ""
    )
    return (
        f"static {linkage(body)} uint32_t emit_{kind.c_name}(const h_{kind.c_name} *restrict h, uint8_t *restrict p) {{\n"
        f"    (void)p;\n    if (!h->valid) return 0;\n{unchanged}{body}\n    return {size};\n}}"
    )


def _store_pack(pack: _Pack) -> str:
    masks = {f: f" & UINT64_C({2**f.width - 1:#x})" if f.signed else "" for f in pack.fields}
    value = " | ".join(f"((uint64_t)h->{f.ref}{masks[f]}) << {pack.shift(f)}" for f in pack.fields)
    to = pack.offset // 8
    return f"p[{to}] = (uint8_t)({value});" if pack.bits == 8 else f"store{pack.bits}(p + {to}, {value});"


def _after(kind: HeaderType, varbit: Field, f: Field) -> bool:
    return kind.fields.index(f) > kind.fields.index(varbit)


def linkage(body: str) -> str:
    """The declaration specifiers of a generated function, by its body."""
    return "VECTOR" if "INDEPENDENT" in body else "inline"


def _body(statements: list[str]) -> str:
    return "\n".join("    " + line for line in statements)


def check(program: Program) -> None:
    """Raise ProgramError for a header that is not whole bytes."""
    for header in program.headers.values():
        if not header.metadata and not header.type.varbit and header.type.bits % 8:
            raise ProgramError(f"header {header.name} has {header.type.bits} bits: not whole bytes")


def bulky(program: Program) -> list[str]:
    """Members of headers_t that are too large to be cleared, in order: headers with an array."""
    types = {h.type.c_name: h.type for h in program.headers.values() if not h.metadata}
    large = {f"h_{name}" for name, t in types.items() if any(INDEX.search(f.ref) for f in t.fields)}
    return [name for kind, name, size in program.members if not size and kind in large]


def in_order(program: Program) -> list[tuple[str, str, int]]:
    """Members of headers_t, bulky ones last: all before them is cleared at once."""
    last = bulky(program)
    return sorted(program.members, key=lambda member: member[1] in last)
