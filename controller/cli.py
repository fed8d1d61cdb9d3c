"""The `controller` command: its commands are in controller/commands/, a module each."""

from __future__ import annotations

import click

from controller import commands
from controller.errors import ControllerError
from hostlib.system.command_group import FolderGroup
from hostlib.system.exit_status import end_with


@click.group(
    cls=FolderGroup,
    package=commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="netfold")
def main() -> None:
    """Who may use which slots of the switch, and who gets the results.

    Ranks join by HTTP (see http://ADDRESS/docs while it runs); entries go to the switch by P4Runtime. Training goes on
    when the controller dies: start it again and it takes over the switch it finds.
    """


def run() -> None:
    """Entry point: errors of netfold become one line and exit code 1."""
    end_with(lambda: main(standalone_mode=False), ControllerError)
