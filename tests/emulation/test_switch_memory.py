"""The switch without memory: whichever allocation fails, a write is refused and changes nothing, and packets are lost."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt

from emulation.errors import PortError, SwitchMemoryError
from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.cc import compile_program
from emulation.switch.compiler.program_writer import Generator
from emulation.switch.dataplane import Dataplane
from emulation.switch.p4runtime.pipeline import Pipeline
from emulation.switch.p4runtime.status import RequestError
from emulation.switch.ports.open_port import open_ports
from emulation.switch.ports.registry import parse_port
from tests.emulation.p4runtime import DATA, Controller, Refused, Switch, between, config, exact, fails, optional, switch
from tests.emulation.test_p4runtime import probe, traced

SHIM = DATA / "failing_malloc.h"
# The shim's checksum is among the flags, so that the cache of compiled programs knows one shim from another.
FLAGS = ("-O0", "-include", str(SHIM), f"-DSHIM={zlib.crc32(SHIM.read_bytes())}")
RECIRCULATE = 8  # an operation of language.p4
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
GROUP, SESSION = p4rt.MulticastGroupEntry, p4rt.CloneSessionEntry


def leave(dataplane: Dataplane, allocations: int) -> None:
    """Let so many allocations succeed from now on; -1 for all."""
    ctypes.c_long.in_dll(dataplane._lib, "allocations_left").value = allocations


@contextmanager
def starved(program: str) -> Iterator[tuple[Switch, Controller, Dataplane]]:
    """A switch whose allocations can be made to fail, and its primary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "emulation.switch.p4runtime.pipeline.compile_program", lambda text, _: compile_program(text, FLAGS)
        )
        with switch(program) as running:
            controller = running.controller()
            controller.arbitrate()
            assert running.service.pipeline is not None
            yield running, controller, running.service.pipeline.dataplane


def exhaust(dataplane: Dataplane, controller: Controller, write: Callable[[], None]) -> int:
    """Let the first allocation that a write needs fail, then the second, until there is none to fail; how many it needs.
    Each time it must be refused, and have changed nothing."""
    before = everything(controller)
    for needed in range(50):
        leave(dataplane, needed)
        try:
            if _done(write):
                return needed
        finally:
            leave(dataplane, -1)
        assert everything(controller) == before
    raise AssertionError("it takes memory for ever")


def _done(write: Callable[[], None]) -> bool:
    try:
        write()
    except Refused as refused:
        assert "there is no memory for" in refused.text
        assert refused.codes[-1] == EXHAUSTED.value[0]
        return False
    return True


def everything(controller: Controller) -> list[Any]:
    return controller.read(p4rt.TableEntry(), p4rt.ActionProfileMember(), p4rt.ActionProfileGroup(), GROUP(), SESSION())


def test_whatever_is_written_is_refused_whole_without_memory() -> None:
    with starved("resources") as (running, controller, dataplane):
        wide = controller.entry("wides", exact(1 << 100), action=controller.action("set_wide", 7))
        assert exhaust(dataplane, controller, lambda: controller.insert(wide)) == 4  # what grows, and the entry
        for n in range(2, 17):
            controller.insert(controller.entry("wides", exact(n), action=controller.action("set_wide", n)))
        last = controller.entry("wides", exact(17), action=controller.action("set_wide", 17))
        assert exhaust(dataplane, controller, lambda: controller.insert(last)) == 4  # the room for 16 was full
        assert [traced(running, probe(wide=n))["wide"] for n in (1 << 100, 2, 17)] == [7, 2, 17]

        ranged = controller.entry(
            "ranges", between(1, 9), optional(1), priority=1, action=controller.action("set_ranged", 3)
        )
        assert exhaust(dataplane, controller, lambda: controller.insert(ranged)) == 4
        assert traced(running, probe(number_=5, choice=1))["ranged"] == 3

        members = controller.id("members")
        member = p4rt.ActionProfileMember(
            action_profile_id=members, member_id=1, action=controller.action("set_member", 5)
        )
        assert exhaust(dataplane, controller, lambda: controller.insert(member)) == 1
        assert exhaust(dataplane, controller, lambda: controller.modify(member)) == 0
        pointing = controller.entry("indirect", exact(1), action=p4rt.TableAction(action_profile_member_id=1))
        assert exhaust(dataplane, controller, lambda: controller.insert(pointing)) == 4
        controller.delete(pointing)
        controller.delete(member)  # Nothing that was refused holds it.

        shot = controller.entry("balanced", exact(1))
        for name in (1, 2):
            actions = shot.action.action_profile_action_set.action_profile_actions
            actions.add(action=controller.action("pick", name), weight=1, watch_port=b"\1")
        assert exhaust(dataplane, controller, lambda: controller.insert(shot)) == 6  # what has grown stays so
        controller.delete(shot)

        replica = p4rt.Replica(egress_port=1, instance=1)
        for group in (GROUP(multicast_group_id=1, replicas=[replica]), SESSION(session_id=1, replicas=[replica])):
            assert exhaust(dataplane, controller, lambda made=group: controller.insert(made)) == 1
            controller.delete(group)


def test_groups_and_value_sets_without_memory() -> None:
    with starved("resources") as (_, controller, dataplane):
        ways = controller.id("ways")
        for n in (1, 2):
            action = controller.action("pick", n)
            controller.insert(p4rt.ActionProfileMember(action_profile_id=ways, member_id=n, action=action))
        group = p4rt.ActionProfileGroup(action_profile_id=ways, group_id=1, max_size=8)
        group.members.add(member_id=1, weight=1)
        assert exhaust(dataplane, controller, lambda: controller.insert(group)) == 2
        group.members.add(member_id=2, weight=1, watch_port=b"\1")
        assert exhaust(dataplane, controller, lambda: controller.modify(group)) == 2
        assert exhaust(dataplane, controller, lambda: controller.delete(group)) == 0
    with starved("control") as (_, controller, dataplane):
        values = p4rt.ValueSetEntry(value_set_id=controller.id("mirrored_types"))
        values.members.add().match.add(field_id=1).exact.value = b"\5"
        assert exhaust(dataplane, controller, lambda: controller.modify(values)) == 1


def test_a_batch_is_undone_when_memory_ends_within_it() -> None:
    with starved("resources") as (_, controller, dataplane):
        entries = [controller.entry("wides", exact(n), action=controller.action("set_wide", n)) for n in range(1, 21)]
        batch = [(p4rt.Update.INSERT, entry) for entry in entries]
        leave(dataplane, 10)
        atomicity = p4rt.WriteRequest.ROLLBACK_ON_ERROR
        assert "no memory for an entry" in fails(EXHAUSTED, controller.batch, batch, atomicity=atomicity)
        leave(dataplane, -1)
        assert controller.read(p4rt.TableEntry()) == []
        controller.batch(batch, atomicity=atomicity)
        assert len(controller.read(p4rt.TableEntry())) == 20


def test_a_program_whose_own_entries_find_no_memory_is_refused() -> None:
    program = Program((DATA / "tables.json").read_bytes())
    library = compile_program(Generator(program).generate(), (*FLAGS, "-DALLOCATIONS=6"))
    with pytest.raises(SwitchMemoryError, match="cannot be set up: Cannot allocate memory"):
        Dataplane(library, program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("emulation.switch.p4runtime.pipeline.compile_program", lambda *_: library)
        with pytest.raises(RequestError) as refused:
            Pipeline(config("tables"))
    assert refused.value.code == EXHAUSTED


def test_packets_that_find_no_memory_are_lost_and_counted() -> None:
    program = Program((DATA / "language.json").read_bytes())
    dataplane = Dataplane(compile_program(Generator(program).generate(), FLAGS), program)
    ports = open_ports([parse_port("1=udp:127.0.0.1:0,delay=1ms"), parse_port("2=wire:127.0.0.1:0,bandwidth=1gbit")])
    try:
        again = bytes([RECIRCULATE]) + bytes(19)
        assert len(dataplane.process(1, again)) == 1
        with dataplane.writing():
            leave(dataplane, 0)
            assert dataplane.process_locked(1, again) == []
        assert dataplane.losses()["no_memory"] == 1
        for n, what in enumerate(ports, start=1):
            with pytest.raises(PortError, match=f"port {n}: the program cannot have it: Cannot allocate memory"):
                dataplane.attach([what], None)
        leave(dataplane, -1)
        dataplane.attach(ports, None)
        dataplane.start()
        with dataplane.writing():
            for left in (0, 1):  # for the frame; for the heap of those that wait
                for number in (1, 2):
                    leave(dataplane, left)
                    dataplane.inject(number, bytes(60))
            leave(dataplane, -1)
            dataplane.inject(1, bytes(60))
        assert dataplane.losses()["no_memory"] == 5
        assert dataplane.port_stats(2)["queue_depth"] == 0
    finally:
        dataplane.close()
        for port in ports:
            port.close()
