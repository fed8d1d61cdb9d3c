"""Indirect counters and meters (sections 9.3.2, 9.4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from p4.v1 import p4runtime_pb2

from emulation.switch.p4runtime.codec import the_cells
from emulation.switch.p4runtime.context import Loaded, only_modify
from emulation.switch.p4runtime.meter_config import counted, marked, rates
from emulation.switch.p4runtime.status import missing


class Cells:
    """The arrays of indirect counters and meters. Writes are under the data plane's writing()."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        # Of meters: the configurations, by id and index; other cells mark everything green.
        self._configs: dict[tuple[int, int], p4runtime_pb2.MeterConfig] = {}

    # ---- counters (section 9.3.2) -----------------------------------------------------------------------------

    def update_counter(self, how: int, entry: p4runtime_pb2.CounterEntry) -> None:
        """Set one cell, or all of an array if there is no index.

        Raises:
            RequestError: refused; nothing has changed.
        """
        only_modify(how, "a counter cell")
        counter, size = self._loaded.schema.counter(entry.counter_id)
        indices = the_cells("counter", entry, size)
        if entry.HasField("data"):
            for index in indices:
                self._loaded.dataplane.set_counter(counter, index, entry.data.packet_count, entry.data.byte_count)

    def read_counters(self, wanted: p4runtime_pb2.CounterEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Cells; a counter id of 0 and a missing index are wildcards.

        Raises:
            RequestError: there is no such counter or cell.
        """
        for counter_id in [wanted.counter_id] if wanted.counter_id else list(self._loaded.schema.counters):
            counter, size = self._loaded.schema.counter(counter_id)
            for index in the_cells("counter", wanted, size):
                packets, bytes_ = self._loaded.dataplane.counter(counter, index)
                cell = p4runtime_pb2.CounterEntry(counter_id=counter_id)
                cell.index.index = index
                cell.data.packet_count, cell.data.byte_count = packets, bytes_
                yield p4runtime_pb2.Entity(counter_entry=cell)

    # ---- meters (section 9.4.2) -------------------------------------------------------------------------------

    def _meter(self, meter_id: int) -> tuple[int, int, Any]:
        meters = self._loaded.schema.meters
        if meter_id not in meters:
            raise missing(f"no meter has id {meter_id:#x}")
        return meters[meter_id]

    def update_meter(self, how: int, entry: p4runtime_pb2.MeterEntry) -> None:
        """Configure one cell, or all of an array if there is no index; without a config a cell marks everything green.

        Raises:
            RequestError: refused; nothing has changed.
        """
        only_modify(how, "a meter cell")
        meter, size, spec = self._meter(entry.meter_id)
        config = entry.config if entry.HasField("config") else None
        meter_rates = rates(f"meter {entry.meter_id:#x}", spec, config)
        for index in the_cells("meter", entry, size):
            self._loaded.dataplane.set_meter(meter, index, meter_rates)
            if entry.HasField("counter_data"):
                self._loaded.dataplane.set_marked(meter, index, marked(entry.counter_data))
            self._configs.pop((entry.meter_id, index), None)
            if config is not None:
                kept = self._configs[(entry.meter_id, index)] = p4runtime_pb2.MeterConfig()
                kept.CopyFrom(config)

    def read_meters(self, wanted: p4runtime_pb2.MeterEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Configurations, and counters per colour if `counter_data` is set.

        A meter id of 0 and a missing index are wildcards.

        Raises:
            RequestError: there is no such meter or cell.
        """
        for meter_id in [wanted.meter_id] if wanted.meter_id else list(self._loaded.schema.meters):
            meter, size, _ = self._meter(meter_id)
            for index in the_cells("meter", wanted, size):
                cell = p4runtime_pb2.MeterEntry(meter_id=meter_id)
                cell.index.index = index
                if (meter_id, index) in self._configs:
                    cell.config.CopyFrom(self._configs[(meter_id, index)])
                if wanted.HasField("counter_data"):
                    cell.counter_data.CopyFrom(counted(self._loaded.dataplane.marked(meter, index)))
                yield p4runtime_pb2.Entity(meter_entry=cell)
