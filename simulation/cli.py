"""The `simulation` command: its commands are in simulation/commands/, a module each."""

from __future__ import annotations

from hostlib.errors import HostlibError
from hostlib.system.command_group import program
from hostlib.system.exit_status import end_with
from simulation import commands
from simulation.errors import SimulationError


@program(commands)
def main() -> None:
    """Predict how long an iteration takes on a given network, by simulation."""


def run() -> None:
    """Entry point: errors of netfold become one line and exit code 1."""
    end_with(lambda: main(standalone_mode=False), SimulationError, HostlibError)
