"""What a controller has written: table entries, multicast groups and counters of the running program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import grpc
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2

from emulation.errors import EmulationError
from emulation.switch.codegen import Generator
from emulation.switch.compiler import compile_program
from emulation.switch.dataplane import Chosen, Dataplane
from emulation.switch.port import HIGHEST_PORT
from emulation.switch.program import Program
from emulation.switch.translate import Match, RequestError, Schema, TableInfo, invalid, missing

LARGEST_GROUP_ID = 65535
LARGEST_INSTANCE = 65535


@dataclass(slots=True)
class Entry:
    """A table entry as it was written, and its handle in the data plane."""

    message: p4runtime_pb2.TableEntry
    handle: int


class Pipeline:
    """One committed forwarding pipeline config.

    Raises:
        RequestError: the config does not describe a program that this switch runs.
    """

    def __init__(self, config: p4runtime_pb2.ForwardingPipelineConfig) -> None:
        try:
            program = Program(config.p4_device_config)
            self.schema = Schema(config.p4info, program)
            self.dataplane = Dataplane(compile_program(Generator(program).generate()), program)
        except RequestError:
            raise
        except EmulationError as wrong:
            raise invalid(str(wrong)) from wrong
        self.config = config
        self.program = program
        self.entries: dict[tuple[int, Match], Entry] = {}
        self.entry_counts: Counter[int] = Counter()
        self.defaults: dict[int, Entry] = {}
        for table_id, table in self.schema.tables.items():
            # The generated code inserts a program's own entries in their order: handles count from 1.
            for handle, (match, message) in enumerate(self.schema.const_entries(table), start=1):
                self.entries[(table_id, match)] = Entry(message, handle)
                self.entry_counts[table_id] += 1
            default = self.schema.initial_default(table)
            if default is not None:
                self.defaults[table_id] = Entry(default, 0)
        self.groups: dict[int, p4runtime_pb2.MulticastGroupEntry] = {}

    # ---- writing ----------------------------------------------------------------------------------------------

    def update(self, update: p4runtime_pb2.Update) -> None:
        """Apply one update; called inside `dataplane.writing()`.

        Raises:
            RequestError: refused; nothing has changed.
        """
        kind = update.entity.WhichOneof("entity")
        if update.type not in (update.INSERT, update.MODIFY, update.DELETE):
            raise invalid("an update is an INSERT, a MODIFY or a DELETE")
        if kind == "table_entry":
            self._table_entry(update.type, update.entity.table_entry)
        elif kind == "packet_replication_engine_entry":
            self._replication(update.type, update.entity.packet_replication_engine_entry)
        elif kind == "counter_entry":
            self._counter_entry(update.type, update.entity.counter_entry)
        elif kind == "direct_counter_entry":
            self._direct_counter_entry(update.type, update.entity.direct_counter_entry)
        else:
            raise RequestError(
                grpc.StatusCode.UNIMPLEMENTED,
                f"writing {kind or 'an empty entity'} is not supported; "
                "table entries, multicast groups and counters are",
            )

    def _table_entry(self, how: int, entry: p4runtime_pb2.TableEntry) -> None:
        table = self.schema.table(entry.table_id)
        name, index = table.table.name, table.table.index
        if entry.idle_timeout_ns or entry.HasField("meter_config"):
            raise RequestError(
                grpc.StatusCode.UNIMPLEMENTED, f"table {name}: idle timeouts and meters are not supported"
            )
        if entry.is_default_action:
            if how != p4runtime_pb2.Update.MODIFY:
                raise invalid(f"table {name}: a default action can only be modified")
            if table.info.const_default_action_id:
                raise RequestError(grpc.StatusCode.PERMISSION_DENIED, f"table {name}: its default action is constant")
            if not entry.HasField("action"):
                # Section 9.1.2: no action brings back the program's own.
                initial = self.schema.initial_default(table)
                if initial is None:
                    raise invalid(f"table {name}: the program has no default action to go back to")
                entry = initial
            self.dataplane.modify(index, 0, Chosen(*self.schema.action(table, entry.action, default=True)))
            self.defaults[entry.table_id] = Entry(entry, 0)
            return
        if table.info.is_const_table:
            raise RequestError(grpc.StatusCode.PERMISSION_DENIED, f"table {name}: its entries are constant")
        match = self.schema.match(table, entry)
        key = (entry.table_id, match)
        known = self.entries.get(key)
        if how == p4runtime_pb2.Update.INSERT:
            if known is not None:
                raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"table {name}: an entry with this key exists")
            if self.entry_counts[entry.table_id] >= table.info.size > 0:
                raise RequestError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"table {name} is full: {table.info.size} entries"
                )
            chosen = Chosen(*self.schema.action(table, entry.action))
            handle = self.dataplane.insert(index, match.value, match.mask, match.priority, chosen)
            self.entries[key] = Entry(entry, handle)
            self.entry_counts[entry.table_id] += 1
            return
        if known is None:
            raise missing(f"table {name}: no entry has this key")
        if how == p4runtime_pb2.Update.MODIFY:
            self.dataplane.modify(index, known.handle, Chosen(*self.schema.action(table, entry.action)))
            known.message = entry
        else:
            self.dataplane.delete(index, known.handle)
            del self.entries[key]
            self.entry_counts[entry.table_id] -= 1

    def _replication(self, how: int, entry: p4runtime_pb2.PacketReplicationEngineEntry) -> None:
        if entry.WhichOneof("type") != "multicast_group_entry":
            raise RequestError(grpc.StatusCode.UNIMPLEMENTED, "clone sessions are not supported; multicast groups are")
        group = entry.multicast_group_entry
        number = group.multicast_group_id
        if not 0 < number <= LARGEST_GROUP_ID:
            raise invalid(f"multicast group {number} is not in 1..{LARGEST_GROUP_ID}")
        if how == p4runtime_pb2.Update.INSERT and number in self.groups:
            raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"multicast group {number} exists")
        if how != p4runtime_pb2.Update.INSERT and number not in self.groups:
            raise missing(f"there is no multicast group {number}")
        if how == p4runtime_pb2.Update.DELETE:
            self.dataplane.group(number, [])
            del self.groups[number]
            return
        replicas = [(_replica_port(r), r.instance) for r in group.replicas]
        for port, instance in replicas:
            if not 0 <= port <= HIGHEST_PORT or instance > LARGEST_INSTANCE:
                raise invalid(
                    f"multicast group {number}: replica (port {port}, instance {instance}): ports are "
                    f"0..{HIGHEST_PORT} and instances 0..{LARGEST_INSTANCE}"
                )
        if len(set(replicas)) != len(replicas):
            raise invalid(f"multicast group {number}: a (port, instance) pair is given twice")
        self.dataplane.group(number, replicas)
        self.groups[number] = group

    def _counter_entry(self, how: int, entry: p4runtime_pb2.CounterEntry) -> None:
        if how != p4runtime_pb2.Update.MODIFY:
            raise invalid("a counter cell can only be modified")
        counter, size = self.schema.counter(entry.counter_id)
        if not entry.HasField("index") or not 0 <= entry.index.index < size:
            raise RequestError(grpc.StatusCode.OUT_OF_RANGE, f"the counter's cells are 0..{size - 1}")
        self.dataplane.set_counter(counter, entry.index.index, entry.data.packet_count, entry.data.byte_count)

    def _direct_counter_entry(self, how: int, entry: p4runtime_pb2.DirectCounterEntry) -> None:
        if how != p4runtime_pb2.Update.MODIFY:
            raise invalid("a direct counter can only be modified")
        table = self._counted_table(entry.table_entry.table_id)
        if entry.table_entry.is_default_action:
            known = self.defaults.get(entry.table_entry.table_id)
        else:
            known = self.entries.get((entry.table_entry.table_id, self.schema.match(table, entry.table_entry)))
        if known is None:
            raise missing(f"table {table.table.name}: no entry has this key")
        self.dataplane.set_hits(table.table.index, known.handle, entry.data.packet_count, entry.data.byte_count)

    def _counted_table(self, table_id: int) -> TableInfo:
        table = self.schema.table(table_id)
        if table_id not in self.schema.direct_counters:
            raise invalid(f"table {table.table.name} has no direct counter")
        return table

    # ---- reading ----------------------------------------------------------------------------------------------

    def read(self, entity: p4runtime_pb2.Entity) -> Iterable[p4runtime_pb2.Entity]:
        """Everything that an entity asks for; left-out ids and keys are wildcards.

        Raises:
            RequestError: no such thing can be read.
        """
        kind = entity.WhichOneof("entity")
        if kind == "table_entry":
            return self._read_table(entity.table_entry)
        if kind == "counter_entry":
            return self._read_counter(entity.counter_entry)
        if kind == "direct_counter_entry":
            return self._read_direct_counter(entity.direct_counter_entry)
        if kind == "packet_replication_engine_entry":
            return self._read_groups(entity.packet_replication_engine_entry)
        raise RequestError(grpc.StatusCode.UNIMPLEMENTED, f"reading {kind or 'an empty entity'} is not supported")

    def _select(self, wanted: p4runtime_pb2.TableEntry) -> Iterator[Entry]:
        """The entries that a read asks for."""
        if wanted.table_id and wanted.match:
            table = self.schema.table(wanted.table_id)
            known = self.entries.get((wanted.table_id, self.schema.match(table, wanted)))
            if known is not None:
                yield known
            return
        if wanted.table_id:
            self.schema.table(wanted.table_id)
        if wanted.is_default_action:
            yield from (entry for table_id, entry in self.defaults.items() if wanted.table_id in (0, table_id))
        else:
            yield from (entry for (table_id, _), entry in self.entries.items() if wanted.table_id in (0, table_id))

    def _hits(self, entry: Entry) -> p4runtime_pb2.CounterData:
        packets, bytes_ = self.dataplane.hits(self.schema.tables[entry.message.table_id].table.index, entry.handle)
        return p4runtime_pb2.CounterData(packet_count=packets, byte_count=bytes_)

    def _read_table(self, wanted: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.Entity]:
        for entry in self._select(wanted):
            found = p4runtime_pb2.Entity(table_entry=entry.message)
            if wanted.HasField("counter_data"):
                found.table_entry.counter_data.CopyFrom(self._hits(entry))
            yield found

    def _read_direct_counter(self, wanted: p4runtime_pb2.DirectCounterEntry) -> Iterator[p4runtime_pb2.Entity]:
        if wanted.table_entry.table_id:
            self._counted_table(wanted.table_entry.table_id)
        for entry in self._select(wanted.table_entry):
            if entry.message.table_id in self.schema.direct_counters:
                found = p4runtime_pb2.Entity()
                found.direct_counter_entry.table_entry.CopyFrom(entry.message)
                found.direct_counter_entry.data.CopyFrom(self._hits(entry))
                yield found

    def _read_counter(self, wanted: p4runtime_pb2.CounterEntry) -> Iterator[p4runtime_pb2.Entity]:
        for counter_id in [wanted.counter_id] if wanted.counter_id else list(self.schema.counters):
            counter, size = self.schema.counter(counter_id)
            if wanted.HasField("index") and not 0 <= wanted.index.index < size:
                raise RequestError(grpc.StatusCode.OUT_OF_RANGE, f"the counter's cells are 0..{size - 1}")
            for index in [wanted.index.index] if wanted.HasField("index") else range(size):
                packets, bytes_ = self.dataplane.counter(counter, index)
                cell = p4runtime_pb2.CounterEntry(counter_id=counter_id)
                cell.index.index = index
                cell.data.packet_count, cell.data.byte_count = packets, bytes_
                yield p4runtime_pb2.Entity(counter_entry=cell)

    def _read_groups(self, wanted: p4runtime_pb2.PacketReplicationEngineEntry) -> Iterator[p4runtime_pb2.Entity]:
        number = wanted.multicast_group_entry.multicast_group_id
        for group_id, group in list(self.groups.items()):
            if number in (0, group_id):
                entity = p4runtime_pb2.Entity()
                entity.packet_replication_engine_entry.multicast_group_entry.CopyFrom(group)
                yield entity


def _replica_port(replica: p4runtime_pb2.Replica) -> int:
    """The egress port of a replica, in the older or the newer spelling of P4Runtime."""
    if replica.WhichOneof("port_kind") == "port":
        return int.from_bytes(replica.port, "big")
    return int(replica.egress_port)


def load_config(program: bytes, p4info: str) -> p4runtime_pb2.ForwardingPipelineConfig:
    """A pipeline config from the compiler's two files.

    Raises:
        EmulationError: P4Info is not in protobuf's text format.
    """
    config = p4runtime_pb2.ForwardingPipelineConfig(p4_device_config=program)
    try:
        text_format.Parse(p4info, config.p4info, allow_unknown_field=True)
    except text_format.ParseError as wrong:
        raise EmulationError(f"the P4Info file is not in text format: {wrong}") from wrong
    return config
