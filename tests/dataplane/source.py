"""The TNA program's source, executed: p4c's frontend reads it, and what it says is done here, statement by statement.

First the frontend's typed program (`Node`, `Types`), then what packets meet (tables, registers, counters), then its
parsers and controls as functions over those (`Block`).
"""

from __future__ import annotations

import functools
import json
import operator
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p4.v1 import p4runtime_pb2 as p4rt

P4 = Path(__file__).resolve().parents[2] / "p4"
FRONTEND, BACKEND = "p4test", "bf-p4c"  # the second for its tna.p4

# ---- the program, typed ---------------------------------------------------------------------------------------------


def missing() -> str | None:
    """The compiler that is not on PATH, if one is not."""
    return next((name for name in (FRONTEND, BACKEND) if shutil.which(name) is None), None)


class Node:
    """A node of the frontend's tree: its fields as attributes. What it holds twice, the file only names again."""

    def __init__(self, raw: dict[str, Any], known: dict[int, dict[str, Any]]) -> None:
        self._raw, self._known = raw, known
        self.kind: str = raw["Node_Type"]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._wrapped(self._raw[name])
        except KeyError as error:
            raise AttributeError(f"{self.kind} has no {name}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def _wrapped(self, value: Any) -> Any:
        if not isinstance(value, dict) or "Node_ID" not in value:
            return value
        value = self._known[value["Node_ID"]]
        if "vec" in value:
            return [self._wrapped(each) for each in value["vec"]]
        return Node(value, self._known)


@functools.lru_cache(maxsize=2)
def frontend(elements: int, sources: Path = P4) -> Node:
    """The program after p4c's frontend: one parser and one control per direction, all names unique."""
    backend = shutil.which(BACKEND)
    assert backend is not None, missing()
    headers = Path(backend).resolve().parents[1] / "share/p4c/p4include"
    known: dict[int, dict[str, Any]] = {}

    def remember(raw: dict[str, Any]) -> dict[str, Any]:
        raw.pop("Source_Info", None)
        if "Node_Type" in raw:
            known[raw["Node_ID"]] = raw
        return raw

    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree.json"
        command = [FRONTEND, "--validate", "-I", str(headers), "-D__TARGET_TOFINO__=1", f"-DELEMENTS={elements}"]
        command += ["--toJSON", str(tree), "tna/netfold.p4"]
        done = subprocess.run(command, cwd=sources, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"{FRONTEND} failed: {done.stderr[-2000:]}")
        return Node(json.loads(tree.read_text(), object_hook=remember), known)


class Types:
    """Named types: what their values look like, and their bits."""

    def __init__(self, program: Node) -> None:
        self._named = {each.name: each for each in program.objects if each.kind.startswith("Type_")}

    def real(self, of: Node) -> Node:
        """Without names and typedefs."""
        if of.kind == "Type_Name":
            return self.real(self._named[of.path.name])
        return self.real(of.type) if of.kind in ("Type_Typedef", "Type_SerEnum") else of

    def zero(self, of: Node) -> Callable[[], Any]:
        """A maker of values: bf-p4c makes metadata zero that nobody initialised, and headers invalid."""
        of = self.real(of)
        if of.kind in ("Type_Struct", "Type_Header"):
            fields = [(each.name, self.zero(each.type)) for each in of.fields]
            validity = {VALID: False} if of.kind == "Type_Header" else {}
            return lambda: {name: make() for name, make in fields} | validity
        return lambda: 0

    def bits(self, of: Node) -> list[tuple[str, int]]:
        """The fields of a header and their widths."""
        return [(each.name, self.real(each.type).size) for each in self.real(of).fields]

    def width(self, of: Node) -> int:
        of = self.real(of)
        return of.size if of.kind == "Type_Bits" else sum(width for _, width in self.bits(of))


# ---- what runs ------------------------------------------------------------------------------------------------------

Env = dict[str, Any]  # names of a block -> values: int (bool is 0 and 1), or a dict of fields
Expression = Callable[[Env], Any]
Statement = Callable[[Env], None]
VALID, FRAME_BYTES = "$valid", "$bytes"  # of a header; of a packet, for counters
PARSER_ERROR_NO_MATCH, PARSER_ERROR_PARTIAL_HDR = 1, 2

ARITHMETIC = {
    **{"Add": operator.add, "Sub": operator.sub},
    **{"BAnd": operator.and_, "BOr": operator.or_, "BXor": operator.xor},
}
COMPARISONS = {"Equ": operator.eq, "Neq": operator.ne, "Grt": operator.gt, "Geq": operator.ge}


def wrapped(value: int, width: int, signed: bool) -> int:
    """An integer in so many bits."""
    value &= (1 << width) - 1
    return value - (1 << width) if signed and value >> (width - 1) else value


class ParserError(Exception):
    """Ends a parser. Tofino's ingress runs all the same, and is told why, in a program that asks."""


class Packet:
    """A frame on its way through a parser, or out of a deparser.

    Args:
        cut_counts: a header that the frame is too short for becomes valid all the same, zeros behind the end. A chip may
            do that or not; the program must not depend on it.
    """

    def __init__(self, data: bytes, cut_counts: bool) -> None:
        self._bits, self._left, self._cut_counts = int.from_bytes(data, "big"), 8 * len(data), cut_counts
        self._out = self._out_bits = 0

    def look(self, width: int) -> int:
        if width > self._left:
            raise ParserError(PARSER_ERROR_PARTIAL_HDR)
        return self._bits >> (self._left - width) & ((1 << width) - 1)

    def advance(self, width: int) -> None:
        self.look(width)
        self._left -= width

    def extract(self, into: dict[str, Any], fields: list[tuple[str, int]]) -> None:
        width = sum(width for _, width in fields)
        if width > self._left and self._cut_counts:
            self._bits <<= width - self._left
            self._left = width
            self.extract(into, fields)
            raise ParserError(PARSER_ERROR_PARTIAL_HDR)
        value = self.look(width)
        self._left -= width
        for name, size in fields:
            width -= size
            into[name] = value >> width & ((1 << size) - 1)
        into[VALID] = True

    def emit(self, value: int, width: int) -> None:
        self._out, self._out_bits = self._out << width | value, self._out_bits + width

    def whole(self) -> bytes:
        """What was emitted, and behind it what was never extracted."""
        bits = self._out << self._left | self._bits & ((1 << self._left) - 1)
        return bits.to_bytes((self._out_bits + self._left) // 8, "big")


@dataclass
class Action:
    """An action; its parameters are names in its block."""

    name: str
    parameters: list[str]
    body: Statement

    def __call__(self, env: Env, arguments: Iterable[int]) -> None:
        env.update(zip(self.parameters, arguments, strict=True))
        self.body(env)


Test = Callable[[int], bool]
Call = tuple[Action, tuple[int, ...]]


@dataclass
class Entry:
    """What a key must be, by position; the highest rank wins."""

    tests: dict[int, Test]
    call: Call
    rank: int = 0

    def fits(self, key: tuple[int, ...]) -> bool:
        return all(test(key[position]) for position, test in self.tests.items())


@dataclass
class Table:
    """Constant entries in their order, or those that a controller wrote."""

    key: list[Expression]
    actions: dict[str, Action]
    default: Call
    constant: list[Entry]
    size: int
    written: dict[bytes, Entry] = field(default_factory=dict)
    _found: dict[tuple[int, ...], tuple[bool, Call]] = field(default_factory=dict)

    def apply(self, env: Env) -> bool:
        """Whether an entry fits; its action, or else the default one, has been done."""
        key = tuple([of(env) for of in self.key])
        if key not in self._found:
            if len(self._found) > 10_000:
                self._found.clear()
            entries = [*self.constant, *sorted(self.written.values(), key=lambda each: -each.rank)]
            entry = next((each for each in entries if each.fits(key)), None)
            self._found[key] = (False, self.default) if entry is None else (True, entry.call)
        hit, (action, arguments) = self._found[key]
        action(env, arguments)
        return hit

    def write(self, how: int, key: bytes, entry: Entry) -> None:
        self._found.clear()
        if how == p4rt.Update.DELETE:
            del self.written[key]
        elif key in self.written or len(self.written) == self.size:
            raise ValueError("such an entry is there already, or the table is full")
        else:
            self.written[key] = entry

    def reset(self) -> None:
        self.written.clear()
        self._found.clear()


@dataclass
class Register:
    """Cells that begin alike."""

    size: int
    initial: Callable[[], Any]
    cells: dict[int, Any] = field(default_factory=dict)

    def reset(self) -> None:
        self.cells.clear()


@dataclass
class RegisterAction:
    """What one packet does to one cell: it may read it, change it, and have one word back."""

    register: Register
    parameters: list[str]  # the cell; what comes back, if anything does
    body: Statement

    def execute(self, env: Env, index: int) -> int:
        cells = self.register.cells
        if not 0 <= index < self.register.size:
            raise IndexError(f"cell {index} of {self.register.size}")
        cell = cells[index] if index in cells else self.register.initial()
        inner = {**env, **dict.fromkeys(self.parameters, 0), self.parameters[0]: cell}
        self.body(inner)
        cells[index] = inner[self.parameters[0]]
        return inner[self.parameters[1]] if len(self.parameters) > 1 else 0


@dataclass
class Counter:
    """Packets and bytes by index."""

    cells: dict[int, tuple[int, int]] = field(default_factory=dict)

    def count(self, env: Env, index: int, less: int = 0) -> None:
        packets, bytes_ = self.cells.get(index, (0, 0))
        self.cells[index] = packets + 1, bytes_ + env[FRAME_BYTES] - less

    def reset(self) -> None:
        self.cells.clear()


@dataclass
class Checksum:
    """IPv4's, of whole 16-bit words."""

    sum: int = 0

    def add(self, value: int, width: int) -> None:
        assert width % 16 == 0
        while value:
            self.sum += value & 0xFFFF
            value >>= 16
        while self.sum >> 16:
            self.sum = (self.sum & 0xFFFF) + (self.sum >> 16)

    def verify(self) -> int:
        """As Tofino has it: 1 when it is wrong."""
        return int(self.sum != 0xFFFF)

    def update(self, value: int, width: int) -> int:
        self.sum = 0
        self.add(value, width)
        return ~self.sum & 0xFFFF


class Hash:
    """The identity: the fields side by side."""


# ---- from one to the other ------------------------------------------------------------------------------------------


class Block:
    """A parser or control as functions of its names' values.

    Each `_..._of` takes a node and gives the function that does it; what the program does not use raises
    NotImplementedError there, before any packet.
    """

    def __init__(self, node: Node, types: Types) -> None:
        self._types = types
        self.parameters = [(each.name, each.type) for each in node.type.applyParams.parameters]
        self._variables: dict[str, Callable[[], Any]] = {}
        self._actions: dict[str, Action] = {}
        self.named: dict[str, Any] = {}  # by the name that a controller knows
        self._objects: dict[str, Any] = {}  # by the name in the program
        for local in node.parserLocals if node.kind == "P4Parser" else node.controlLocals:
            self._declare(local)
        if node.kind == "P4Parser":
            self._states = {each.name: self._state_of(each) for each in node.states if each.name not in ENDS}
        else:
            self._body = self._statement_of(node.body)

    def run(self, values: Iterable[Any], frame_bytes: int) -> int:
        """Do it with these values of its parameters; a parser gives its error."""
        env = {name: make() for name, make in self._variables.items()}
        env.update(zip((name for name, _ in self.parameters), values, strict=True))
        env[FRAME_BYTES] = frame_bytes
        for each in self._objects.values():
            if isinstance(each, Checksum):
                each.sum = 0
        if not hasattr(self, "_states"):
            self._body(env)
            return 0
        state = "start"
        try:
            while state not in ENDS:
                state = self._states[state](env)
        except ParserError as ended:
            return int(ended.args[0])
        return 0

    def reset(self) -> None:
        for each in self._objects.values():
            if isinstance(each, Table | Register | Counter):
                each.reset()

    # ---- declarations

    def _declare(self, node: Node) -> None:
        match node.kind:
            case "Declaration_Variable":
                self._variables[node.name] = self._types.zero(node.type)
            case "P4Action":
                parameters = [each.name for each in node.parameters.parameters]
                self._actions[node.name] = Action(_p4info_name(node), parameters, self._statement_of(node.body))
            case "P4Table":
                self._objects[node.name] = self.named[_p4info_name(node)] = self._table_of(node)
            case "Declaration_Instance":
                self._objects[node.name] = self.named[_p4info_name(node)] = self._extern_of(node)
            case _:
                raise NotImplementedError(node.kind)

    def _extern_of(self, node: Node) -> Any:
        special = node.type.kind == "Type_Specialized"
        name = (node.type.baseType if special else node.type).path.name
        arguments = [each.expression for each in node.arguments]
        match name:
            case "Register":
                initial = self._expression_of(arguments[1]) if len(arguments) > 1 else None
                zero = self._types.zero(node.type.arguments[0])
                return Register(arguments[0].value, zero if initial is None else lambda: initial({}))
            case "RegisterAction":
                (function,) = node.initializer.components
                parameters = [each.name for each in function.type.parameters.parameters]
                return RegisterAction(
                    self._objects[arguments[0].path.name], parameters, self._statement_of(function.body)
                )
            case "Hash":
                if arguments[0].member != "IDENTITY":
                    raise NotImplementedError(arguments[0].member)
                return Hash()
            case "Counter":
                return Counter()
            case "Checksum":
                return Checksum()
        raise NotImplementedError(name)

    def _table_of(self, node: Node) -> Table:
        properties = {each.name: each.value for each in node.properties.properties}
        actions = [self._actions[each.expression.method.path.name] for each in properties["actions"].actionList]
        entries = properties["entries"].entries if "entries" in properties else []
        return Table(
            [self._expression_of(each.expression) for each in properties["key"].keyElements],
            {each.name: each for each in actions},
            self._call_of(properties["default_action"].expression),
            [Entry(self._tests_of(each.keys), self._call_of(each.action)) for each in entries],
            properties["size"].expression.value,
        )

    def _call_of(self, node: Node) -> Call:
        """A table's call of an action: its arguments are constants."""
        return self._actions[node.method.path.name], tuple(each.expression.value for each in node.arguments)

    def _tests_of(self, node: Node) -> dict[int, Test]:
        """A keyset, by position."""
        keys = node.components if node.kind == "ListExpression" else [node]
        return {position: self._test_of(each) for position, each in enumerate(keys) if each.kind != "DefaultExpression"}

    @staticmethod
    def _test_of(node: Node) -> Test:
        match node.kind:
            case "Constant" | "BoolLiteral":
                return functools.partial(operator.eq, int(node.value))
            case "Mask":
                return ternary(node.left.value, node.right.value)
            case "Range":
                low, high = node.left.value, node.right.value
                return lambda key: low <= key <= high
        raise NotImplementedError(node.kind)

    def _state_of(self, node: Node) -> Callable[[Env], str]:
        body = [self._statement_of(each) for each in node.components]
        then = node.selectExpression
        if then.kind == "PathExpression":
            key: list[Expression] = []
            cases: list[tuple[dict[int, Test], str]] = [({}, then.path.name)]
        else:
            key = [self._expression_of(each) for each in then.select.components]
            cases = [(self._tests_of(each.keyset), each.state.path.name) for each in then.selectCases]

        def run(env: Env) -> str:
            for each in body:
                each(env)
            values = [of(env) for of in key]
            for tests, state in cases:
                if all(test(values[position]) for position, test in tests.items()):
                    return state
            raise ParserError(PARSER_ERROR_NO_MATCH)

        return run

    # ---- statements

    def _statement_of(self, node: Node) -> Statement:
        match node.kind:
            case "EmptyStatement":
                return lambda env: None
            case "BlockStatement":
                steps = [self._statement_of(each) for each in node.components]

                def block(env: Env) -> None:
                    for each in steps:
                        each(env)

                return block
            case "AssignmentStatement":
                value, store = self._expression_of(node.right), self._store_of(node.left)
                return lambda env: store(env, value(env))
            case "MethodCallStatement":
                return self._expression_of(node.methodCall)
            case "IfStatement":
                condition, true = self._expression_of(node.condition), self._statement_of(node.ifTrue)
                false = self._statement_of(node.ifFalse) if "ifFalse" in node else lambda env: None
                return lambda env: true(env) if condition(env) else false(env)
        raise NotImplementedError(node.kind)

    def _store_of(self, node: Node) -> Callable[[Env, Any], None]:
        if node.type.kind in ("Type_Struct", "Type_Header"):
            raise NotImplementedError(f"assignment of a {node.type.kind}")
        match node.kind:
            case "PathExpression":
                return functools.partial(_set, lambda env: env, node.path.name)
            case "Member":
                return functools.partial(_set, self._expression_of(node.expr), node.member)
        raise NotImplementedError(node.kind)

    # ---- expressions

    def _expression_of(self, node: Node) -> Expression:
        match node.kind:
            case "Constant" | "BoolLiteral":
                constant = int(node.value)
                return lambda env: constant
            case "PathExpression":
                return operator.itemgetter(node.path.name)
            case "StructExpression":
                fields = {each.name: self._expression_of(each.expression) for each in node.components}
                return lambda env: {name: of(env) for name, of in fields.items()}
            case "MethodCallExpression":
                return self._method_of(node)
            case "Member":
                if node.expr.kind == "MethodCallExpression":  # table.apply().hit
                    if node.member != "hit":
                        raise NotImplementedError(node.member)
                    return self._expression_of(node.expr)
                whole, name = self._expression_of(node.expr), node.member
                return lambda env: whole(env)[name]
            case "Slice":
                of, low, width = self._expression_of(node.e0), node.e2.value, node.e1.value - node.e2.value + 1
                return lambda env: of(env) >> low & ((1 << width) - 1)
            case "Cast":
                of, to = self._expression_of(node.expr), self._types.real(node.destType)
                width, signed = (to.size, to.isSigned) if to.kind == "Type_Bits" else (1, False)
                return lambda env: wrapped(of(env), width, signed)
            case "Concat":
                both = self._side_by_side([node.left, node.right])
                return lambda env: both(env)[0]
            case "LNot":
                of = self._expression_of(node.expr)
                return lambda env: int(not of(env))
            case "Cmpl":
                of, everything = self._expression_of(node.expr), (1 << self._types.real(node.type).size) - 1
                return lambda env: of(env) ^ everything
        return self._of_two(node)

    def _of_two(self, node: Node) -> Expression:
        if node.kind not in ("LAnd", "LOr", *ARITHMETIC, *COMPARISONS):
            raise NotImplementedError(node.kind)
        left, right = self._expression_of(node.left), self._expression_of(node.right)
        if node.kind == "LAnd":
            return lambda env: int(left(env) and right(env))
        if node.kind == "LOr":
            return lambda env: int(left(env) or right(env))
        if node.kind in COMPARISONS:
            compare = COMPARISONS[node.kind]
            return lambda env: int(compare(left(env), right(env)))
        calculate, to = ARITHMETIC[node.kind], self._types.real(node.type)
        width, signed = to.size, to.isSigned
        return lambda env: wrapped(calculate(left(env), right(env)), width, signed)

    def _side_by_side(self, nodes: list[Node]) -> Callable[[Env], tuple[int, int]]:
        """Values of several widths as one: (value, width). A header is its fields."""
        parts: list[tuple[Expression, int]] = []
        for node in nodes:
            of, type_ = self._expression_of(node), self._types.real(node.type)
            if type_.kind == "Type_Header":
                parts += [(functools.partial(_get, of, name), width) for name, width in self._types.bits(type_)]
            else:
                parts.append((of, type_.size))
        width = sum(width for _, width in parts)

        def join(env: Env) -> tuple[int, int]:
            value = 0
            for of, size in parts:
                value = value << size | of(env)
            return value, width

        return join

    def _method_of(self, node: Node) -> Expression:
        method, arguments = node.method, [each.expression for each in node.arguments]
        if method.kind == "PathExpression":
            return self._function_of(method.path.name, arguments)
        owner, name = method.expr, method.member
        if owner.kind == "This":
            assert name == "predicate"
            low, high = (self._expression_of(each) for each in arguments)
            return lambda env: 1 << (low(env) | high(env) << 1)
        if owner.kind == "PathExpression" and owner.path.name in self._objects:
            return self._extern_method_of(self._objects[owner.path.name], name, arguments)
        of = self._expression_of(owner)
        match name:
            case "isValid":
                return lambda env: int(of(env)[VALID])
            case "setValid":
                return lambda env: of(env).update({VALID: True})
            case "setInvalid":
                return lambda env: of(env).update({VALID: False})
            case "extract":
                into, fields = self._expression_of(arguments[0]), self._types.bits(node.typeArguments[0])
                return lambda env: of(env).extract(into(env), fields)
            case "lookahead":
                width = self._types.width(node.typeArguments[0])
                return lambda env: of(env).look(width)
            case "advance":
                distance = self._expression_of(arguments[0])
                return lambda env: of(env).advance(distance(env))
            case "emit":
                return self._emit_of(of, arguments[0])
        raise NotImplementedError(name)

    def _function_of(self, name: str, nodes: list[Node]) -> Expression:
        arguments = [self._expression_of(each) for each in nodes]
        if name in self._actions:
            action = self._actions[name]
            return lambda env: action(env, [of(env) for of in arguments])
        if name == "sizeInBytes":
            size = self._types.width(nodes[0].type) // 8
            return lambda env: size
        if name == "max":
            return lambda env: max(of(env) for of in arguments)
        raise NotImplementedError(name)

    def _extern_method_of(self, on: Any, name: str, nodes: list[Node]) -> Expression:
        if isinstance(on, Table) and name == "apply":
            return lambda env: int(on.apply(env))
        if isinstance(on, Checksum) and name == "verify":
            return lambda env: on.verify()
        if isinstance(on, Checksum | Hash) and name in ("add", "update", "get"):
            (what,) = nodes
            joined = self._side_by_side(what.components if what.kind == "ListExpression" else [what])
            if isinstance(on, Hash):
                return lambda env: joined(env)[0]
            take = getattr(on, name)
            return lambda env: take(*joined(env))
        if (isinstance(on, RegisterAction) and name == "execute") or (isinstance(on, Counter) and name == "count"):
            arguments, do = [self._expression_of(each) for each in nodes], getattr(on, name)
            return lambda env: do(env, *[of(env) for of in arguments])
        raise NotImplementedError(f"{type(on).__name__}.{name}")

    def _emit_of(self, packet: Expression, node: Node) -> Statement:
        """Valid headers, one after the other."""
        whole, type_ = self._expression_of(node), self._types.real(node.type)
        headers = [(each.name, self._types.bits(each.type)) for each in type_.fields]

        def emit(env: Env) -> None:
            to, values = packet(env), whole(env)
            for name, fields in headers:
                if values[name][VALID]:
                    for inner, width in fields:
                        to.emit(values[name][inner], width)

        return emit


ENDS = ("accept", "reject")


def _p4info_name(node: Node) -> str:
    """The name that a controller knows."""
    name = next(each.body["value"]["vec"][0]["value"] for each in node.annotations if each.name == "name")
    return str(name).removeprefix(".")


def _set(whole: Expression, name: str, env: Env, value: Any) -> None:
    whole(env)[name] = value


def _get(whole: Expression, name: str, env: Env) -> Any:
    return whole(env)[name]


def ternary(value: int, mask: int) -> Test:
    return lambda key: key & mask == value
