"""A program as C: one function per parser state, action and pipeline, with the P4 source lines in comments.

What is generated includes runtime/runtime.h behind its sizes, and runtime/v1model.h behind what runtime/program.h asks of
it; the ports and runtime/exports.h follow in the same translation unit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulation.errors import ProgramError
from emulation.switch.compiler import header_writer
from emulation.switch.compiler.action_writer import PrimitiveWriter, c_string, meter_input
from emulation.switch.compiler.bmv2_json import (
    ConstEntry,
    ControlBlock,
    Field,
    Program,
    Table,
    c_type,
    in_words,
    source,
    words,
)
from emulation.switch.compiler.checksum_writer import CalculationWriter, checksum_name
from emulation.switch.compiler.crc import CrcSetting
from emulation.switch.compiler.expressions import Code, Expressions, as_words, assign, read
from emulation.switch.compiler.loop_folding import INDEX
from emulation.switch.compiler.parser_writer import ParserWriter


class Generator:
    """Writes the C of one program.

    Args:
        crcs: parameters of custom CRCs.

    Raises:
        ProgramError: the program has no calculation for one of them.
    """

    def __init__(self, program: Program, crcs: tuple[CrcSetting, ...] = ()) -> None:
        self.program = program
        self.expressions = Expressions(program)
        self.calculations = CalculationWriter(program, self.expressions, crcs)
        self.primitives = PrimitiveWriter(program, self.expressions)

    def generate(self) -> str:
        """The whole program.

        Raises:
            ProgramError: a construct that is not supported.
        """
        try:
            return self._generate()
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, StopIteration) as error:
            # The format is large and comes from outside: what is not as expected must not look like a crash.
            raise ProgramError(f"not a BMv2 JSON program: {type(error).__name__}: {error}") from error

    def _generate(self) -> str:
        program = self.program
        header_writer.check(program)
        parser = ParserWriter(program, self.expressions, self.primitives.primitive, self._metadata("parser_error"))
        types = {h.type.name: h.type for h in program.headers.values() if not h.metadata}.values()
        error = self._metadata("checksum_error")
        parts = [
            header_writer.declare(program),
            self._state(),
            *(header_writer.extract(t) for t in types),
            *(header_writer.emit(t) for t in types),
            *(self.calculations.calculation(c) for c in program.calculations.values()),
            *(self.calculations.selector(p.index, p.selector) for p in program.profiles.values() if p.selector),
            *(self.primitives.action(a) for a in program.actions),
            parser.write(),
            *(self.calculations.checksum(c, error) for c in program.json["checksums"]),
            self._pipeline(program.pipelines["ingress"]),
            self._pipeline(program.pipelines["egress"]),
            self._preserve(),
            self._digest(),
            self._deparse(),
            self._metadata_functions(),
            '#include "v1model.h"',
            self._init(),
        ]
        return "\n\n".join([self._sizes(), *parts]) + "\n"

    def _sizes(self) -> str:
        """What runtime.h needs to know; the expressions have been seen by now."""
        keys = max([1, *(table.words for table in self.program.tables), *self._set_words()])
        params = max([1, *(sum(map(words, action.widths)) for action in self.program.actions)])
        sizes = {
            "LIMBS": words(self.expressions.most_bits + 2),
            "KEY_WORDS": keys,
            "PARAM_WORDS": params,
            "TABLES": max(1, len(self.program.tables)),
            "PROFILES": max(1, len(self.program.profiles)),
            "VALUE_SETS": max(1, len(self.program.value_sets)),
            "OUT_BYTES": sum(h.type.most_bytes for h in self.program.headers.values() if not h.metadata),
        }
        defines = "\n".join(f"#define {name} {value}" for name, value in sizes.items())
        return f'// Generated from a BMv2 JSON program. Do not edit.\n{defines}\n#include "runtime.h"'

    def _set_words(self) -> list[int]:
        """Words of what the value sets are asked for; a generous bound: a key of so many bits in fields of one byte."""
        return [-(-each["compressed_bitwidth"] // 8) for each in self.program.value_sets]

    # ---- state ------------------------------------------------------------------------------------------------

    def _state(self) -> str:
        out = [
            "typedef struct {",
            "    uint32_t packet_bytes, length, payload_bytes;   // as it came in; with headers added and removed",
            "    const uint8_t *payload;",
            "    uint32_t clone, clone_list, resubmit, recirculate, digest, truncate;",
            "    bool exited;",
            "    stacks_next_t next;",
            "    headers_t h;",
            "} __attribute__((aligned(64))) context_t;   // whole cache lines: what clears it crosses neither lines nor pages",
            *(
                f"static {c_type(width, False)} registers_{number}[{max(1, size)}][{columns}];"
                for number, (size, width, columns) in enumerate(self.program.register_families)
            ),
        ]
        for counter in self.program.counters:
            out.append(f"static counter_t counter_{counter['id']}[{counter['size']}];   // {counter['name']}")
        for meter in self.program.meters:
            if not meter["is_direct"]:
                out.append(f"static meter_t meter_{meter['id']}[{meter['size']}];   // {meter['name']}")
        for table in self.program.tables:
            if table.ranges:
                parts = ", ".join(f"{{{words(key.field.width)}, {int(key.kind == 'range')}}}" for key in table.keys)
                out.append(f"static const key_part_t parts_{table.index}[] = {{{parts}}};")
        return "\n".join(out)

    def _metadata(self, name: str) -> Field | None:
        """A field of standard_metadata, when this program has it."""
        return self.program.fields.get(("standard_metadata", name))

    def _set_metadata(self, name: str, value: str) -> str:
        """`field = value;`, or nothing when the program does not know the field."""
        field = self._metadata(name)
        return f"    {assign(field, Code(value, 62))}\n" if field is not None else ""

    # ---- pipelines --------------------------------------------------------------------------------------------

    def _pipeline(self, pipeline: ControlBlock) -> str:
        labels = {t.name: f"table_{t.index}" for t in pipeline.tables}
        labels |= {c["name"]: f"condition_{c['id']}" for c in pipeline.conditionals}
        labels |= {c["name"]: f"call_{c['id']}" for c in pipeline.calls}

        def to(name: str | None) -> str:
            return f"goto {labels[name]};" if name is not None else "goto done;"

        out = [f"static void {pipeline.name}(context_t *restrict c) {{", "    (void)c;", f"    {to(pipeline.first)}"]
        for table in pipeline.tables:
            out += self._apply(table, to)
        for conditional in pipeline.conditionals:
            out.append(f"condition_{conditional['id']}:  // {source(conditional)}")
            test = self.expressions.code(conditional["expression"]).truth()
            out.append(f"    if ({test}) {to(conditional['true_next'])}")
            out.append(f"    {to(conditional['false_next'])}")
        for call in pipeline.calls:
            out.append(f"call_{call['id']}:  // {source(call)}")
            out.append(f"    action_{call['action_id']}(c, NULL);")
            out.append(f"    if (c->exited) goto done;\n    {to(call.get('next_node'))}")
        return INDEX.sub(r"[\1]", "\n".join([*out, "done:", "    return;", "}"]))

    def _apply(self, table: Table, to: Callable[[str | None], str]) -> list[str]:
        here = f"&tables[{table.index}]"
        out = [f"table_{table.index}: {{  // {table.name}  {table.source}"]
        if table.always is not None:
            return [*out, *self._apply_always(table, table.always, to), "}"]
        if table.keys:
            values = ", ".join(_looked_up(table))
            out.append(f"    const uint64_t key[] = {{{values}}};")
            out.append(
                f"    entry_t *e = table_lookup_ranges({here}, key, parts_{table.index}, {len(table.keys)});"
                if table.ranges
                else f"    entry_t *e = table_lookup({here}, key, {table.words});"
            )
        else:
            out.append("    entry_t *e = NULL;")
        out += [
            "    bool hit = e != NULL;",
            f"    if (!hit) e = &tables[{table.index}].fallback;",
            f'    if (hit) TRACE("table %s: entry %u", {c_string(table.name)}, e->handle);',
            f'    else TRACE("table %s: miss", {c_string(table.name)});',
        ]
        if table.counted:
            out += ["    e->hits.packets++;", "    e->hits.bytes += c->packet_bytes;"]
        if table.ages:
            out.append("    e->hit_us = clock_us();")
        if table.meter is not None:
            meter = self.primitives.meters[table.meter]
            target = self.program.field(meter["result_target"])
            out.append(
                f"    if (hit) {assign(target, Code(f'(int64_t)meter_execute(&e->meter, {meter_input(meter)}, c->packet_bytes)', 2))}"
            )
        out += [f"    const action_t *a = {self._chosen(table)};", "    switch (a->action) {"]
        branch_on_hit = "__HIT__" in table.next_tables
        for name, action in table.actions.items():
            following = "" if branch_on_hit else f" {to(table.next_tables.get(name, table.base_default_next))}"
            exits = any(p["op"] == "exit" for p in self.program.actions[action].primitives)
            stop = " if (c->exited) goto done;" if exits else ""
            out.append(f"    case {action}: action_{action}(c, a->params);{stop}{following or ' break;'}")
        out += ["    default: break;", "    }"]
        if branch_on_hit:
            out.append(f"    if (hit) {to(table.next_tables['__HIT__'])}")
            out.append(f"    {to(table.next_tables['__MISS__'])}")
        else:
            out += ["    (void)hit;", f"    {to(table.base_default_next)}"]
        return [*out, "}"]

    def _apply_always(self, table: Table, action: int, to: Callable[[str | None], str]) -> list[str]:
        """Of a table that has but one action."""
        arguments = [int(value, 16) for value in (table.default or {})["action_data"]]
        values = ", ".join(f"UINT64_C({n})" for n in in_words(arguments, self.program.actions[action].widths))
        params = f"(const uint64_t[]){{{values}}}" if values else "NULL"
        following = table.next_tables.get("__MISS__", table.base_default_next)
        name = next((name for name, number in table.actions.items() if number == action), "")
        return [
            f"    action_{action}(c, {params});",
            "    if (c->exited) goto done;",
            f"    {to(table.next_tables.get(name, following))}",
        ]

    def _chosen(self, table: Table) -> str:
        """The action of an entry: its own, or of what it points to."""
        if table.profile is None:
            return "&e->own"
        profile = self.program.profiles[table.profile]
        chosen_by = f"select_{profile.index}(c)" if profile.selector else "0"
        return f"profile_pick(&profiles[{profile.index}], e, e->group ? {chosen_by} : 0)"

    # ---- the packet's way (v1model.h) -------------------------------------------------------------------------

    def _preserve(self) -> str:
        """Field lists: what a packet keeps when it is cloned, resubmitted or recirculated."""
        out = [
            "static void preserve(context_t *to, const context_t *from, uint32_t list) {",
            "    (void)to; (void)from;",
            "    switch (list) {",
        ]
        for number, elements in self.program.field_lists.items():
            copies = []
            for element in elements:
                if element["type"] == "field":
                    ref = self.program.field(element["value"]).ref
                elif element["type"] == "header":
                    ref = self.program.headers[element["value"]].ref
                else:
                    continue  # constants are of no use here
                copies.append(f"{_on('to', ref)} = {_on('from', ref)};")
            out.append(f"    case {number}: {' '.join(copies)} break;")
        return INDEX.sub(r"[\1]", "\n".join([*out, "    default: break;", "    }", "}"]))

    def _digest(self) -> str:
        """Learn lists: what goes to the controller."""
        out = ["static void digest(context_t *c, uint32_t list) {", "    (void)c;", "    switch (list) {"]
        for each in self.program.digests:
            values = []
            for element in each["elements"]:
                code = self.expressions.code(element)
                values += as_words(code, self._digest_width(element))
            values = values or ["0"]
            out.append(
                f"    case {each['id']}: tell_digest({each['id']}, (const uint64_t[]){{{', '.join(values)}}}, "
                f"{len(values)}); break;"
            )
        return INDEX.sub(r"[\1]", "\n".join([*out, "    default: break;", "    }", "}"]))

    def _digest_width(self, element: dict[str, Any]) -> int:
        """Bits of one member of a digest."""
        if element["type"] == "hexstr":
            return int(element.get("bitwidth", 64))
        return self.expressions.place(element).width

    def _deparse(self) -> str:
        deparser = self.program.json["deparsers"][0]
        if deparser.get("primitives"):
            raise ProgramError("computations in the deparser are not supported")
        out = ["static uint32_t deparse(context_t *restrict c, uint8_t *restrict out) {", "    uint32_t at = 0;"]
        for name in deparser["order"]:
            header = self.program.headers[name]
            out.append(f"    at += emit_{header.type.c_name}(&{header.ref}, out + at);")
        return "\n".join([*out, "    (void)c; (void)out;", "    return at;", "}"])

    def _metadata_functions(self) -> str:
        """What v1model.h does with standard metadata, of which a program may have only some."""
        group, spec = self._metadata("mcast_grp"), self._metadata("egress_spec")
        if group is None or spec is None:
            raise ProgramError("standard_metadata has no mcast_grp and egress_spec: not a v1model program")
        checksums = self.program.json["checksums"]
        arrives = self._set_metadata("ingress_global_timestamp", "(int64_t)clock_us()")
        leaves = self._set_metadata("egress_global_timestamp", "(int64_t)clock_us()")
        if not self.program.uses("ingress_global_timestamp", "egress_global_timestamp"):
            arrives = leaves = ""
        # A port's queue stands behind egress: how many will wait when the packet has its turn, nobody knows yet.
        waits = ""
        if self.program.uses("enq_timestamp", "enq_qdepth", "deq_timedelta"):
            waits = "    queue_t queue = queue_ahead(port);\n    (void)queue;\n"
            waits += self._set_metadata("enq_timestamp", "queue.now_us")
            waits += self._set_metadata("enq_qdepth", "queue.frames")
            waits += self._set_metadata("deq_timedelta", "queue.wait_us")
        metadata = [h.ref for h in self.program.headers.values() if h.metadata]
        bulky = header_writer.bulky(self.program)
        cleared = "".join(f"    if (!c->h.{n}.valid) memset(&c->h.{n}, 0, sizeof c->h.{n});\n" for n in bulky)
        untouched = "".join(f"    c->h.{n}.valid = false;\n" for n in bulky)
        size = f"offsetof(context_t, h.{bulky[0]})" if bulky else "sizeof *c"

        def sums(kind: str, default: bool) -> str:
            flag = "true" if kind == "update" else "false"
            return "".join(f"    {checksum_name(c)}(c, {flag});\n" for c in checksums if c.get(kind, default))

        return f"""\
// Of a context, from its start and in cache lines: what egress may change.
enum {{ EGRESS_LINES = ({header_writer.kept(self.program)} + sizeof(line_t) - 1) / sizeof(line_t) }};
// A fresh packet. Large headers are zeroed only if they were not extracted, after parsing.
static void begin(context_t *restrict c, uint32_t port, uint32_t bytes, uint32_t kind) {{
    memset(c, 0, {size});
{untouched}    c->packet_bytes = c->length = bytes;
    (void)port; (void)kind;
{self._set_metadata("ingress_port", "port")}{self._set_metadata("packet_length", "bytes")}\
{self._set_metadata("instance_type", "kind")}{arrives}}}
static void parsed(context_t *restrict c) {{
    (void)c;
{cleared}{sums("verify", False)}}}
static void reset_metadata(context_t *restrict c) {{
{"".join(f"    memset(&{ref}, 0, sizeof {ref});{chr(10)}" for ref in metadata)}}}
static void set_kind(context_t *restrict c, uint32_t kind) {{
    (void)c; (void)kind;
{self._set_metadata("instance_type", "kind")}}}
static void enter_egress(context_t *restrict c, uint32_t port, uint32_t instance) {{
    (void)port; (void)instance;
{self._set_metadata("egress_port", "port")}{self._set_metadata("egress_rid", "instance")}\
{self._set_metadata("packet_length", "c->length")}{leaves}{waits}    {spec.ref} = 0;
}}
static void update_checksums(context_t *restrict c) {{
    (void)c;
{sums("update", True)}}}
static uint32_t group_of(const context_t *c) {{ return {group.ref}; }}
static uint32_t spec_of(const context_t *c) {{ return {spec.ref}; }}"""

    # ---- what the program starts with -------------------------------------------------------------------------

    def _init(self) -> str:
        out = ["static bool program_init(void) {"]
        for table in self.program.tables:
            out.append(f"    tables[{table.index}].words = {table.words};")
            default = table.default
            action = default["action_id"] if default else -1
            out.append(f"    tables[{table.index}].fallback.own.action = {action};")
            if default:
                values = [int(value, 16) for value in default["action_data"]]
                for i, value in enumerate(in_words(values, self.program.actions[action].widths)):
                    out.append(f"    tables[{table.index}].fallback.own.params[{i}] = UINT64_C({value});")
            if table.ranges:
                out.append(f"    tables[{table.index}].ordered = true;")
            out += [self._const_entry(table, entry) for entry in table.entries]
            out.append(f"    table_rebuild(&tables[{table.index}]);")
        out += ["    return true;", "}", "counter_t *nf_counter(uint32_t id) {", "    switch (id) {"]
        out += [f"    case {c['id']}: return counter_{c['id']};" for c in self.program.counters]
        out += ["    default: return NULL;", "    }", "}", "meter_t *nf_meter(uint32_t id) {", "    switch (id) {"]
        out += [f"    case {m['id']}: return meter_{m['id']};" for m in self.program.meters if not m["is_direct"]]
        out += ["    default: return NULL;", "    }", "}"]
        return "\n".join([*out, self._register_access()])

    def _register_access(self) -> str:
        """nf_register: one cell to or from words, the highest first."""
        out = [
            "void nf_register(uint32_t family, uint32_t column, uint32_t index, uint64_t *value, bool write) {",
            "    switch (family) {",
        ]
        for number, (_, width, _) in enumerate(self.program.register_families):
            cell, count = f"registers_{number}[index][column]", words(width)
            if width > 64:
                get = " ".join(f"value[{i}] = {cell}.w[{count - 1 - i}];" for i in range(count))
                put = f"{cell} = big_words(value, {count});"
            else:
                get, put = f"value[0] = {cell};", f"{cell} = ({c_type(width, False)})value[0];"
            out.append(f"    case {number}: if (write) {{ {put} }} else {{ {get} }} break;")
        return "\n".join([*out, "    default: (void)column; (void)index; (void)value; (void)write;", "    }", "}"])

    def _const_entry(self, table: Table, entry: ConstEntry) -> str:
        def array(numbers: list[int]) -> str:
            return "(const uint64_t[]){" + ", ".join(f"UINT64_C({n})" for n in [*numbers, 0]) + "}"

        params = in_words(entry.params, self.program.actions[entry.action].widths)
        return (
            f"    if (!table_insert({table.index}, {array(table.laid_out(entry.value))}, "
            f"{array(table.laid_out(entry.mask))}, {entry.priority}, {entry.action}, {array(params)}, "
            f"{len(params)})) return false;"
        )


def _looked_up(table: Table) -> list[str]:
    """The words that a table looks up, as C."""
    out: list[list[str]] = [[] for _ in range(table.words)]
    for key, (word, shift) in zip(table.keys, table.places, strict=True):
        masks = in_words([key.mask], [key.field.width]) if key.mask is not None else []
        for i, part in enumerate(as_words(read(key.field), key.field.width)):
            masked = f"({part} & UINT64_C({masks[i]:#x}))" if masks else part
            out[word + i].append(f"{masked} << {shift}" if shift else masked)
    return [" | ".join(parts) for parts in out]


def _on(context: str, ref: str) -> str:
    """A C expression of `c` as one of another context."""
    return ref.replace("c->", f"{context}->")
