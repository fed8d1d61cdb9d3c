"""The `hostlib` command: its commands are in hostlib/commands/, a module each."""

from __future__ import annotations

from hostlib import commands
from hostlib.errors import HostlibError
from hostlib.system.command_group import program
from hostlib.system.exit_status import end_with


@program(commands)
def main() -> None:
    """Train models with a collective mechanism, and measure and inspect mechanisms.

    On several machines, or with your own launcher, run torchrun ... -m hostlib.train --mechanism inagg+mcast.
    """


def run() -> None:
    """Entry point of `hostlib`."""
    end_with(lambda: main(standalone_mode=False), HostlibError, at_once=True)
