"""The `simulation` command: its commands are in simulation/commands/, a module each."""

from __future__ import annotations

import sys

import click

from hostlib.errors import HostlibError
from simulation.commands.paper import paper
from simulation.commands.run import run_
from simulation.commands.sweep import sweep
from simulation.commands.trace import trace
from simulation.errors import SimulationError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """What a mechanism would take on a network that is not here."""


for command in (run_, trace, paper, sweep):
    main.add_command(command)


def run() -> None:
    """Entry point: errors of netfold become one line and exit code 1."""
    try:
        main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except (SimulationError, HostlibError) as wrong:
        click.echo(f"error: {wrong}", err=True)
        sys.exit(1)
