"""Generate C for what the replicas of a packet have in common, and what each has for itself.

Egress runs once for each replica. Before the next one only those fields are put back that egress may have written; and a
large header that it leaves alone is written to the frame once for all replicas.
"""

from __future__ import annotations

import json
import re
from typing import Any

from emulation.switch.compiler.bmv2_json import Field, Program
from emulation.switch.compiler.expressions import Expressions
from emulation.switch.compiler.header_writer import bulky
from emulation.switch.compiler.loop_folding import INDEX

# Primitives that write to nothing which egress of the next replica could see; the requests are cleared before it.
HARMLESS = {
    *("_jump", "_jump_if_zero", "register_write", "count", "no_op", "exit", "log_msg", "assert", "assume"),
    *("clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress", "resubmit", "recirculate", "generate_digest"),
}
# Primitives that write to one field: which of their parameters it is.
WRITTEN = {
    **dict.fromkeys(("assign", "modify_field", "add_to_field", "subtract_from_field", "register_read"), 0),
    **dict.fromkeys(("modify_field_with_hash_based_offset", "modify_field_rng_uniform"), 0),
    "execute_meter": 2,
}
COMPUTED = re.compile(r"\[(?!@?\d)")  # an index that only a packet decides


def untouched(program: Program) -> list[str]:
    """Members of headers_t that are large, and that egress leaves alone: all or none of the large ones."""
    does = json.dumps([*_primitives(program), program.json["checksums"], program.meters])
    large = bulky(program)
    named = {name for name, header in program.headers.items() if header.ref.removeprefix("c->h.") in large}
    named |= {a.partition(".")[0] for a, target in program.json.get("field_aliases", ()) if target[0] in named}
    return [] if any(f'"{name}"' in does for name in named) else large


def keeper(program: Program, expressions: Expressions) -> str:
    """`kept_t` with `keep(k, c)` and `put_back(c, k)`: what egress may change of a context."""
    fields = _written(program, expressions)
    if fields is None:
        large = untouched(program)
        size = f"offsetof(context_t, h.{large[0]})" if large else "sizeof(context_t)"
        return f"""\
typedef struct {{ line_t lines[({size} + sizeof(line_t) - 1) / sizeof(line_t)]; }} kept_t;
static inline void keep(kept_t *restrict k, const context_t *restrict c) {{
    copy_lines(k->lines, (const line_t *)c, sizeof k->lines / sizeof *k->lines);
}}
static inline void put_back(context_t *restrict c, const kept_t *restrict k) {{
    copy_lines((line_t *)c, k->lines, sizeof k->lines / sizeof *k->lines);
}}"""
    refs = sorted(fields)
    members = "".join(f"    __typeof__(((context_t *)0)->{ref[3:]}) kept_{i};\n" for i, ref in enumerate(refs))
    return f"""\
typedef struct {{
{members}}} kept_t;
static inline void keep(kept_t *restrict k, const context_t *restrict c) {{
{"".join(f"    k->kept_{i} = {ref};{chr(10)}" for i, ref in enumerate(refs))}}}
static inline void put_back(context_t *restrict c, const kept_t *restrict k) {{
{"".join(f"    {ref} = k->kept_{i};{chr(10)}" for i, ref in enumerate(refs))}}}"""


def _actions(program: Program) -> set[int]:
    """The actions that egress may run."""
    egress = program.pipelines["egress"]
    called = {action for table in egress.tables for action in table.actions.values()}
    return called | {call["action_id"] for call in egress.calls}


def _primitives(program: Program) -> list[dict[str, Any]]:
    return [primitive for action in _actions(program) for primitive in program.actions[action].primitives]


def _written(program: Program, expressions: Expressions) -> set[str] | None:
    """C expressions of the fields that egress or a checksum may write; None if there is more than fields."""
    found = {_ref(program.field(each["target"])) for each in program.json["checksums"]}
    metered = {table.meter for table in program.pipelines["egress"].tables}
    found |= {_ref(program.field(each["result_target"])) for each in program.meters if each["name"] in metered}
    for number in _actions(program):
        action = program.actions[number]
        for primitive in action.primitives:
            op, parameters = primitive["op"], primitive["parameters"]
            if op in WRITTEN:
                field = expressions.place(parameters[WRITTEN[op]], action.params)
                if field.varbit or COMPUTED.search(field.ref):
                    return None
                found.add(_ref(field))
            elif op == "truncate":
                found.add("c->truncate")
            elif op in ("mark_to_drop", "drop"):
                found |= {_ref(f) for (_, name), f in program.fields.items() if name in ("egress_spec", "mcast_grp")}
            elif op not in HARMLESS:
                return None
    large = tuple(f"c->h.{name}." for name in bulky(program))
    return None if any(ref.startswith(large) for ref in found) else found


def _ref(field: Field) -> str:
    return INDEX.sub(r"[\1]", field.ref)
