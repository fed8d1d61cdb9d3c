"""What hosts' cores let through, from measured costs of a byte, a packet and a sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hostlib.mechanisms.mechanism import Mechanism
from hostlib.protocol.slots import LARGEST_POOLS
from hostlib.schedules.schedule import FabricUse, Receive, Schedule, Symmetry, server, worker
from hostlib.system.host_costs import HostCosts
from simulation.errors import SimulationError

SAMPLE = 64  # workers whose operations stand for all


@dataclass(frozen=True, slots=True)
class HostRates:
    """Hosts with measured costs.

    Attributes:
        cores: of a host, for as many lanes of the slot protocol, up to LARGEST_POOLS. What else a rank does, one core does.

    Raises:
        SimulationError: no core.
    """

    costs: HostCosts
    cores: int

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise SimulationError(f"--cores must be at least 1, not {self.cores}")

    @property
    def lanes(self) -> int:
        return min(self.cores, LARGEST_POOLS)

    @property
    def tcp_bits_s(self) -> float:
        return 8e9 * self.costs.tcp_gb_s

    def slot_bits_s(self, slot_bytes: int) -> float:
        """Values that all lanes pack, send, receive and unpack, each way.

        Args:
            slot_bytes: values in a packet.
        """
        packing_s = (1 / self.costs.pack_gb_s + 1 / self.costs.unpack_gb_s) / 1e9
        return 8 * self.lanes / (packing_s + self._packet_s(slot_bytes))

    def of(self, mechanism: Mechanism, workers: int, size: int, slot_bytes: int) -> tuple[float, float]:
        """Values that a worker's and a server's host let through in each direction at the same time, bit/s.

        Args:
            size: of the largest tensor, bytes.
            slot_bytes: values in a packet of the slot protocol.

        Raises:
            HostlibError: see Mechanism.schedule.
        """
        use = mechanism.fabric_use if mechanism.needs_fabric else None
        if use is not None and use is not FabricUse.MULTICAST:
            # A server sends on what the switch has summed, as it comes.
            return self.slot_bits_s(slot_bytes), 8 * self.lanes / self._packet_s(slot_bytes)
        byte_s = 1 / (1e9 * self.costs.tcp_gb_s)
        if use is FabricUse.MULTICAST:  # One thread; the rest of the schedule goes by TCP.
            byte_s = max(byte_s, self._packet_s(slot_bytes))
        schedule = mechanism.schedule(workers, size=size)
        of_workers, of_servers = (
            8 / (byte_s + summed(schedule, names) / (1e9 * self.costs.add_gb_s))
            for names in (_workers(schedule), (server(number) for number in range(len(schedule.servers))))
        )
        return of_workers, of_servers

    def _packet_s(self, slot_bytes: int) -> float:
        """A core's time for a byte of values in packets."""
        return 1 / (self.costs.packets_per_s * slot_bytes)


def _workers(schedule: Schedule) -> Iterator[str]:
    """Workers that stand for all."""
    count = schedule.world_size if schedule.symmetry is Symmetry.NONE else 1
    return (worker(rank) for rank in range(0, count, -(-count // SAMPLE)))


def summed(schedule: Schedule, nodes: Iterator[str]) -> float:
    """Share of what nodes receive that they add to their own."""
    received = [each.reduce for node in nodes for each in schedule.nodes[node] if isinstance(each, Receive)]
    return sum(received) / len(received) if received else 0.0
