"""A committed forwarding pipeline config: its program, and what controllers have written."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import grpc
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2

from emulation.errors import EmulationError, SwitchMemoryError
from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.cc import compile_program
from emulation.switch.compiler.crc import CrcSetting
from emulation.switch.compiler.program_writer import Generator
from emulation.switch.dataplane import TOLD_PACKET, Dataplane
from emulation.switch.p4runtime.action_profiles import Profiles
from emulation.switch.p4runtime.codec import Schema
from emulation.switch.p4runtime.context import DELETE, INSERT, MODIFY, Loaded, Served
from emulation.switch.p4runtime.counters_meters import Cells
from emulation.switch.p4runtime.digests import Digests
from emulation.switch.p4runtime.packet_io import PacketHeaders
from emulation.switch.p4runtime.registers import Registers
from emulation.switch.p4runtime.replication import Replication
from emulation.switch.p4runtime.sdn_strings import translations
from emulation.switch.p4runtime.status import RequestError, invalid
from emulation.switch.p4runtime.tables import Tables
from emulation.switch.p4runtime.value_sets import ValueSets

# In an order in which they can be written: referenced objects come before references.
KINDS = (
    "packet_replication_engine_entry",
    "action_profile_member",
    "action_profile_group",
    "value_set_entry",
    "digest_entry",
    "counter_entry",
    "meter_entry",
    "table_entry",
)


def device_data(config: bytes) -> bytes:
    """The BMv2 JSON in a device config: all of it, or what a p4.tmp.P4DeviceConfig has in its third field.

    Older clients send the latter, as those of p4lang's tutorials. Source: p4lang/PI, proto/p4/tmp/p4config.proto.
    """
    if config.lstrip().startswith(b"{"):
        return config
    wrapped, at = memoryview(config), 0
    while at < len(wrapped):
        key, at = _varint(wrapped, at)
        size, at = _varint(wrapped, at)  # or a value, of a field without a length
        if key == _DEVICE_DATA:
            return bytes(wrapped[at : at + size])
        if key not in (_REASSIGN, _EXTRAS):
            break
        at += size if key == _EXTRAS else 0
    return config


_REASSIGN, _EXTRAS, _DEVICE_DATA = 1 << 3, 2 << 3 | 2, 3 << 3 | 2  # keys: field number, wire type


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of the wire format, and where the next one begins; what is cut short counts as zeros."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            break
    return value, at


def compiled(program: Program, trace: bool, crcs: tuple[CrcSetting, ...]) -> Dataplane:
    """A program, ready to run; arguments as Pipeline's.

    Raises:
        EmulationError: the switch cannot run it.
    """
    return Dataplane(compile_program(Generator(program, crcs).generate(), ("-DNF_TRACE",) if trace else ()), program)


class Pipeline:
    """One committed forwarding pipeline config.

    Args:
        trace: the program logs the processing of each packet to standard error.
        crcs: parameters of custom CRCs.

    Raises:
        RequestError: the config does not describe a program that this switch can run.
    """

    def __init__(
        self,
        config: p4runtime_pb2.ForwardingPipelineConfig,
        trace: bool = False,
        crcs: tuple[CrcSetting, ...] = (),
    ) -> None:
        try:
            program = Program(device_data(config.p4_device_config))
            schema = Schema(config.p4info, program, translations(config.p4info))
            self.packets = PacketHeaders(config.p4info, program, schema.names)
            dataplane = compiled(program, trace, crcs)
        except RequestError:
            raise
        except SwitchMemoryError as error:
            raise _exhausted(error) from error
        except EmulationError as error:
            raise invalid(str(error)) from error
        self.config = config
        self.program = program
        self.schema = schema
        self._loaded = Loaded(program, schema, dataplane)
        self._profiles = Profiles(self._loaded)
        self.tables = Tables(self._loaded, self._profiles)
        self._cells = Cells(self._loaded)
        self._registers = Registers(self._loaded)
        self._replication = Replication(self._loaded)
        self._value_sets = ValueSets(self._loaded)
        self.digests = Digests(self._loaded)
        self._kept: list[tuple[int, int, bytes]] = []

    @property
    def dataplane(self) -> Dataplane:
        return self._loaded.dataplane

    @dataplane.setter
    def dataplane(self, other: Dataplane) -> None:
        """Replace the data plane by another instance of the same program."""
        self._loaded.dataplane = other

    def writing(self) -> AbstractContextManager[None]:
        """As Dataplane.writing."""
        return self.dataplane.writing()

    def close(self) -> None:
        """End its packets, and unload its program."""
        self.dataplane.close()

    def restart(self) -> None:
        """Drop messages for controllers, and let idle timeouts begin anew."""
        self.messages()
        self.tables.restart()

    # ---- writing (section 12) ---------------------------------------------------------------------------------

    def update(self, update: p4runtime_pb2.Update) -> None:
        """Apply one update; called inside `dataplane.writing()`.

        Raises:
            RequestError: refused; nothing has changed.
        """
        if update.type not in (INSERT, MODIFY, DELETE):
            raise invalid("an update is an INSERT, a MODIFY or a DELETE")
        try:
            self._update(update.type, update.entity)
        except SwitchMemoryError as error:
            raise _exhausted(error) from error

    def _update(self, how: int, entity: p4runtime_pb2.Entity) -> None:
        kind = entity.WhichOneof("entity")
        if kind == "table_entry":
            self.tables.update(how, entity.table_entry)
        elif kind == "action_profile_member":
            self._profiles.update_member(how, entity.action_profile_member)
        elif kind == "action_profile_group":
            self._profiles.update_group(how, entity.action_profile_group)
        elif kind == "meter_entry":
            self._cells.update_meter(how, entity.meter_entry)
        elif kind == "direct_meter_entry":
            self.tables.update_meter(how, entity.direct_meter_entry)
        elif kind == "counter_entry":
            self._cells.update_counter(how, entity.counter_entry)
        elif kind == "direct_counter_entry":
            self.tables.update_counter(how, entity.direct_counter_entry)
        elif kind == "packet_replication_engine_entry":
            self._replication.update(how, entity.packet_replication_engine_entry)
        elif kind == "register_entry":
            self._registers.update(how, entity.register_entry)
        elif kind == "value_set_entry":
            self._value_sets.update(how, entity.value_set_entry)
        elif kind == "digest_entry":
            self._update_digest(how, entity.digest_entry)
        else:
            _refuse(kind)

    def _update_digest(self, how: int, entry: p4runtime_pb2.DigestEntry) -> None:
        if not self.digests.active:
            # Messages from before the subscription are dropped.
            self._kept += [each for each in self.dataplane.messages() if each[0] == TOLD_PACKET]
        self.digests.update(how, entry)

    def messages(self) -> list[tuple[int, int, bytes]]:
        """(TOLD_*, id, data) of digests and of frames for the CPU port since the last call."""
        with self.dataplane.writing():
            found, self._kept = self._kept + self.dataplane.messages(), []
        return found

    def inverse(self, update: p4runtime_pb2.Update) -> list[p4runtime_pb2.Update]:
        """The updates that undo an update that is about to be applied; arbitrary if it will be refused.

        Raises:
            RequestError: as `update` would.
        """
        if update.type == INSERT:
            return [p4runtime_pb2.Update(type=DELETE, entity=update.entity)]
        how = MODIFY if update.type == MODIFY else INSERT
        return [p4runtime_pb2.Update(type=how, entity=entity) for entity in self._current(update.entity)]

    def _current(self, entity: p4runtime_pb2.Entity) -> list[p4runtime_pb2.Entity]:
        if entity.WhichOneof("entity") == "table_entry":
            return [p4runtime_pb2.Entity(table_entry=self.tables.current(entity.table_entry))]
        return list(self.read(entity))

    # ---- reading (section 13) ---------------------------------------------------------------------------------

    def read(self, entity: p4runtime_pb2.Entity) -> Iterable[p4runtime_pb2.Entity]:
        """All objects that an entity selects; missing ids and keys are wildcards.

        Raises:
            RequestError: no such object can be read.
        """
        kind = entity.WhichOneof("entity")
        if kind == "table_entry":
            return self.tables.read(entity.table_entry)
        if kind == "action_profile_member":
            return self._profiles.read_members(entity.action_profile_member)
        if kind == "action_profile_group":
            return self._profiles.read_groups(entity.action_profile_group)
        if kind == "meter_entry":
            return self._cells.read_meters(entity.meter_entry)
        if kind == "direct_meter_entry":
            return self.tables.read_meters(entity.direct_meter_entry)
        if kind == "counter_entry":
            return self._cells.read_counters(entity.counter_entry)
        if kind == "direct_counter_entry":
            return self.tables.read_counters(entity.direct_counter_entry)
        if kind == "packet_replication_engine_entry":
            return self._replication.read(entity.packet_replication_engine_entry)
        if kind == "register_entry":
            return self._registers.read(entity.register_entry)
        if kind == "value_set_entry":
            return self._value_sets.read(entity.value_set_entry)
        if kind == "digest_entry":
            return self.digests.read(entity.digest_entry)
        _refuse(kind)

    # ---- reconciliation (section 14) --------------------------------------------------------------------------

    def take_over(self, old: Served) -> None:
        """Write everything that was written to another pipeline: entries with their counters, groups, meters.

        Registers start at their initial values: they belong to the program, which is another one.

        Raises:
            RequestError: INVALID_ARGUMENT; P4Info differs.
        """
        if not isinstance(old, Pipeline) or self.config.p4info != old.config.p4info:
            raise invalid("P4Info has changed: what was written cannot be kept; VERIFY_AND_COMMIT starts anew")
        with self.dataplane.writing():
            for entity in self.tables.initial():
                self.update(p4runtime_pb2.Update(type=DELETE, entity=entity))
            for kind in KINDS:
                for entity in old.written(kind):
                    always = kind in ("counter_entry", "meter_entry", "value_set_entry") or _is_fixed(old, entity)
                    self.update(p4runtime_pb2.Update(type=MODIFY if always else INSERT, entity=entity))

    def written(self, kind: str) -> list[p4runtime_pb2.Entity]:
        """All entities of one of KINDS, in the form of the writes that would restore them."""
        if kind == "table_entry":
            return list(self.tables.written())
        wanted: Any = p4runtime_pb2.Entity()
        getattr(wanted, kind).SetInParent()
        if kind == "meter_entry":
            wanted.meter_entry.counter_data.SetInParent()
        return list(self.read(wanted))


def _exhausted(error: SwitchMemoryError) -> RequestError:
    return RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))


def _is_fixed(pipeline: Pipeline, entity: p4runtime_pb2.Entity) -> bool:
    """Whether a table entry is one of the program's constant ones."""
    entry = entity.table_entry
    if entity.WhichOneof("entity") != "table_entry":
        return False
    return bool(entry.is_default_action or pipeline.schema.tables[entry.table_id].info.is_const_table)


def _refuse(kind: str | None) -> NoReturn:
    if kind is None:
        raise invalid("an entity is empty: say which kind it is")
    raise RequestError(grpc.StatusCode.UNIMPLEMENTED, f"{kind} is not supported: v1model has no externs of one's own")


def load_config(program: bytes, p4info: str) -> p4runtime_pb2.ForwardingPipelineConfig:
    """A pipeline config from the compiler's two files.

    Raises:
        EmulationError: P4Info is not in protobuf's text format.
    """
    config = p4runtime_pb2.ForwardingPipelineConfig(p4_device_config=program)
    try:
        text_format.Parse(p4info, config.p4info, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise EmulationError(f"the P4Info file is not in text format: {error}") from error
    return config
