"""`netfold emulate`: the commands of `emulation`."""

from __future__ import annotations

from emulation import commands
from emulation.cli import main
from netfold.default_command import RunGroup

HELP = f"""{main.help}

Where the first word is none of the commands below, `run` is meant: `netfold emulate fabric-vs-host`.
"""

PLACE = 2
COMMANDS = (RunGroup("emulate", package=commands, help=HELP),)
