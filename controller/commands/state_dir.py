"""The option that names a controller: by the directory of its state."""

from __future__ import annotations

import os
from pathlib import Path

import click


def default_state_dir() -> Path:
    """$XDG_STATE_HOME/netfold, or ~/.local/state/netfold."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "netfold"


state_dir_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_state_dir,
    help="Where state file and logs are kept: one controller per directory [default: ~/.local/state/netfold].",
)
