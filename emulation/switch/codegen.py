"""A program as C: one function per parser state, action and pipeline, with the P4 source lines in comments.

What is generated sits between runtime/runtime.h and runtime/control.h, loop.h in one translation unit.
"""

from __future__ import annotations

import re
from typing import Any

from emulation.errors import ProgramError
from emulation.switch.expression import NARROW, Code, Expressions, assign, unsigned
from emulation.switch.fold import INDEX, fold
from emulation.switch.parsing import ParserWriter
from emulation.switch.program import Action, ConstEntry, Field, Header, Pipeline, Program, Table, c_name, c_type, source


class Generator:
    """Writes the C of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.expressions = Expressions(program)
        self.register_widths = {r["name"]: int(r["bitwidth"]) for r in program.registers}

    def generate(self) -> str:
        """The whole program.

        Raises:
            ProgramError: a construct that is not supported.
        """
        try:
            return self._generate()
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, StopIteration) as wrong:
            # The format is large and comes from outside: what is not as expected must not look like a crash.
            raise ProgramError(f"not a BMv2 JSON program: {type(wrong).__name__}: {wrong}") from wrong

    def _generate(self) -> str:
        self.registers = self._register_places()
        parts = [
            "// Generated from a BMv2 JSON program. Do not edit.",
            self._state(),
            *(self._action(a) for a in self.program.actions),
            *(self._extract(h) for h in self.program.headers.values() if not h.metadata),
            *(self._emit(h) for h in self.program.headers.values() if not h.metadata),
            ParserWriter(self.program, self.expressions, self._primitive, self._metadata("parser_error")).write(),
            *(self._checksum(c) for c in self.program.json["checksums"]),
            self._pipeline(self.program.pipelines["ingress"]),
            self._pipeline(self.program.pipelines["egress"]),
            self._packet(),
            self._init(),
        ]
        return "\n\n".join(parts) + "\n"

    # ---- state ------------------------------------------------------------------------------------------------

    def _register_places(self) -> dict[str, tuple[str, int, int]]:
        """Register name -> (C array, column, size). Arrays of one size and width are the columns of one table: what
        a program reads under one index then lies side by side."""
        families: dict[tuple[int, int], list[str]] = {}
        for register in self.program.registers:
            if register["bitwidth"] > 64:
                raise ProgramError(f"register {register['name']} is {register['bitwidth']} bits wide; 64 is the most")
            families.setdefault((register["size"], register["bitwidth"]), []).append(register["name"])
        places: dict[str, tuple[str, int, int]] = {}
        self.register_arrays: list[str] = []
        for number, ((size, width), names) in enumerate(families.items()):
            array = f"registers_{number}"
            self.register_arrays.append(f"static {c_type(width, False)} {array}[{size}][{len(names)}];")
            places |= {name: (array, column, size) for column, name in enumerate(names)}
        return places

    def _state(self) -> str:
        out = []
        for header in self.program.headers.values():
            members = {}
            for field in header.fields:
                member = field.ref.split(".", 1)[1]
                run = re.match(r"(run\d+)\[@", member)
                kind = c_type(field.width, field.signed)
                if run:
                    size = int(members.get(run[1], f"uint32_t {run[1]}[0];").split("[")[1].split("]")[0]) + 1
                    members[run[1]] = f"uint32_t {run[1]}[{size}];"
                else:
                    members[member] = f"{kind} {member};"
            out.append(f"typedef struct {{ bool valid; {' '.join(members.values())} }} {header.c_name}_t;")
        out.append("typedef struct {")
        out.append("    uint32_t port, packet_bytes, payload_bytes;")
        out.append("    const uint8_t *payload;")
        out.append("    bool exited;")
        out += [f"    {h.c_name}_t {h.c_name};" for h in self.program.headers.values()]
        out.append("} context_t;")
        out += self.register_arrays
        for counter in self.program.counters:
            out.append(f"static counter_t counter_{counter['id']}[{counter['size']}];   // {counter['name']}")
        out.append(f"static table_t tables[{max(1, len(self.program.tables))}];")
        out.append(
            "uint32_t nf_table_insert(uint32_t, const uint64_t *, const uint64_t *, int32_t, int32_t, "
            "const uint64_t *, uint32_t);"
        )
        return "\n".join(out)

    def _metadata(self, name: str) -> Field | None:
        """A field of standard_metadata, when this program has it."""
        return self.program.fields.get(("standard_metadata", name))

    def _set_metadata(self, name: str, value: str) -> str:
        """`field = value;`, or nothing when the program does not know the field."""
        field = self._metadata(name)
        if field is None:
            return ""
        return f"    {field.ref} = {value};\n"

    # ---- actions ----------------------------------------------------------------------------------------------

    def _action(self, action: Action) -> str:
        labels = {p["parameters"][-1]["value"] for p in action.primitives if p["op"].startswith("_jump")}
        labels = {int(v, 16) if isinstance(v, str) else v for v in labels}
        lines = []
        for number, primitive in enumerate(action.primitives):
            if number in labels:
                lines.append(f"p{number}:;")
            try:
                lines += self._primitive(primitive, action)
            except ProgramError as wrong:
                where = source(primitive)
                raise ProgramError(f"action {action.name}: {wrong}{f' ({where})' if where else ''}") from wrong
        if len(action.primitives) in labels:
            lines.append(f"p{len(action.primitives)}:;")
        where = next((source(p) for p in action.primitives if source(p)), "")
        body = "\n".join("    " + line for line in fold(lines))
        return (
            f"// {action.name}{f'  {where}' if where else ''}\n"
            f"static inline void action_{action.id}(context_t *restrict c, const uint64_t *restrict d) {{\n"
            f"    (void)c; (void)d;\n{body}\n}}"
        )

    def _primitive(self, primitive: dict[str, Any], action: Action) -> list[str]:
        op, given = primitive["op"], primitive["parameters"]

        def code(i: int) -> Any:
            return self.expressions.code(given[i], action.params)

        if op == "assign":
            return [assign(self.program.field(given[0]["value"]), code(1))]
        if op == "register_read":
            array, column, size = self.registers[given[1]["value"]]
            field, index = self.program.field(given[0]["value"]), unsigned(code(2))
            width = self.register_widths[given[1]["value"]]
            # Beyond the end v1model leaves the value open; 0 keeps a run repeatable.
            value = f"({index} < {size} ? {array}[{index}][@{column}@] : 0)"
            return [assign(field, Code(f"({'int64_t' if width <= NARROW else 'i128'}){value}", width))]
        if op == "register_write":
            array, column, size = self.registers[given[0]["value"]]
            index, value = unsigned(code(1)), code(2)
            target = Field("", "", f"{array}[{index}][@{column}@]", self.register_widths[given[0]["value"]], False, 0)
            return [f"if ({index} < {size}) {assign(target, value)}"]
        if op == "count":
            counter = next(c for c in self.program.counters if c["name"] == given[0]["value"])
            index = unsigned(code(1))
            cell = f"counter_{counter['id']}[{index}]"
            return [f"if ({index} < {counter['size']}) {{ {cell}.packets++; {cell}.bytes += c->packet_bytes; }}"]
        if op == "mark_to_drop":
            lines = [self._set_metadata("egress_spec", "DROP_PORT"), self._set_metadata("mcast_grp", "0")]
            return [line.strip() for line in lines if line]
        if op in ("add_header", "remove_header"):
            name = self.program.headers[given[0]["value"]].c_name
            return [f"c->{name}.valid = {'true' if op == 'add_header' else 'false'};"]
        if op == "assign_header":
            to, of = (self.program.headers[given[i]["value"]].c_name for i in (0, 1))
            return [f"memcpy(&c->{to}, &c->{of}, sizeof c->{to});"]
        if op == "exit":
            return ["c->exited = true;", "return;"]
        if op in ("_jump", "_jump_if_zero"):
            target = given[-1]["value"]
            label = f"goto p{int(target, 16) if isinstance(target, str) else target};"
            return [label if op == "_jump" else f"if (!({code(0).text})) {label}"]
        if op in ("log_msg", "no_op", "assert", "assume"):
            return [f"// {op}: nothing to do"]
        raise ProgramError(f"the primitive {op} is not supported")

    # ---- headers ----------------------------------------------------------------------------------------------

    def _extract(self, header: Header) -> str:
        lines = []
        for f in header.fields:
            byte = f.offset // 8
            aligned = f.offset % 8 == 0
            if aligned and f.width in (16, 32, 64):
                run = INDEX.search(f.ref)
                if run:
                    first = byte - 4 * int(run[1])
                    lines.append(f"{f.ref} = load32(&((const uint8_t (*)[4])(p + {first}))[@{run[1]}@][0]);")
                else:
                    lines.append(f"{f.ref} = ({c_type(f.width, f.signed)})load{f.width}(p + {byte});")
            elif aligned and f.width == 8:
                lines.append(f"{f.ref} = ({c_type(8, f.signed)})p[{byte}];")
            else:
                value = f"get_bits(p, {f.offset}, {f.width})"
                value = f"sign_extend({value}, {f.width})" if f.signed else value
                lines.append(f"{f.ref} = ({c_type(f.width, f.signed)}){value};")
        body = "\n".join("    " + line for line in fold(lines))
        return (
            f"static inline void extract_{header.c_name}(context_t *restrict c, const uint8_t *restrict p) {{\n"
            f"    (void)p;\n    c->{header.c_name}.valid = true;\n{body}\n}}"
        )

    def _emit(self, header: Header) -> str:
        if header.bits % 8:
            raise ProgramError(f"header {header.name} has {header.bits} bits: not whole bytes")
        lines = []
        for f in header.fields:
            byte = f.offset // 8
            run = INDEX.search(f.ref)
            if run:
                first = byte - 4 * int(run[1])
                lines.append(f"store32(&((uint8_t (*)[4])(p + {first}))[@{run[1]}@][0], {f.ref});")
            elif f.offset % 8 == 0 and f.width in (16, 32, 64):
                lines.append(f"store{f.width}(p + {byte}, (uint{f.width}_t){f.ref});")
            else:
                lines.append(f"put_bits(p, {f.offset}, {f.width}, (uint64_t){f.ref});")
        body = "\n".join("    " + line for line in fold(lines))
        return (
            f"static inline uint32_t emit_{header.c_name}(const context_t *restrict c, uint8_t *restrict p) {{\n"
            f"    (void)p;\n    if (!c->{header.c_name}.valid) return 0;\n{body}\n"
            f"    return {header.bits // 8};\n}}"
        )

    # ---- checksums --------------------------------------------------------------------------------------------

    def _checksum(self, checksum: dict[str, Any]) -> str:
        calculation = self.program.calculations[checksum["calculation"]]
        if calculation["algo"] != "csum16":
            raise ProgramError(f"checksum {checksum['name']}: {calculation['algo']} is not supported")
        out, offset = [], 0
        for item in calculation["input"]:
            if item["type"] == "field":
                field = self.program.field(item["value"])
                out.append(f"    put_bits(b, {offset}, {field.width}, (uint64_t){field.ref});")
                offset += field.width
            elif item["type"] == "hexstr":
                out.append(f"    put_bits(b, {offset}, {item['bitwidth']}, UINT64_C({int(item['value'], 16)}));")
                offset += item["bitwidth"]
            else:
                raise ProgramError(f"checksum {checksum['name']}: {item['type']} as input is not supported")
        condition = checksum.get("if_cond")
        test = self.expressions.code(condition).text if condition else "1"
        target = self.program.field(checksum["target"])
        name = c_name(f"{checksum['name']}_{checksum['id']}")
        text = [
            f"// {source(checksum)}",
            f"static void checksum_{name}(context_t *restrict c, bool update) {{",
            f"    if (!({test})) return;",
            f"    uint8_t b[{offset // 8 + 1}] = {{0}};",
            *out,
            f"    uint16_t sum = csum16(b, {(offset + 7) // 8});",
            f"    if (update) {{ {target.ref} = sum; return; }}",
        ]
        error = self._metadata("checksum_error")
        if error is not None:
            text.append(f"    if ({target.ref} != sum) {error.ref} = 1;")
        return INDEX.sub(r"[\1]", "\n".join([*text, "}"]))

    def _checksums(self, kind: str) -> str:
        calls = [
            f"    checksum_{c_name(c['name'] + '_' + str(c['id']))}(c, {'true' if kind == 'update' else 'false'});"
            for c in self.program.json["checksums"]
            if c.get(kind, kind == "update")
        ]
        return "\n".join(calls)

    # ---- pipelines --------------------------------------------------------------------------------------------

    def _pipeline(self, pipeline: Pipeline) -> str:
        labels = {t.name: f"table_{t.index}" for t in pipeline.tables}
        labels |= {c["name"]: f"condition_{c['id']}" for c in pipeline.conditionals}

        def to(name: str | None) -> str:
            return f"goto {labels[name]};" if name is not None else "goto done;"

        out = [f"static void {pipeline.name}(context_t *restrict c) {{", "    (void)c;", f"    {to(pipeline.first)}"]
        for table in pipeline.tables:
            out += self._apply(table, to)
        for conditional in pipeline.conditionals:
            out.append(f"condition_{conditional['id']}:  // {source(conditional)}")
            test = self.expressions.code(conditional["expression"]).text
            out.append(f"    if ({test}) {to(conditional['true_next'])}")
            out.append(f"    {to(conditional['false_next'])}")
        return INDEX.sub(r"[\1]", "\n".join([*out, "done:", "    return;", "}"]))

    def _apply(self, table: Table, to: Any) -> list[str]:
        out = [f"table_{table.index}: {{  // {table.name}  {table.source}"]
        if table.keys:
            values = ", ".join(f"(uint64_t){'(' + key.field.ref + ')'}" for key in table.keys)
            out.append(f"    const uint64_t key[] = {{{values}}};")
            out.append(f"    entry_t *e = table_lookup(&tables[{table.index}], key);")
        else:
            out.append("    entry_t *e = NULL;")
        out += [
            "    bool hit = e != NULL;",
            f"    if (!hit) e = &tables[{table.index}].fallback;",
            "    e->hits.packets++;",
            "    e->hits.bytes += c->packet_bytes;",
            "    switch (e->action) {",
        ]
        by_id = {action: name for name, action in table.actions.items()}
        branch_on_hit = "__HIT__" in table.next_tables
        for action, name in by_id.items():
            following = "" if branch_on_hit else f" {to(table.next_tables.get(name, table.base_default_next))}"
            stop = (
                " if (c->exited) goto done;"
                if any(p["op"] == "exit" for p in self.program.actions[action].primitives)
                else ""
            )
            out.append(f"    case {action}: action_{action}(c, e->params);{stop}{following or ' break;'}")
        out.append("    default: break;")
        out.append("    }")
        if branch_on_hit:
            out.append(f"    if (hit) {to(table.next_tables['__HIT__'])}")
            out.append(f"    {to(table.next_tables['__MISS__'])}")
        else:
            out += ["    (void)hit;", f"    {to(table.base_default_next)}"]
        return [*out, "}"]

    # ---- the packet's way -------------------------------------------------------------------------------------

    def _packet(self) -> str:
        group, spec = self._metadata("mcast_grp"), self._metadata("egress_spec")
        if group is None or spec is None:
            raise ProgramError("standard_metadata has no mcast_grp and egress_spec: not a v1model program")
        deparser = self.program.json["deparsers"][0]
        if deparser.get("primitives"):
            raise ProgramError("computations in the deparser are not supported")
        emits = "\n".join(
            f"    at += emit_{self.program.headers[name].c_name}(c, out + at);" for name in deparser["order"]
        )
        room = sum(h.bits // 8 for h in self.program.headers.values() if not h.metadata)
        return f"""static void send_out(context_t *restrict c, uint32_t port, uint32_t instance, uint32_t kind,
                     emit_t emit, void *to) {{
    static uint8_t out[{room} + 65536];
    (void)instance; (void)kind;
{self._set_metadata("egress_port", "(uint16_t)port")}{self._set_metadata("egress_rid", "(uint16_t)instance")}\
{self._set_metadata("instance_type", "kind")}    {spec.ref} = 0;
    c->exited = false;
    egress(c);
    if ({spec.ref} == DROP_PORT) return;
{self._checksums("update")}
    uint32_t at = 0;
{emits}
    memcpy(out + at, c->payload, c->payload_bytes);
    emit(to, port, out, at + c->payload_bytes);
}}

static void process_packet(uint32_t port, const uint8_t *frame, uint32_t bytes, emit_t emit, void *to) {{
    context_t context, *c = &context;
    memset(c, 0, sizeof *c);
    c->packet_bytes = bytes;
{self._set_metadata("ingress_port", "(uint16_t)port")}{self._set_metadata("packet_length", "bytes")}\
    parse(c, frame, bytes);
{self._checksums("verify")}
    ingress(c);
    if ({group.ref} != 0) {{
        const group_t *group = &groups[{group.ref}];
        for (uint32_t i = 0; i < group->count; i++) {{
            context_t copy = context;
            send_out(&copy, group->replicas[i].port, group->replicas[i].instance, 5, emit, to);
        }}
    }} else if ({spec.ref} != DROP_PORT) {{
        send_out(c, {spec.ref}, 0, 0, emit, to);
    }}
}}"""

    def _init(self) -> str:
        out = ["static void program_init(void) {"]
        for table in self.program.tables:
            out.append(f"    tables[{table.index}].keys = {len(table.keys)};")
            default = table.default
            action = default["action_id"] if default else -1
            out.append(f"    tables[{table.index}].fallback.action = {action};")
            for i, value in enumerate(default["action_data"] if default else ()):
                out.append(f"    tables[{table.index}].fallback.params[{i}] = UINT64_C({int(value, 16)});")
            out += [self._const_entry(table, entry) for entry in table.entries]
            if table.entries:
                out.append(f"    table_rebuild(&tables[{table.index}]);")
        out += ["}", "counter_t *nf_counter(uint32_t id) {", "    switch (id) {"]
        out += [f"    case {c['id']}: return counter_{c['id']};" for c in self.program.counters]
        return "\n".join([*out, "    default: return NULL;", "    }", "}"])

    @staticmethod
    def _const_entry(table: Table, entry: ConstEntry) -> str:
        def array(numbers: tuple[int, ...]) -> str:
            return "(const uint64_t[]){" + ", ".join(f"UINT64_C({n})" for n in [*numbers, 0]) + "}"

        return (
            f"    nf_table_insert({table.index}, {array(entry.value)}, {array(entry.mask)}, {entry.priority}, "
            f"{entry.action}, {array(entry.params)}, {len(entry.params)});"
        )
