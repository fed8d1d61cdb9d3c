"""The compiled program, one packet at a time, held against the model.

NETFOLD_PROPERTY_SWITCH=tofino takes the binary for Tofino in the model of the chip, which takes some hundred times as
long. NETFOLD_PROPERTY_ELEMENTS takes the program for another number of elements: 32 and 64 on Tofino, 64 and more else.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Protocol

from p4.v1 import p4runtime_pb2 as p4rt

from controller.jobs.switch_share import SwitchShare
from controller.switches.program import load_artifact
from controller.switches.table_entries import Names
from emulation.switch.compiler.cc import compile_program
from emulation.switch.compiler.program_writer import Generator
from emulation.switch.dataplane import Dataplane
from emulation.switch.p4runtime.pipeline import Pipeline, load_config
from hostlib.protocol import constants
from tests.dataplane.target import COUNTERS, Frames, Model
from tests.property.frame import ELEMENTS
from tests.property.model import ModelSwitch, Outcome

KIND = os.environ.get("NETFOLD_PROPERTY_SWITCH", "embedded")
COUNTED = (*constants.EVENTS.values(), *constants.DROPS.values())


class Violation(AssertionError):
    """The network did what docs/protocol.md says it never does."""


class Switch(Protocol):
    """Something that runs shares of jobs."""

    def install(self, share: SwitchShare) -> None: ...

    def remove(self, share: SwitchShare) -> None: ...

    def process(self, port: int, data: bytes) -> Outcome: ...


@cache
def _pipeline(number: int) -> Pipeline:
    """Translated once for all examples: one for each switch of a tree."""
    artifact = load_artifact(ELEMENTS)
    return Pipeline(load_config(artifact.program, artifact.p4info))


@cache
def _library(pipeline: Pipeline) -> Path:
    return compile_program(Generator(pipeline.program).generate())


class Loaded:
    """A switch with a program, in which jobs come and go: entries by their names, packets by what the counters say."""

    _names: Names

    def _write(self, how: p4rt.Update.Type.ValueType, entities: list[p4rt.Entity]) -> None:
        raise NotImplementedError

    def _pass(self, port: int, data: bytes) -> Frames:
        raise NotImplementedError

    def _read(self) -> list[int]:
        """Of both counters, packets by COUNTED."""
        raise NotImplementedError

    def _begin(self, address: str, others: dict[str, int], hosts: dict[int, int]) -> None:
        self._own = [self._names.fabric_address(address), *self._names.fabric_sources(address, others)]
        self._own += [self._names.entry("l2", {"dst_mac": m}, "l2_forward", {"port": p}) for m, p in hosts.items()]
        self._write(p4rt.Update.INSERT, self._own)
        self._installed: dict[int, list[p4rt.Entity]] = {}
        self._counts = self._read()

    def install(self, share: SwitchShare) -> None:
        self._installed[share.epoch] = self._names.job([share])
        self._write(p4rt.Update.INSERT, self._installed[share.epoch])

    def remove(self, share: SwitchShare) -> None:
        self._write(p4rt.Update.DELETE, self._installed.pop(share.epoch)[::-1])

    def process(self, port: int, data: bytes) -> Outcome:
        left = self._pass(port, data)
        before, self._counts = self._counts, self._read()
        grown = [now - was for now, was in zip(self._counts, before, strict=True)]
        events = [index for index, times in zip(COUNTED, grown[: len(COUNTED)], strict=True) for _ in range(times)]
        egress = {index: n for index, n in zip(COUNTED, grown[len(COUNTED) :], strict=True) if n}
        replicas = egress.pop(constants.EVENT_REPLICA, 0)
        if egress:
            raise Violation(f"egress counted {egress}")
        return Outcome(tuple(events), tuple(left), replicas)


class ProgramSwitch(Loaded):
    """The committed program in the embedded switch, with all registers and counters at zero.

    Args:
        number: which of the loaded programs; the switch that had it before must not be used any more.
        address: of the fabric, here.
        others: fabric address of each other switch -> the port that leads there.
        hosts: MAC -> port, for what is only passing by.
    """

    def __init__(self, number: int, address: str, others: dict[str, int], hosts: dict[int, int]) -> None:
        self._pipeline = _pipeline(number)
        if number in _running:
            _running[number]._clear()
        _running[number] = self
        # A new instance of the library: what an earlier example left in registers must not decide about this one.
        self._pipeline.dataplane.close()
        self._pipeline.dataplane = Dataplane(_library(self._pipeline), self._pipeline.program)
        self._names = Names(self._pipeline.config.p4info)
        schema = self._pipeline.schema
        self._events, self._egress = (schema.counter(self._names.counter_id(name))[0] for name in COUNTERS)
        self._begin(address, others, hosts)

    def _write(self, how: p4rt.Update.Type.ValueType, entities: list[p4rt.Entity]) -> None:
        with self._pipeline.dataplane.writing():
            for entity in entities:
                self._pipeline.update(p4rt.Update(type=how, entity=entity))

    def _clear(self) -> None:
        """Take everything away that was written."""
        for entities in self._installed.values():
            self._write(p4rt.Update.DELETE, entities[::-1])
        self._installed.clear()
        self._write(p4rt.Update.DELETE, self._own)

    def _pass(self, port: int, data: bytes) -> Frames:
        return list(self._pipeline.dataplane.process(port, data))

    def _read(self) -> list[int]:
        counter = self._pipeline.dataplane.counter
        return [counter(each, index)[0] for each in (self._events, self._egress) for index in COUNTED]


class ChipSwitch(Loaded):
    """The committed binary in the model of Tofino, started anew; arguments as of ProgramSwitch."""

    def __init__(self, number: int, address: str, others: dict[str, int], hosts: dict[int, int]) -> None:
        if number in _chips:
            _chips.pop(number).close()
        self._model = _chips[number] = Model(ELEMENTS)
        self._names = self._model.names
        self._begin(address, others, hosts)

    def _write(self, how: p4rt.Update.Type.ValueType, entities: list[p4rt.Entity]) -> None:
        self._model.write(how, entities)

    def _pass(self, port: int, data: bytes) -> Frames:
        return self._model.send(port, data)

    def _read(self) -> list[int]:
        counts = self._model.counts()
        return [counts[name].get(index, 0) for name in COUNTERS for index in COUNTED]


class Twin:
    """The program and the model side by side.

    Raises:
        Wrong: from process(), when they differ.
    """

    def __init__(self, number: int, address: str, others: dict[str, int], hosts: dict[int, int]) -> None:
        self._program = SWITCHES[KIND](number, address, others, hosts)
        self._model = ModelSwitch(address, others, hosts)

    def install(self, share: SwitchShare) -> None:
        self._program.install(share)
        self._model.install(share)

    def remove(self, share: SwitchShare) -> None:
        self._program.remove(share)
        self._model.remove(share)

    def process(self, port: int, data: bytes) -> Outcome:
        done, expected = self._program.process(port, data), self._model.process(port, data)
        if _sorted(done) != _sorted(expected):
            raise Violation(f"the program did\n{done}\nand docs/protocol.md says\n{expected}")
        return done


_running: dict[int, ProgramSwitch] = {}
_chips: dict[int, Model] = {}
SWITCHES: dict[str, type[ProgramSwitch] | type[ChipSwitch]] = {"embedded": ProgramSwitch, "tofino": ChipSwitch}


def _sorted(outcome: Outcome) -> tuple[tuple[int, ...], list[tuple[int, bytes]], int]:
    """Replicas leave in any order."""
    return outcome.events, sorted(outcome.left), outcome.replicas
