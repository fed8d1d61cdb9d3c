"""A switch on this machine for real hosts: they reach it by UDP at one of its addresses, as ranks on loopback do.

Each host has a UDP port of the switch to itself. What arrives there gets the headers that a network card would deliver, with
the host's own address as its source.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from emulation.networks.cleanup import cleanup_record
from emulation.networks.switch_processes import (
    Port,
    SwitchKind,
    SwitchProcesses,
    start_controller,
    start_switch,
    started,
)
from hostlib.protocol.addresses import fabric_address, fabric_endpoint
from hostlib.system.machine import process_cpu_seconds
from hostlib.system.process import Process

NAME = "switch"


@dataclass(frozen=True, slots=True)
class SwitchHere:
    """A running switch and its controller.

    Attributes:
        controller: its URL, as hosts reach it.
    """

    controller: str
    process: Process

    @property
    def alive(self) -> bool:
        return self.process.alive

    def cpu_s(self) -> float:
        """CPU seconds so far; 0 once it is gone."""
        return process_cpu_seconds(self.process.pid)


@contextmanager
def switch_here(address: str, hosts: int, seed: int = 0) -> Iterator[SwitchHere]:
    """Run an embedded switch and its controller for the duration of the block; nothing of them is left afterwards.

    Anybody who reaches the address can join, without TLS and without a token.

    Args:
        address: of this machine, as hosts reach it.
        hosts: that use the switch at a time, servers included.

    Raises:
        TopologyError: one of them did not start, as with an address of another machine.
        CleanupError: they cannot be recorded.
    """
    with cleanup_record() as record:
        processes = SwitchProcesses(record)
        try:
            ports = [Port(number, f"udp:{address}:0") for number in range(1, hosts + 1)]
            inside = ("--udp-destination", fabric_endpoint())
            switch = started(start_switch(processes, NAME, SwitchKind.EMBEDDED, ports, seed, inside))
            described = {
                "name": NAME,
                "p4rt": switch.p4rt,
                "device_id": switch.device_id,
                "address": fabric_address(),
                "ports": {str(number): end for number, end in switch.ports.items()},
            }
            url = start_controller(processes, address, {"switches": [described]})
            yield SwitchHere(url, record.processes()[NAME])
        finally:
            processes.stop()
