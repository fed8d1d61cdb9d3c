"""The `emulation` command: its commands are in emulation/commands/, a module each."""

from __future__ import annotations

import click

from emulation import commands
from emulation.errors import EmulationError
from hostlib.errors import HostlibError
from hostlib.system.command_group import FolderGroup
from hostlib.system.exit_status import end_with
from simulation.errors import SimulationError


@click.group(
    cls=FolderGroup,
    package=commands,
    first=("run", "demo", "report", "switch", "conformance", "bench", "topology", "clean"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def main() -> None:
    """Real packets through a real P4 program, on one machine and without root.

    \b
    emulation run          compare mechanisms on a network of virtual hosts
    emulation demo         train one model over several mechanisms and compare
    emulation report       make a page of an experiment's results
    emulation switch       run the embedded P4 switch by hand
    emulation conformance  run p4c's own v1model tests through the embedded switch
    emulation bench        measure how fast it is here
    emulation topology     say what a declared network is made of
    emulation clean        remove what killed runs left behind
    """


def run() -> None:
    """Entry point: errors of netfold become one line and exit code 1."""
    end_with(lambda: main(standalone_mode=False), EmulationError, HostlibError, SimulationError)
