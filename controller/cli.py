"""The `controller` command: its commands are in controller/commands/, a module each."""

from __future__ import annotations

from controller import commands
from controller.errors import ControllerError
from hostlib.system.command_group import program
from hostlib.system.exit_status import end_with


@program(commands)
def main() -> None:
    """Who may use which slots of the switch, and who gets the results.

    Ranks join by HTTP (see http://ADDRESS/docs while it runs); entries go to the switch by P4Runtime. Training goes on
    when the controller dies: start it again and it takes over the switch it finds.
    """


def run() -> None:
    """Entry point: errors of netfold become one line and exit code 1."""
    end_with(lambda: main(standalone_mode=False), ControllerError)
