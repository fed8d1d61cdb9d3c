"""Table entries with their direct counters and meters and idle timeouts (sections 9.1, 9.3.1, 9.4.1)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import grpc
from p4.v1 import p4runtime_pb2

from emulation.errors import SwitchMemoryError
from emulation.switch.dataplane import Chosen
from emulation.switch.p4runtime.action_profiles import Profiles
from emulation.switch.p4runtime.bytestrings import shortest
from emulation.switch.p4runtime.codec import Match, TableInfo, match_fields, shorten_action, shorten_match
from emulation.switch.p4runtime.context import INSERT, MODIFY, Loaded, only_modify
from emulation.switch.p4runtime.meter_config import counted, marked, rates
from emulation.switch.p4runtime.status import RequestError, invalid, missing


@dataclass(slots=True)
class Entry:
    """A table entry as written, and its state in the data plane.

    Attributes:
        message: without `meter` and the data plane's state, with canonical bytestrings.
        handle: of the data plane; 0 is the default entry.
        match: None for the default entry.
        meter: its direct meter's configuration.
        reported_s: when it was last written or reported idle (time.monotonic()).
    """

    message: p4runtime_pb2.TableEntry
    handle: int
    match: Match | None
    chosen: Chosen
    meter: p4runtime_pb2.MeterConfig | None = None
    reported_s: float = 0.0


class Tables:
    """The entries of all tables. Writes are under the data plane's writing()."""

    def __init__(self, loaded: Loaded, profiles: Profiles) -> None:
        self._loaded, self._profiles = loaded, profiles
        self._entries: dict[tuple[int, Match], Entry] = {}
        self._defaults: dict[int, Entry] = {}
        self._counts: Counter[int] = Counter()
        self._aging: dict[tuple[int, Match], Entry] = {}
        schema = loaded.schema
        for table_id, table in schema.tables.items():
            # The generated code inserts a program's own entries in their order: handles count from 1.
            for handle, (match, message) in enumerate(schema.const_entries(table), start=1):
                chosen = (
                    Chosen(*schema.action(table, message.action.action)) if message.HasField("action") else Chosen(-1)
                )
                self._entries[(table_id, match)] = Entry(message, handle, match, chosen)
                self._counts[table_id] += 1
            default = schema.initial_default(table)
            if default is not None:
                self._defaults[table_id] = Entry(default, 0, None, Chosen(-1))

    @property
    def aging(self) -> bool:
        """Whether any entry has an idle timeout."""
        return bool(self._aging)

    # ---- writing (section 9.1) --------------------------------------------------------------------------------

    def update(self, how: int, entry: p4runtime_pb2.TableEntry) -> None:
        """Apply one update.

        Raises:
            RequestError: refused; nothing has changed.
        """
        table = self._loaded.schema.table(entry.table_id)
        self._check_resources(table, entry)
        if entry.is_default_action:
            self._update_default(how, table, entry)
            return
        name = table.table.name
        if table.info.is_const_table and (how != MODIFY or entry.HasField("action")):
            raise RequestError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"table {name}: its entries are constant; only their direct counters and meters can be modified, "
                "without an action",
            )
        match = self._loaded.schema.match(table, entry)
        known = self._entries.get((entry.table_id, match))
        if how == INSERT:
            self._insert(table, entry, match, known)
        elif known is None:
            raise missing(f"table {name}: no entry has this key")
        elif how == MODIFY:
            self._modify(table, entry, known)
        else:
            self._delete(table, known)

    def _check_resources(self, table: TableInfo, entry: p4runtime_pb2.TableEntry) -> None:
        """Check direct resources and idle timeouts, which only some tables have (sections 9.1.6 and 9.1.7)."""
        name, schema = table.table.name, self._loaded.schema
        if entry.HasField("time_since_last_hit"):
            raise invalid(f"table {name}: time_since_last_hit is only for reading")
        if entry.idle_timeout_ns < 0:
            raise invalid(f"table {name}: idle_timeout_ns is 0 (never) or more")
        if entry.idle_timeout_ns and (entry.is_default_action or not self._ages(table)):
            raise invalid(f"table {name}: its default entry and tables without idle timeouts have idle_timeout_ns 0")
        if entry.HasField("counter_data") and entry.table_id not in schema.direct_counters:
            raise invalid(f"table {name} has no direct counter: counter_data stays unset")
        if entry.HasField("meter_config") or entry.HasField("meter_counter_data"):
            self._rates(table, entry.meter_config if entry.HasField("meter_config") else None)

    def _ages(self, table: TableInfo) -> bool:
        return bool(table.info.idle_timeout_behavior) and table.table.ages

    def _rates(self, table: TableInfo, config: p4runtime_pb2.MeterConfig | None) -> list[int] | None:
        table_id, what = table.info.preamble.id, f"table {table.table.name}"
        if table_id not in self._loaded.schema.direct_meters:
            raise invalid(f"{what} has no direct meter")
        return rates(what, self._loaded.schema.direct_meters[table_id], config)

    def _update_default(self, how: int, table: TableInfo, entry: p4runtime_pb2.TableEntry) -> None:
        """Update a default entry (section 9.1.3)."""
        name = table.table.name
        only_modify(how, f"table {name}: a default entry")
        if entry.match or entry.priority:
            raise invalid(f"table {name}: a default entry has no match fields and no priority")
        if table.info.const_default_action_id:
            raise RequestError(grpc.StatusCode.PERMISSION_DENIED, f"table {name}: its default action is constant")
        stored = _stripped(entry)
        if not entry.HasField("action"):
            # Without an action, the program's own is restored.
            initial = self._loaded.schema.initial_default(table)
            if initial is None:
                raise invalid(f"table {name}: the program has no default action to go back to")
            stored = initial
        elif entry.action.WhichOneof("type") != "action":
            raise invalid(f"table {name}: a default entry has an action of its own")
        chosen = Chosen(*self._loaded.schema.action(table, stored.action.action, default=True))
        self._loaded.dataplane.modify(table.table.index, 0, chosen)
        made = self._defaults[entry.table_id] = Entry(stored, 0, None, chosen)
        self._set_resources(table, made, entry)

    def _insert(self, table: TableInfo, entry: p4runtime_pb2.TableEntry, match: Match, known: Entry | None) -> None:
        name, size = table.table.name, table.info.size
        if known is not None:
            raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"table {name}: an entry with this key exists")
        if self._counts[entry.table_id] >= size > 0:
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"table {name} is full: {size} entries")
        chosen = self._choose(table, entry)
        try:
            handle = self._loaded.dataplane.insert(table.table.index, match.value, match.mask, match.priority, chosen)
        except SwitchMemoryError:
            self._release(table, entry.action, chosen)
            raise
        made = self._entries[(entry.table_id, match)] = Entry(_stripped(entry), handle, match, chosen)
        self._counts[entry.table_id] += 1
        self._set_resources(table, made, entry)

    def _modify(self, table: TableInfo, entry: p4runtime_pb2.TableEntry, known: Entry) -> None:
        stored = _stripped(entry)
        if entry.HasField("action"):
            chosen = self._choose(table, entry, known.chosen)
            self._loaded.dataplane.modify(table.table.index, known.handle, chosen)
            self._release(table, known.message.action, known.chosen)
            known.chosen = chosen
        else:
            stored.action.CopyFrom(known.message.action)
            stored.is_const = known.message.is_const
        known.message = stored
        self._set_resources(table, known, entry)

    def _delete(self, table: TableInfo, known: Entry) -> None:
        assert known.match is not None
        self._loaded.dataplane.delete(table.table.index, known.handle)
        self._release(table, known.message.action, known.chosen)
        key = (known.message.table_id, known.match)
        del self._entries[key]
        self._aging.pop(key, None)
        self._counts[key[0]] -= 1

    def _choose(self, table: TableInfo, entry: p4runtime_pb2.TableEntry, instead: Chosen | None = None) -> Chosen:
        kind = entry.action.WhichOneof("type")
        if kind is None:
            raise invalid(f"table {table.table.name}: an entry needs an action")
        if table.table.profile is not None:
            return self._profiles.choose(table, entry.action, instead)
        if kind != "action":
            raise invalid(f"table {table.table.name} has no action profile: an entry has an action of its own")
        return Chosen(*self._loaded.schema.action(table, entry.action.action))

    def _release(self, table: TableInfo, action: p4runtime_pb2.TableAction, chosen: Chosen) -> None:
        if table.table.profile is not None:
            self._profiles.release(table, action, chosen)

    def _set_resources(self, table: TableInfo, known: Entry, entry: p4runtime_pb2.TableEntry) -> None:
        dataplane, index = self._loaded.dataplane, table.table.index
        if entry.table_id in self._loaded.schema.direct_meters:
            self._set_meter(table, known, entry.meter_config if entry.HasField("meter_config") else None)
        if entry.HasField("counter_data"):
            hits = entry.counter_data
            dataplane.set_hits(index, known.handle, hits.packet_count, hits.byte_count)
        if entry.HasField("meter_counter_data"):
            dataplane.set_entry_marked(index, known.handle, marked(entry.meter_counter_data))
        if known.match is not None:
            key = (entry.table_id, known.match)
            self._aging.pop(key, None)
            if entry.idle_timeout_ns:
                known.reported_s = time.monotonic()
                self._aging[key] = known

    def _set_meter(self, table: TableInfo, known: Entry, config: p4runtime_pb2.MeterConfig | None) -> None:
        self._loaded.dataplane.set_entry_meter(table.table.index, known.handle, self._rates(table, config))
        known.meter = None
        if config is not None:
            known.meter = p4runtime_pb2.MeterConfig()
            known.meter.CopyFrom(config)

    # ---- direct counters and meters by themselves (sections 9.3.1, 9.4.1) -------------------------------------

    def update_counter(self, how: int, entry: p4runtime_pb2.DirectCounterEntry) -> None:
        """Apply one update.

        Raises:
            RequestError: refused; nothing has changed.
        """
        only_modify(how, "a direct counter")
        table = self._counted(entry.table_entry.table_id)
        known = self._known(table, entry.table_entry)
        if entry.HasField("data"):
            packets, bytes_ = entry.data.packet_count, entry.data.byte_count
            self._loaded.dataplane.set_hits(table.table.index, known.handle, packets, bytes_)

    def update_meter(self, how: int, entry: p4runtime_pb2.DirectMeterEntry) -> None:
        """Apply one update.

        Raises:
            RequestError: refused; nothing has changed.
        """
        only_modify(how, "a direct meter")
        table = self._loaded.schema.table(entry.table_entry.table_id)
        self._rates(table, None)
        known = self._known(table, entry.table_entry)
        self._set_meter(table, known, entry.config if entry.HasField("config") else None)
        if entry.HasField("counter_data"):
            self._loaded.dataplane.set_entry_marked(table.table.index, known.handle, marked(entry.counter_data))

    def _counted(self, table_id: int) -> TableInfo:
        table = self._loaded.schema.table(table_id)
        if table_id not in self._loaded.schema.direct_counters:
            raise invalid(f"table {table.table.name} has no direct counter")
        return table

    def _known(self, table: TableInfo, wanted: p4runtime_pb2.TableEntry) -> Entry:
        """The entry with a given key."""
        table_id = wanted.table_id
        if wanted.is_default_action:
            known = self._defaults.get(table_id)
        else:
            known = self._entries.get((table_id, self._loaded.schema.match(table, wanted)))
        return known if known is not None else _no_entry(table)

    # ---- reading (section 9.1.5) ------------------------------------------------------------------------------

    def read(self, wanted: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.Entity]:
        """The entries that a request selects, with the direct resources whose fields it sets.

        Raises:
            RequestError: there is no such table, key or resource.
        """
        table_id = wanted.table_id
        if table_id:
            table = self._loaded.schema.table(table_id)
            if wanted.HasField("time_since_last_hit") and not self._ages(table):
                raise invalid(f"table {table.table.name} has no idle timeouts: time_since_last_hit stays unset")
        for entry in self._select(wanted):
            yield p4runtime_pb2.Entity(table_entry=self._filled(entry, wanted))

    def _filled(self, entry: Entry, wanted: p4runtime_pb2.TableEntry) -> p4runtime_pb2.TableEntry:
        found = p4runtime_pb2.TableEntry()
        found.CopyFrom(entry.message)
        table = self._loaded.schema.tables[found.table_id]
        if wanted.HasField("counter_data") and found.table_id in self._loaded.schema.direct_counters:
            found.counter_data.CopyFrom(self._hits(entry))
        if wanted.HasField("meter_config") and entry.meter is not None:
            found.meter_config.CopyFrom(entry.meter)
        if wanted.HasField("meter_counter_data") and found.table_id in self._loaded.schema.direct_meters:
            found.meter_counter_data.CopyFrom(self._marked(entry))
        if wanted.HasField("time_since_last_hit") and self._ages(table) and entry.match is not None:
            idle_us = self._loaded.dataplane.idle_us(table.table.index, entry.handle)
            found.time_since_last_hit.elapsed_ns = 1000 * idle_us
        return found

    def _select(self, wanted: p4runtime_pb2.TableEntry) -> Iterator[Entry]:
        table_id = wanted.table_id
        kept = self._defaults if wanted.is_default_action else self._entries
        if not table_id:
            yield from list(kept.values())
            return
        key = None
        if wanted.match:
            table = self._loaded.schema.table(table_id)
            key = match_fields(
                f"table {table.table.name}",
                table.info.match_fields,
                table.kinds,
                table.table.widths,
                wanted.match,
                self._loaded.schema.names,
            )[:2]
        for entry in list(kept.values()):
            message = entry.message
            if message.table_id != table_id:
                continue
            if key is not None and (
                entry.match is None or [*map(list, (entry.match.value, entry.match.mask))] != [*key]
            ):
                continue
            if wanted.priority not in (0, message.priority):
                continue
            if wanted.controller_metadata not in (0, message.controller_metadata):
                continue
            if wanted.metadata not in (b"", message.metadata):
                continue
            if wanted.action.action.action_id not in (0, message.action.action.action_id):
                continue
            yield entry

    def _hits(self, entry: Entry) -> p4runtime_pb2.CounterData:
        index = self._loaded.schema.tables[entry.message.table_id].table.index
        packets, bytes_ = self._loaded.dataplane.hits(index, entry.handle)
        return p4runtime_pb2.CounterData(packet_count=packets, byte_count=bytes_)

    def _marked(self, entry: Entry) -> p4runtime_pb2.MeterCounterData:
        index = self._loaded.schema.tables[entry.message.table_id].table.index
        return counted(self._loaded.dataplane.entry_marked(index, entry.handle))

    def read_counters(self, wanted: p4runtime_pb2.DirectCounterEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Direct counters of the entries that a request selects.

        Raises:
            RequestError: the table has none, or no entry has this key.
        """
        if wanted.table_entry.table_id:
            self._counted(wanted.table_entry.table_id)
        for entry in self._required(wanted.table_entry):
            if entry.message.table_id in self._loaded.schema.direct_counters:
                found = p4runtime_pb2.Entity()
                found.direct_counter_entry.table_entry.CopyFrom(entry.message)
                found.direct_counter_entry.data.CopyFrom(self._hits(entry))
                yield found

    def read_meters(self, wanted: p4runtime_pb2.DirectMeterEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Direct meters of the entries that a request selects; the config is unset if the meter marks everything green.

        Raises:
            RequestError: the table has none, or no entry has this key.
        """
        if wanted.table_entry.table_id:
            self._rates(self._loaded.schema.table(wanted.table_entry.table_id), None)
        for entry in self._required(wanted.table_entry):
            if entry.message.table_id in self._loaded.schema.direct_meters:
                found = p4runtime_pb2.Entity()
                found.direct_meter_entry.table_entry.CopyFrom(entry.message)
                if entry.meter is not None:
                    found.direct_meter_entry.config.CopyFrom(entry.meter)
                if wanted.HasField("counter_data"):
                    found.direct_meter_entry.counter_data.CopyFrom(self._marked(entry))
                yield found

    def _required(self, wanted: p4runtime_pb2.TableEntry) -> list[Entry]:
        found = list(self._select(wanted))
        if not found and wanted.match:
            _no_entry(self._loaded.schema.table(wanted.table_id))
        return found

    # ---- current state, for undoing updates ------------------------------------------------------------------------

    def current(self, wanted: p4runtime_pb2.TableEntry) -> p4runtime_pb2.TableEntry:
        """One entry, in the form of the write that would restore it.

        Raises:
            RequestError: there is no such entry.
        """
        table = self._loaded.schema.table(wanted.table_id)
        entry = self._known(table, wanted)
        everything = p4runtime_pb2.TableEntry()
        everything.counter_data.SetInParent()
        everything.meter_config.SetInParent()
        everything.meter_counter_data.SetInParent()
        found = self._filled(entry, everything)
        if table.info.is_const_table and entry.match is not None:
            found.ClearField("action")
        return found

    def written(self) -> Iterator[p4runtime_pb2.Entity]:
        """All entries and default entries, each in the form of the write that would restore it."""
        tables = self._loaded.schema.tables
        for entry in [*self._entries.values(), *self._defaults.values()]:
            if entry.match is not None or not tables[entry.message.table_id].info.const_default_action_id:
                yield p4runtime_pb2.Entity(table_entry=self.current(entry.message))

    def initial(self) -> list[p4runtime_pb2.Entity]:
        """The initial entries of tables whose entries can be deleted."""
        tables = self._loaded.schema.tables
        return [
            p4runtime_pb2.Entity(table_entry=entry.message)
            for entry in self._entries.values()
            if not tables[entry.message.table_id].info.is_const_table
        ]

    # ---- idle timeouts (section 16.5) -------------------------------------------------------------------------

    def restart(self) -> None:
        """Restart all idle timeouts."""
        for entry in self._aging.values():
            entry.reported_s = time.monotonic()

    def expired(self) -> list[p4runtime_pb2.TableEntry]:
        """The entries that no packet has hit for their timeout, and which were not reported in the meantime."""
        now, found = time.monotonic(), []
        for entry in self._aging.values():
            timeout_ns = entry.message.idle_timeout_ns
            if (now - entry.reported_s) * 1e9 < timeout_ns:
                continue
            index = self._loaded.schema.tables[entry.message.table_id].table.index
            if self._loaded.dataplane.idle_us(index, entry.handle) * 1000 >= timeout_ns:
                entry.reported_s = now
                found.append(entry.message)
        return found


def _stripped(entry: p4runtime_pb2.TableEntry) -> p4runtime_pb2.TableEntry:
    """A copy in the form that is read back: direct resources are stored elsewhere, bytestrings are canonical."""
    stored = p4runtime_pb2.TableEntry()
    stored.CopyFrom(entry)
    for field in ("counter_data", "meter_config", "meter_counter_data", "is_const"):
        stored.ClearField(field)
    shorten_match(stored.match)
    kind = stored.action.WhichOneof("type") if stored.HasField("action") else None
    if kind == "action":
        shorten_action(stored.action.action)
    elif kind == "action_profile_action_set":
        for each in stored.action.action_profile_action_set.action_profile_actions:
            shorten_action(each.action)
            if each.watch_port:
                each.watch_port = shortest(each.watch_port)
    return stored


def _no_entry(table: TableInfo) -> NoReturn:
    raise missing(f"table {table.table.name}: no entry has this key")
