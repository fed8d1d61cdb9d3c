"""`netfold controller`: the commands of `controller`."""

from __future__ import annotations

from controller import commands
from controller.cli import main
from hostlib.system.command_group import FolderGroup

PLACE = 5
COMMANDS = (FolderGroup("controller", package=commands, help=main.help),)
