"""A forwarding pipeline config on the model of Tofino, as P4Runtime's server reads and writes it.

What netfold's controller needs: table entries, multicast groups and counters. No packet-ins, digests, meters and
action profiles, which the program does not have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import grpc
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from emulation.errors import ModelError, ProgramError
from emulation.switch.p4runtime.context import DELETE, INSERT, MODIFY, Served, only_modify
from emulation.switch.p4runtime.status import RequestError, invalid, missing
from emulation.tofino.chip import Chip
from emulation.tofino.harness import HARNESS, Frames, Leaves
from emulation.tofino.model_tables import key_of

NOT_HERE = "a Tofino's model has no {}: table entries, multicast groups and counters"


class ModelPipeline:
    """One committed config on a chip of its own.

    Args:
        ports: numbers of the ports that are up.
        command: the model's program.
        leaves: as of Harness.

    Raises:
        RequestError: the config has no program for a Tofino, or the model does not take it.
    """

    def __init__(
        self,
        config: p4runtime_pb2.ForwardingPipelineConfig,
        ports: Iterable[int],
        command: str = HARNESS,
        leaves: Leaves | None = None,
    ) -> None:
        self.config = config
        try:
            self._chip = Chip(config, ports, command, leaves)
        except ProgramError as error:
            raise invalid(str(error)) from error
        except ModelError as error:
            raise RequestError(grpc.StatusCode.INTERNAL, str(error)) from error
        self._entries: dict[bytes, p4runtime_pb2.TableEntry] = {}
        self._groups: dict[int, p4runtime_pb2.MulticastGroupEntry] = {}
        self._counters: dict[int, p4info_pb2.Counter] = {each.preamble.id: each for each in config.p4info.counters}
        self._tables = {each.preamble.id: each for each in config.p4info.tables}
        self._lock = threading.Lock()
        self.ended = False
        self._writers = 0

    # ---- packets ----------------------------------------------------------------------------------------------

    def send(self, arriving: Iterable[tuple[int, bytes]]) -> Frames:
        """As Harness.send; requests of controllers come first."""
        with self._passing():
            return self._chip.harness.send(arriving)

    def put(self, arriving: Iterable[tuple[int, bytes]]) -> None:
        """As Harness.put, or late() without any; requests of controllers come first."""
        with self._passing():
            if arriving:
                self._chip.harness.put(arriving)
            else:
                self._chip.harness.late()

    @property
    def files(self) -> tuple[int, int]:
        """Files that are readable when a put() has something to do."""
        return self._chip.harness.files

    @contextmanager
    def _passing(self) -> Iterator[None]:
        while self._writers:
            threading.Event().wait(0.001)
        with self._lock:
            if self.ended:
                raise ModelError("the model of Tofino was ended")
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold packets meanwhile."""
        self._writers += 1
        try:
            with self._lock:
                yield
        finally:
            self._writers -= 1

    @property
    def pid(self) -> int:
        """Process ID of the model."""
        return self._chip.harness.pid

    def restart(self) -> None:
        """It has no messages."""

    def take_over(self, old: Served) -> None:
        """Write everything that was written to another chip.

        Raises:
            RequestError: INVALID_ARGUMENT; P4Info differs.
        """
        if not isinstance(old, ModelPipeline) or self.config.p4info != old.config.p4info:
            raise invalid("P4Info has changed: what was written cannot be kept; VERIFY_AND_COMMIT starts anew")
        everything = p4runtime_pb2.Entity()
        for kind in ("packet_replication_engine_entry", "table_entry"):
            getattr(everything, kind).SetInParent()
            for entity in old.read(everything):
                self.update(p4runtime_pb2.Update(type=INSERT, entity=entity))

    def close(self) -> None:
        self.ended = True
        with self.writing():
            self._chip.close()

    # ---- P4Runtime: under writing() ---------------------------------------------------------------------------

    def update(self, update: p4runtime_pb2.Update) -> None:
        """Apply one update.

        Raises:
            RequestError: refused; nothing has changed.
        """
        entity, kind = update.entity, update.entity.WhichOneof("entity")
        if update.type not in (INSERT, MODIFY, DELETE):
            raise invalid("an update is an INSERT, a MODIFY or a DELETE")
        try:
            if kind == "table_entry":
                self._update_entry(update.type, entity.table_entry)
            elif kind == "packet_replication_engine_entry":
                self._update_group(update.type, entity.packet_replication_engine_entry)
            else:
                only_modify(update.type, str(kind))
                raise RequestError(grpc.StatusCode.UNIMPLEMENTED, NOT_HERE.format(kind))
        except ModelError as error:
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from error

    def _update_entry(self, how: int, entry: p4runtime_pb2.TableEntry) -> None:
        table = self._tables.get(entry.table_id)
        if table is None:
            raise missing(f"no table has id {entry.table_id:#x}")
        name = table.preamble.alias
        if entry.is_default_action or table.is_const_table:
            raise RequestError(grpc.StatusCode.UNIMPLEMENTED, f"table {name}: only entries of one's own can be written")
        key = key_of(entry)
        if how == INSERT and key in self._entries:
            raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"table {name}: an entry has this key")
        if how != INSERT and key not in self._entries:
            raise missing(f"table {name}: no entry has this key")
        if how == DELETE:
            self._chip.tables.delete(self._entries.pop(key))
            return
        if entry.action.WhichOneof("type") != "action":
            raise invalid(f"table {name}: an entry needs an action")
        self._chip.tables.insert(entry)
        stored = self._entries[key] = p4runtime_pb2.TableEntry()
        stored.CopyFrom(entry)

    def _update_group(self, how: int, entry: p4runtime_pb2.PacketReplicationEngineEntry) -> None:
        if entry.WhichOneof("type") != "multicast_group_entry":
            raise RequestError(grpc.StatusCode.UNIMPLEMENTED, NOT_HERE.format("clone sessions"))
        group = entry.multicast_group_entry
        number = group.multicast_group_id
        if not 0 < number <= 0xFFFF:
            raise invalid(f"multicast group {number}: ids are 1..65535")
        if how == INSERT and number in self._groups:
            raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"multicast group {number} exists")
        if how != INSERT and number not in self._groups:
            raise missing(f"there is no multicast group {number}")
        if how == DELETE:
            self._chip.group(number, [])
            del self._groups[number]
            return
        self._chip.group(number, [(each.egress_port, each.instance) for each in group.replicas])
        stored = self._groups[number] = p4runtime_pb2.MulticastGroupEntry()
        stored.CopyFrom(group)

    def inverse(self, update: p4runtime_pb2.Update) -> list[p4runtime_pb2.Update]:
        """The updates that undo an update that is about to be applied."""
        if update.type == INSERT:
            return [p4runtime_pb2.Update(type=DELETE, entity=update.entity)]
        before = p4runtime_pb2.Entity()
        if update.entity.WhichOneof("entity") == "table_entry":
            stored = self._entries.get(key_of(update.entity.table_entry))
            if stored is None:
                return []
            before.table_entry.CopyFrom(stored)
        else:
            number = update.entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id
            if number not in self._groups:
                return []
            before.packet_replication_engine_entry.multicast_group_entry.CopyFrom(self._groups[number])
        return [p4runtime_pb2.Update(type=MODIFY if update.type == MODIFY else INSERT, entity=before)]

    def read(self, entity: p4runtime_pb2.Entity) -> list[p4runtime_pb2.Entity]:
        """All objects that an entity selects; missing ids and keys are wildcards.

        Raises:
            RequestError: no such object can be read.
        """
        kind = entity.WhichOneof("entity")
        if kind == "table_entry":
            return list(self._read_entries(entity.table_entry))
        if kind == "packet_replication_engine_entry":
            return list(self._read_groups(entity.packet_replication_engine_entry))
        if kind == "counter_entry":
            return list(self._read_counters(entity.counter_entry))
        raise RequestError(grpc.StatusCode.UNIMPLEMENTED, NOT_HERE.format(kind))

    def _read_entries(self, wanted: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.Entity]:
        for key, entry in self._entries.items():
            if wanted.table_id in (0, entry.table_id) and (not wanted.match or key == key_of(wanted)):
                yield p4runtime_pb2.Entity(table_entry=entry)

    def _read_groups(self, wanted: p4runtime_pb2.PacketReplicationEngineEntry) -> Iterator[p4runtime_pb2.Entity]:
        for number, group in self._groups.items():
            if wanted.multicast_group_entry.multicast_group_id in (0, number):
                entity = p4runtime_pb2.Entity()
                entity.packet_replication_engine_entry.multicast_group_entry.CopyFrom(group)
                yield entity

    def _read_counters(self, wanted: p4runtime_pb2.CounterEntry) -> Iterator[p4runtime_pb2.Entity]:
        if wanted.counter_id and wanted.counter_id not in self._counters:
            raise missing(f"no counter has id {wanted.counter_id:#x}")
        for number in [wanted.counter_id] if wanted.counter_id else list(self._counters):
            counter = self._counters[number]
            indices = [wanted.index.index] if wanted.HasField("index") else range(counter.size)
            with self.writing():
                counted = self._chip.counters(counter, indices)
            for index, (packets, bytes_) in counted.items():
                cell = p4runtime_pb2.CounterEntry(counter_id=number)
                cell.index.index = index
                cell.data.packet_count, cell.data.byte_count = packets, bytes_
                yield p4runtime_pb2.Entity(counter_entry=cell)
