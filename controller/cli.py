"""The `controller` command: its commands are in controller/commands/, a module each."""

from __future__ import annotations

from controller import commands
from controller.errors import ControllerError
from hostlib.system.command_group import program
from hostlib.system.exit_status import end_with


@program(commands)
def main() -> None:
    """Run the controller, which gives jobs slots of the switch and sets up multicast.

    Ranks join over HTTP (see http://ADDRESS/docs while it runs); the controller writes table entries over P4Runtime.
    Training continues when the controller dies: start it again, and it takes over the switches that still run.
    """


def run() -> None:
    """Entry point: errors of netfold become one line and exit code 1."""
    # At once: gRPC's threads may still wait for a switch whose session an interrupt has ended.
    end_with(lambda: main(standalone_mode=False), ControllerError, at_once=True)
