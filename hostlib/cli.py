"""The `hostlib` command: its commands are in hostlib/commands/, a module each."""

from __future__ import annotations

import click

from hostlib import commands
from hostlib.errors import HostlibError
from hostlib.system.command_group import FolderGroup
from hostlib.system.exit_status import end_with


@click.group(
    cls=FolderGroup,
    package=commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="netfold")
def main() -> None:
    """Train with a collective mechanism, and look at what it does.

    On several machines, or under your own launcher: torchrun ... -m hostlib.train --mechanism inagg+mcast
    """


def run() -> None:
    """Entry point of `hostlib`."""
    end_with(lambda: main(standalone_mode=False), HostlibError, at_once=True)
