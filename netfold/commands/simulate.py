"""`netfold simulate`: the commands of `simulation`."""

from __future__ import annotations

from netfold.default_command import RunGroup
from simulation import commands
from simulation.cli import main

HELP = f"""{main.help}

Without the name of a command below, `run` is meant: `netfold simulate --model vgg16`.
"""

PLACE = 1
COMMANDS = (RunGroup("simulate", package=commands, help=HELP),)
