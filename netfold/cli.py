"""The `netfold` command: all of netfold's commands, mounted from their rooms."""

from __future__ import annotations

import sys

import hostlib.commands
from controller.errors import ControllerError
from emulation.errors import EmulationError
from hostlib.errors import HostlibError
from hostlib.system.command_group import program
from hostlib.system.exit_status import end_with
from netfold import commands
from netfold.first_page import FirstPage
from simulation.errors import SimulationError


@program(commands, FirstPage, also=(hostlib.commands,))
def main() -> None:
    """A testbed for in-network aggregation and multicast in distributed training.

    `import netfold` has the same in Python (docs/api.md).
    """


def run() -> None:
    """Entry point: netfold's errors become one line and exit code 1."""
    end_with(
        lambda: main(standalone_mode=False),
        HostlibError,
        SimulationError,
        EmulationError,
        ControllerError,
        at_once=lambda: "torch" in sys.modules,
    )
