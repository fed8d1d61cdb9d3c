"""`netfold switch`: `emulation switch`."""

from __future__ import annotations

from emulation.commands.switch import switch

PLACE = 6
COMMANDS = (switch,)
