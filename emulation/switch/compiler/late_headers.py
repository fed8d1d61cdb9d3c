"""Headers that stay in the packet until an action changes them.

A vector is all of a packet's bytes but a few. Most programs read it once, in the loop of one action. So it is not copied
when it is parsed: its header only points to it (`late`), and that loop reads it from the packet. Such a header is nothing
but an array, and only actions name its elements.
"""

from __future__ import annotations

import re
from typing import Any

from emulation.switch.compiler.bmv2_json import Header, HeaderType, Program
from emulation.switch.compiler.loop_folding import fold

# A label, or a statement that goes to one or out of the action.
FLOW = re.compile(r"p\d+:;|.*\b(goto|return)\b")


class LateHeaders:
    """Which of a program's headers are read late, and its actions' statements with that in mind."""

    def __init__(self, program: Program) -> None:
        self.headers = tuple(_late(program))

    def has(self, kind: HeaderType) -> bool:
        """Whether headers of this type are read late."""
        return any(header.type is kind for header in self.headers)

    def fold(self, lines: list[str]) -> list[str]:
        """The statements of an action, folded; a header that they name is read from the packet if it is still there."""
        named = [header for header in self.headers if any(_elements(header).search(line) for line in lines)]
        if not named:
            return fold(lines)
        found = _from_packet(named[0], lines) if len(named) == 1 else None
        if found is None:
            return [*(f"load_{header.type.c_name}(&{header.ref});" for header in named), *fold(lines)]
        there, written = found
        replaced = [f"{named[0].ref}.late = NULL;"] if written else []
        if there == lines:
            return [*fold(lines), *replaced]
        return [
            f"const uint8_t (*late)[4] = (const uint8_t (*)[4]){named[0].ref}.late;",
            "if (late != NULL) {",
            *("    " + line for line in fold(there)),
            "} else {",
            *("    " + line for line in fold(lines)),
            "}",
            *replaced,
        ]


def _late(program: Program) -> list[Header]:
    alone = {member for _, member, size in program.members if not size}
    headers = [each for each in program.headers.values() if not each.metadata and _only_an_array(each.type)]
    # In a stack or a union a header is named by more than one expression.
    combined = {each.type.c_name for each in headers if each.ref.removeprefix("c->h.") not in alone}
    named = _named(program)
    seen = {each.type.c_name for each in headers if each.name in named}
    return [each for each in headers if each.type.c_name not in combined | seen]


def _only_an_array(kind: HeaderType) -> bool:
    return bool(kind.fields) and all(field.ref.startswith("run0[@") for field in kind.fields)


def _named(program: Program) -> set[str]:
    """Headers of which anything but an action names a field."""
    found: set[str] = set()

    def look(node: Any) -> None:
        if isinstance(node, dict) and node.get("op") != "valid":
            if node.get("type") == "header":
                found.add(node["value"])
            for each in node.values():
                look(each)
        elif isinstance(node, list):
            if len(node) == 2 and all(isinstance(each, str) for each in node) and node[1] != "$valid$":
                found.add(node[0])
            for each in node:
                look(each)

    elsewhere = ("actions", "header_types", "headers", "field_aliases", "errors", "enums")
    look([each for name, each in program.json.items() if name not in elsewhere])
    aliases = program.json.get("field_aliases", ())
    return found | {target[0] for alias, target in aliases if alias.partition(".")[0] in found}


def _elements(header: Header) -> re.Pattern[str]:
    return re.compile(re.escape(header.ref) + r"\.run0\[@(\d+)@\]")


def _from_packet(header: Header, lines: list[str]) -> tuple[list[str], bool] | None:
    """An action's statements as they are while the header that they name is in the packet, and whether they replace it.

    None if they change a part of it, or change it only if something holds: then it must be loaded before.
    """
    element = _elements(header)
    change = re.compile(element.pattern + " = ")
    written: set[str] = set()
    out = []
    for line in lines:
        changes = change.match(line)
        to, value = (changes[0], line[changes.end() :]) if changes else ("", line)
        if FLOW.match(line) or f"&{header.ref}" in line or change.search(value):
            return None
        # What has been written is read from where it is.
        out.append(to + element.sub(lambda e: e[0] if e[1] in written else f"load32(late[@{e[1]}@])", value))
        if changes:
            written.add(changes[1])
    return None if 0 < len(written) < len(header.type.fields) else (out, bool(written))
