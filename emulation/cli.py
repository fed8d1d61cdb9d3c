"""The `emulation` command: its commands are in emulation/commands/, a module each."""

from __future__ import annotations

from emulation import commands
from emulation.errors import EmulationError
from hostlib.errors import HostlibError
from hostlib.system.command_group import program
from hostlib.system.exit_status import end_with
from simulation.errors import SimulationError


@program(commands)
def main() -> None:
    """Run experiments with real packets through a P4 switch, on one machine."""


def run() -> None:
    """Entry point: errors of netfold become one line and exit code 1."""
    end_with(lambda: main(standalone_mode=False), EmulationError, HostlibError, SimulationError)
