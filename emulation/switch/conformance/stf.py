"""Run STF, the simple test format of p4c's samples: commands for a switch, packets in, packets expected.

Source: p4c's own tests; `docs/conformance.md` lists the supported part of the format.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from emulation.errors import EmulationError
from emulation.switch.compiler.bmv2_json import FIRST_PRIORITY, Key, Program, Table
from emulation.switch.dataplane import Chosen, Dataplane

TOKEN = re.compile(r'"[^"]*"|[^\s(),=]+|[(),]|==?')
T = TypeVar("T")
Frames = dict[int, list[bytes]]


class StfError(EmulationError):
    """An unsupported command, or one that names something that the program does not have."""


class Mismatch(EmulationError):
    """Output packets that differ from the test's."""


class Stf:
    """One test.

    Args:
        dataplane: a fresh switch that runs `program`.
    """

    def __init__(self, program: Program, dataplane: Dataplane) -> None:
        self.program, self.dataplane = program, dataplane
        self._expected: dict[int, list[str]] = defaultdict(list)
        self._left: Frames = defaultdict(list)
        self._nodes: list[tuple[int, list[int]]] = []
        self._groups: dict[int, list[tuple[int, int]]] = {}
        self._sessions: dict[int, tuple[list[tuple[int, int]], int]] = {}
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "packet": self._packet,
            "expect": self._expect,
            "add": self._add,
            "setdefault": self._set_default,
            "mc_mgrp_create": lambda arguments: self._groups.update({int(arguments[0]): []}),
            "mc_node_create": lambda arguments: self._nodes.append(
                (int(arguments[0]), [int(port) for port in arguments[1:]])
            ),
            "mc_node_associate": self._associate,
            "mirroring_add": lambda arguments: self._mirror(int(arguments[0]), port=int(arguments[1])),
            "mirroring_add_mc": lambda arguments: self._mirror(int(arguments[0]), group=int(arguments[1])),
            "register_write": self._register_write,
            "register_read": self._register_read,
            "register_reset": self._register_reset,
            "meter_set_rates": self._meter_set,
            "meter_array_set_rates": self._meter_set_all,
            # These only print, or wait for a slow switch.
            "mirroring_get": lambda arguments: None,
            "meter_get_rates": lambda arguments: None,
            "wait": lambda arguments: None,
        }

    def run(self, text: str) -> None:
        """Run all commands in order, then compare the output.

        Raises:
            StfError: an unsupported command.
            Mismatch: the output differs from the test's.
        """
        for number, line in enumerate(text.splitlines(), start=1):
            tokens = TOKEN.findall(line.split("#")[0])
            if not tokens:
                continue
            try:
                with self.dataplane.writing():
                    self._command(tokens)
            except (KeyError, IndexError, ValueError, StopIteration) as error:
                raise StfError(f"line {number}: {line.strip()}: {type(error).__name__}: {error}") from error
        self._compare()

    def _command(self, tokens: list[str]) -> None:
        if tokens[0] not in self._commands:
            raise StfError(f"the command {tokens[0]} is not one of {', '.join(self._commands)}")
        self._commands[tokens[0]](tokens[1:])

    # ---- packets ----------------------------------------------------------------------------------------------

    def _packet(self, arguments: list[str]) -> None:
        for port, frame in self.dataplane.process_locked(int(arguments[0]), bytes.fromhex("".join(arguments[1:]))):
            self._left[port].append(frame)

    def _expect(self, arguments: list[str]) -> None:
        self._expected[int(arguments[0])].append("".join(arguments[1:]).lower())

    def _compare(self) -> None:
        for port in sorted(self._expected.keys() | self._left.keys()):
            wanted, came = self._expected.get(port, []), self._left.get(port, [])
            if wanted and not any(wanted):
                continue  # any number of packets
            if len(wanted) != len(came):
                raise Mismatch(f"port {port}: {len(wanted)} packets expected, {len(came)} came")
            for number, (pattern, frame) in enumerate(zip(wanted, came, strict=True), start=1):
                if not matches(pattern, frame):
                    raise Mismatch(f"port {port}, packet {number}: {pattern} expected, {frame.hex()} came")

    # ---- tables -----------------------------------------------------------------------------------------------

    def _add(self, arguments: list[str]) -> None:
        """TABLE [PRIORITY] KEY:VALUE ... ACTION(PARAMETER:VALUE, ...)"""
        table = _named(arguments[0], self.program.table_names)
        rest = arguments[1:]
        priority = int(rest.pop(0)) if re.fullmatch(r"\d+|0x[\da-fA-F]+", rest[0]) else 0
        keys, matched = [], {}
        while ":" in rest[0]:
            name, _, value = rest.pop(0).rpartition(":")
            keys.append((_key(name, table), value))
        for key, value in keys:
            matched[key.name] = _match(key, value)
        pairs = [matched.get(key.name, _match(key, None)) for key in table.keys]
        prefix = next((pair[2] for key, pair in zip(table.keys, pairs, strict=True) if key.kind == "lpm"), 0)
        ordered = any(key.kind in ("ternary", "range", "optional") for key in table.keys)
        # In STF the higher priority wins, as here.
        rank = min(priority, FIRST_PRIORITY) if ordered else prefix
        chosen = self._action(table, rest)
        self.dataplane.insert(table.index, [p[0] for p in pairs], [p[1] for p in pairs], rank, chosen)

    def _set_default(self, arguments: list[str]) -> None:
        table = _named(arguments[0], self.program.table_names)
        self.dataplane.modify(table.index, 0, self._action(table, arguments[1:]))

    def _action(self, table: Table, tokens: list[str]) -> Chosen:
        number = _named(tokens[0], table.actions)
        values = dict(pair.rsplit(":", 1) for pair in _arguments(tokens))
        params = self.program.actions[number].params
        return Chosen(number, [int(values[name], 0) for name, _ in params])

    # ---- replication ------------------------------------------------------------------------------------------

    def _associate(self, arguments: list[str]) -> None:
        instance, ports = self._nodes[int(arguments[1])]
        members = self._groups.setdefault(int(arguments[0]), [])
        members += [(port, instance) for port in ports]
        self.dataplane.group(int(arguments[0]), members)

    def _mirror(self, session: int, port: int | None = None, group: int = 0) -> None:
        replicas, _ = self._sessions.get(session, ([], 0))
        self._sessions[session] = ([*replicas, (port, 0)] if port is not None else replicas, group)
        self.dataplane.session(session, *self._sessions[session])

    # ---- state ------------------------------------------------------------------------------------------------

    def _register_write(self, arguments: list[str]) -> None:
        self.dataplane.set_register(
            _named(arguments[0], self.program.registers), int(arguments[1], 0), int(arguments[2], 0)
        )

    def _register_read(self, arguments: list[str]) -> None:
        register = _named(arguments[0], self.program.registers)
        for index in [int(arguments[1], 0)] if len(arguments) > 1 else range(register.size):
            self.dataplane.register(register, index)

    def _register_reset(self, arguments: list[str]) -> None:
        register = _named(arguments[0], self.program.registers)
        for index in range(register.size):
            self.dataplane.set_register(register, index, 0)

    def _meter_set(self, arguments: list[str]) -> None:
        meter = _named(arguments[0], {m["name"]: m for m in self.program.meters})
        self.dataplane.set_meter(meter["id"], int(arguments[1], 0), _rates(arguments[2:]))

    def _meter_set_all(self, arguments: list[str]) -> None:
        meter = _named(arguments[0], {m["name"]: m for m in self.program.meters})
        for index in range(meter["size"]):
            self.dataplane.set_meter(meter["id"], index, _rates(arguments[1:]))


def matches(pattern: str, frame: bytes) -> bool:
    """Whether a frame begins as expected: `*` matches any digit, a final `$` the frame's end."""
    came = frame.hex()
    digits = pattern.rstrip("$")
    if len(came) < len(digits) or (pattern.endswith("$") and len(came) > len(digits)):
        return False
    return all(want in ("*", got) for want, got in zip(digits, came, strict=False))


def _named(name: str, known: dict[str, T]) -> T:
    """Look up a name, or the end of one."""
    if name in known:
        return known[name]
    found = [value for full, value in known.items() if full.endswith(name)]
    if len(found) != 1:
        raise StfError(f"{name} names {len(found)} of {', '.join(known) or 'nothing'}")
    return found[0]


def _key(name: str, table: Table) -> Key:
    """A table's key by its name, or the end of it; `a$0.b` is a[0].b, `valid` the validity of a header."""
    plain = re.sub(r"\$(\d+)", r"[\1]", name.strip('"'))
    for spelt in (plain, f"{plain}$", f"{plain}.$valid$", re.sub(r"valid$", "$valid$", plain)):
        found = [key for key in table.keys if key.name == spelt or key.name.endswith("." + spelt)]
        if found:
            return found[0]
    for key in table.keys:
        if plain == "valid" and key.name.endswith("$valid$"):
            return key
    raise StfError(f"table {table.name} has no key {name}; its keys are {', '.join(key.name for key in table.keys)}")


def _match(key: Key, text: str | None) -> tuple[int, int, int]:
    """(value, mask, prefix length) for a key; None matches anything, or 0 for an exact key."""
    width = key.field.width
    full = 2**width - 1
    if text is None:
        return (0, full, 0) if key.kind == "exact" else (0, full if key.kind == "range" else 0, 0)
    if key.kind == "lpm":
        value, _, prefix = text.partition("/")
        length = int(prefix) if prefix else _digits(value)[2]
        mask = full ^ (full >> length)
        return _digits(value)[0] & mask, mask, length
    if key.kind == "range":
        low, _, high = text.partition("->")
        return int(low, 0), int(high or low, 0), 0
    bits, mask, _ = _digits(text)
    return bits & full, (mask if "*" in text else full) & full, 0


def _digits(text: str) -> tuple[int, int, int]:
    """(value, mask, given bits) of a number whose digits may be `*`."""
    base = {"0x": (16, "f", 4), "0b": (2, "1", 1), "0o": (8, "7", 3)}.get(text[:2].lower())
    if base is None:
        return int(text), -1, int(text).bit_length()
    digits = text[2:]
    value = int(digits.replace("*", "0"), base[0])
    mask = int("".join("0" if digit == "*" else base[1] for digit in digits), base[0])
    return value, mask, base[2] * (len(digits) - digits.count("*"))


def _arguments(tokens: Sequence[str]) -> Iterator[str]:
    """The arguments between the brackets of `action(name:value, ...)`, without commas."""
    for token in tokens[1:]:
        if token not in "(),":
            yield token


def _rates(arguments: Sequence[str]) -> list[int] | None:
    """Convert BMv2's RATE:BURST of a committed and a peak rate from tokens per microsecond to tokens per second."""
    if not arguments:
        return None
    pairs = [pair.split(":") for pair in arguments]
    return [n for rate, burst in pairs for n in (round(float(rate) * 1_000_000), int(burst))]
