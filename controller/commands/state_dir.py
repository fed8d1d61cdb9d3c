"""The option that names a controller: by the directory of its state."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hostlib.text import option_types as types


def default_state_dir() -> Path:
    """$XDG_STATE_HOME/netfold, or ~/.local/state/netfold."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "netfold"


state_dir_option = click.option(
    "--state-dir",
    type=types.FOLDER,
    default=default_state_dir,
    help="Folder of the controller's state file and logs, one controller each [default: ~/.local/state/netfold].",
)
