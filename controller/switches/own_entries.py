"""What a switch is told of itself and its surroundings: its entries that belong to no job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from p4.v1 import p4runtime_pb2

from controller.switches.table_entries import Names
from controller.topology import Switch, Topology
from hostlib.protocol.addresses import SWITCH_MAC


@dataclass(frozen=True, slots=True)
class OwnEntries:
    """A switch's own entries.

    Attributes:
        address, mac: the fabric's own.
        forwarding: MAC address of a host -> port that leads there.
        flooded: ports with hosts, which may send each other ARP requests.
        sources: fabric address of each other switch -> port that leads there.
        cables: ports with cables to other switches; `cpu_port` is None if they cannot be checked.
    """

    address: str
    mac: int = SWITCH_MAC
    forwarding: Mapping[str, int] = field(default_factory=dict)
    flooded: Sequence[int] = ()
    sources: Mapping[str, int] = field(default_factory=dict)
    cables: Sequence[int] = ()
    cpu_port: int | None = None

    @classmethod
    def of(cls, switch: Switch, topology: Topology) -> OwnEntries:
        return cls(
            switch.address,
            switch.mac,
            topology.forwarding(switch.name),
            topology.flooded(switch),
            topology.fabric_sources(switch.name),
            topology.trunks(switch),
            switch.cpu_port,
        )

    def entities(self, names: Names) -> list[p4runtime_pb2.Entity]:
        own = [names.fabric_address(self.address), names.fabric_mac(self.address, self.mac)]
        own += names.fabric_sources(self.address, self.sources)
        if self.cpu_port is not None:
            own += names.cables(self.cpu_port, self.cables)
        own += [names.host(mac, port) for mac, port in self.forwarding.items()]
        return [*own, *(names.flood(self.flooded) if self.flooded else [])]
