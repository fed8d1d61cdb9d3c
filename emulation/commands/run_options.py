"""Options that `emulation run` and `netfold suite run` share: the pace, real hosts, and the predictor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostlib.text import option_types as types
from hostlib.text.common_options import together
from simulation.predictors.predictor import DEFAULT_PREDICTOR, predictors

if TYPE_CHECKING:
    from emulation.experiments.real_hosts import RealHosts

SSH = "ssh -o BatchMode=yes"

run_options = together(
    click.option("--dilation", type=types.FACTOR, help="How many times slower everything runs [default: as needed]."),
    click.option("--auto-dilate", is_flag=True, help="Repeat a cell more slowly if this machine was too slow for it."),
    click.option(
        "--hosts",
        "hostfile",
        type=types.FILE,
        help="Run on the real hosts of this file, a line each: ADDRESS [interface=NAME] [python=PATH].",
    ),
    click.option(
        "--launcher",
        type=types.COMMAND,
        default=SSH,
        show_default=True,
        help="Command that runs HOST COMMAND on a real host; needs --hosts.",
    ),
    click.option(
        "--controller", type=types.URLS, default="", help="Controller of the real hosts' fabric; needs --hosts."
    ),
    click.option(
        "--predictor",
        type=types.NAME,
        default=DEFAULT_PREDICTOR,
        show_default=True,
        help=f"Predictor of cells' times: {', '.join(predictors().specs)}.",
    ),
)


def real_hosts_of(hostfile: Path | None, launcher: str, controller: str) -> RealHosts | None:
    """The hosts that the options name; None for virtual ones.

    Raises:
        click.UsageError: an option needs hosts, or the launcher is empty.
        EmulationError: the hostfile cannot be read, or is malformed.
    """
    from emulation.experiments.real_hosts import RealHosts, read_hostfile

    if hostfile is None and (controller or launcher != SSH):
        raise click.UsageError("--launcher and --controller are of real hosts: they need --hosts")
    if not launcher.strip():
        raise click.UsageError(f"--launcher is a command, such as {SSH}")
    return None if hostfile is None else RealHosts(read_hostfile(hostfile), launcher, controller)


def require_dilation(dilation: float | None) -> None:
    """Check that cells do not run faster than they should.

    Raises:
        click.UsageError: they would.
    """
    if dilation is not None and dilation < 1:
        raise click.UsageError(f"--dilation must be at least 1, not {dilation:g}")
