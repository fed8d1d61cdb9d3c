"""`netfold emulate`: the commands of `emulation`."""

from __future__ import annotations

from emulation import commands
from emulation.cli import main
from netfold.default_command import RunGroup

HELP = f"""{main.help}

Without the name of a command below, `run` is meant: `netfold emulate fabric-vs-host`.
"""

PLACE = 2
COMMANDS = (RunGroup("emulate", package=commands, help=HELP),)
