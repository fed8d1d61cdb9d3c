"""Generate C for checksums and hashes: the input as bytes, and the algorithm (runtime/hash.h)."""

from __future__ import annotations

import itertools
from dataclasses import astuple
from typing import Any

from emulation.errors import ProgramError
from emulation.switch.compiler.bmv2_json import Field, Header, Program, c_name, c_type, source
from emulation.switch.compiler.crc import ALGORITHMS as CUSTOM
from emulation.switch.compiler.crc import CrcSetting, check_names, chosen
from emulation.switch.compiler.expressions import Expressions
from emulation.switch.compiler.header_writer import WHOLE
from emulation.switch.compiler.loop_folding import INDEX

# Name in the JSON -> function of runtime/hash.h. v1model's `random` is not a function of its input.
ALGORITHMS = {
    "csum16": "csum16",
    "cksum16": "csum16",
    "crc16": "crc16",
    "crc32": "crc32",
    "crcCCITT": "crc_ccitt",
    "xor16": "xor16",
    "identity": "identity_hash",
    "random": "random_hash",
    "round_robin": "round_robin",
}
LARGEST_PAYLOAD = 65536


class CalculationWriter:
    """Generates a program's calculations, and the checksums and selectors that use them.

    Raises:
        ProgramError: `crcs` names a calculation that does not exist.
    """

    def __init__(self, program: Program, expressions: Expressions, crcs: tuple[CrcSetting, ...] = ()) -> None:
        self.program, self.expressions, self.crcs = program, expressions, crcs
        check_names(crcs, {name: described["algo"] for name, described in program.calculations.items()})

    def calculation(self, described: dict[str, Any]) -> str:
        """`calculate_NAME(c)`: the algorithm's value over the valid part of its input."""
        return self._function(f"calculate_{c_name(described['name'])}", described)

    def selector(self, index: int, described: dict[str, Any]) -> str:
        """`select_INDEX(c)`: the hash by which an action profile's groups choose."""
        return self._function(f"select_{index}", {"name": f"selector {index}", **described})

    def _function(self, name: str, described: dict[str, Any]) -> str:
        algorithm = self._algorithm(described)
        if algorithm == "csum16(" and (terms := self._terms(described["input"])) is not None:
            body = "\n".join(f"    {term}" for term in terms)
            return (
                f"// {described['name']}  {source(described)}\n"
                f"static inline uint64_t {name}(context_t *restrict c) {{\n"
                f"    uint64_t sum = 0;\n    (void)c;\n{body}\n    return csum_fold(sum);\n}}"
            )
        lines: list[str] = []
        most = 0
        # Fields of one header are adjacent; their offsets are constant if it is the first header.
        for header, items in itertools.groupby(described["input"], self._header_of):
            added, bits = self._group(header, list(items), described["name"], 0 if not lines else None)
            lines += added
            most += bits
        body = INDEX.sub(r"[\1]", "\n".join("    " + line for line in lines))
        return (
            f"// {described['name']}  {source(described)}\n"
            f"static inline uint64_t {name}(context_t *restrict c) {{\n"
            f"    uint8_t b[{most // 8 + 2}] = {{0}};\n    uint32_t at = 0;\n    (void)c;\n{body}\n"
            f"    return {algorithm}b, (at + 7) / 8);\n}}"
        )

    def _algorithm(self, described: dict[str, Any]) -> str:
        """The call of an algorithm, up to its input bytes."""
        name = described["algo"]
        if name in CUSTOM:
            crc = chosen(described["name"], name, self.crcs)
            fields = ", ".join(f"{int(value):#x}" for value in astuple(crc))
            return f"crc_custom(&(const crc_t){{{fields}}}, "
        if name not in ALGORITHMS:
            raise ProgramError(
                f"{described['name']}: the algorithm {name} is not one of {', '.join((*ALGORITHMS, *CUSTOM))}"
            )
        return f"{ALGORITHMS[name]}("

    def _terms(self, items: list[dict[str, Any]]) -> list[str] | None:
        """Statements that sum fields for csum16 without laying them out as bytes; None if bytes are needed.

        Everything before a field must be whole 16-bit words, whichever headers are valid.
        """
        out: list[str] = []
        for header, group in itertools.groupby(items, self._header_of):
            terms, at = [], 0
            for item in group:
                if item["type"] == "field":
                    field = self.program.field(item["value"])
                    value, width = f"(uint64_t){field.ref}", field.width
                    if field.varbit or field.signed:
                        return None
                elif item["type"] == "hexstr":
                    width = item["bitwidth"]
                    value = f"UINT64_C({int(item['value'], 16) & (2**64 - 1)})"
                else:
                    return None
                at += width
                if width + -at % 16 > 64:
                    return None
                terms.append(f"sum += csum_term({value} << {-at % 16});")
            if at % 16:
                return None
            out.append(f"if ({header.ref}.valid) {{ {' '.join(terms)} }}" if header is not None else " ".join(terms))
        return out

    def _header_of(self, item: dict[str, Any]) -> Header | None:
        """The header that must be valid for a field to count."""
        header = self.program.headers.get(item["value"][0]) if item["type"] == "field" else None
        return None if header is None or header.metadata else header

    def _group(
        self, header: Header | None, items: list[dict[str, Any]], name: str, known: int | None
    ) -> tuple[list[str], int]:
        """(lines that append inputs, their maximum number of bits). `known`: the offset, if it is constant."""
        lines, most = [], 0
        for item in items:
            added, bits = self._input(item, name, known)
            lines += added
            most += bits
            known = None if known is None or item["type"] in ("header", "payload") else known + bits
            if item["type"] == "field" and self.program.field(item["value"]).varbit:
                known = None
        if header is None:
            return lines, most
        return [f"if ({header.ref}.valid) {{", *(f"    {line}" for line in lines), "}"], most

    def _input(self, item: dict[str, Any], name: str, known: int | None) -> tuple[list[str], int]:
        """The same for one input."""
        kind = item["type"]
        if kind == "field":
            field = self.program.field(item["value"])
            return _put(field, known), field.width
        if kind == "hexstr":
            width, value = item["bitwidth"], int(item["value"], 16)
            put = [f"put_bits(b, at, {min(width, 64)}, UINT64_C({value & (2**64 - 1)}));", f"at += {min(width, 64)};"]
            pad = [f"at += {width - 64};"] if width > 64 else []
            return [*pad, *put], width
        if kind == "header":
            header = self.program.headers[item["value"]]
            put = [f"at += 8 * emit_{header.type.c_name}(&{header.ref}, b + at / 8);"]
            return put, 8 * header.type.most_bytes
        if kind == "payload":
            put = [
                f"uint32_t bytes = c->payload_bytes < {LARGEST_PAYLOAD} ? c->payload_bytes : {LARGEST_PAYLOAD};",
                "memcpy(b + at / 8, c->payload, bytes);",
                "at += 8 * bytes;",
            ]
            return ["{", *put, "}"], 8 * LARGEST_PAYLOAD
        raise ProgramError(f"{name}: {kind} as input is not supported")

    # ---- checksums --------------------------------------------------------------------------------------------

    def checksum(self, described: dict[str, Any], error: Field | None) -> str:
        """`checksum_NAME(c, update)`: writes the target, or compares it and sets checksum_error."""
        condition = described.get("if_cond")
        test = self.expressions.code(condition).truth() if condition else "1"
        target = self.program.field(described["target"])
        name = checksum_name(described)
        text = [
            f"// {source(described)}",
            f"static void {name}(context_t *restrict c, bool update) {{",
            f"    if (!({test})) return;",
            f"    uint16_t sum = (uint16_t)calculate_{c_name(described['calculation'])}(c);",
            f"    if (update) {{ {target.ref} = sum; return; }}",
        ]
        if error is not None:
            text.append(f"    if ({target.ref} != sum) {error.ref} = 1;")
        return INDEX.sub(r"[\1]", "\n".join([*text, "}"]))


def checksum_name(described: dict[str, Any]) -> str:
    return f"checksum_{c_name(described['name'])}_{described['id']}"


def _put(field: Field, known: int | None) -> list[str]:
    if field.varbit:
        return [f"copy_bits(b, at, {field.ref}.bytes, 0, {field.ref}.bits);", f"at += {field.ref}.bits;"]
    after = f"at += {field.width};"
    if field.width > 64:
        return [f"put_big(b, at, {field.width}, {field.ref});", after]
    if known is not None and known % 8 == 0 and field.width in WHOLE and field.width > 8:
        return [f"store{field.width}(b + {known // 8}, ({c_type(field.width, False)}){field.ref});", after]
    return [f"put_bits(b, {'at' if known is None else known}, {field.width}, (uint64_t){field.ref});", after]
