"""Options that `emulation run` and `netfold suite run` share: the pace, real hosts, and the predictor."""

from __future__ import annotations

from ipaddress import IPv4Address
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
        "--switch-at",
        type=types.TEXT,
        default="",
        help="Run a switch and its controller on this machine, which the real hosts reach at this address of it; needs --hosts.",
    ),
    click.option(
        "--real-time",
        is_flag=True,
        help="Give the emulation's processes the cores before all others (SCHED_RR): other load then disturbs it little.",
    ),
    click.option(
        "--predictor",
        type=types.NAME,
        default=DEFAULT_PREDICTOR,
        show_default=True,
        help=f"Predictor of cells' times: {', '.join(predictors().specs)}.",
    ),
)


def real_hosts_of(
    hostfile: Path | None, launcher: str, controller: str, switch_at: str, real_time: bool
) -> RealHosts | None:
    """The hosts that the options name; None for virtual ones.

    Raises:
        click.UsageError: an option needs hosts or virtual ones, the launcher is empty, or the address is none.
        EmulationError: the hostfile cannot be read, or is malformed.
    """
    from emulation.experiments.real_hosts import RealHosts, read_hostfile

    if hostfile is not None and real_time:
        raise click.UsageError("--real-time is for virtual hosts: leave it out, or --hosts")
    if hostfile is None and (controller or switch_at or launcher != SSH):
        raise click.UsageError("--launcher, --controller and --switch-at are of real hosts: they need --hosts")
    if controller and switch_at:
        raise click.UsageError("--switch-at runs a switch here, and --controller names another fabric's: give one")
    if switch_at:
        try:
            IPv4Address(switch_at)
        except ValueError:
            raise click.UsageError(f"--switch-at {switch_at!r} is not an IPv4 address of this machine") from None
    if not launcher.strip():
        raise click.UsageError(f"--launcher is a command, such as {SSH}")
    return None if hostfile is None else RealHosts(read_hostfile(hostfile), launcher, controller, switch_at)


def require_dilation(dilation: float | None) -> None:
    """Check that cells do not run faster than they should.

    Raises:
        click.UsageError: they would.
    """
    if dilation is not None and dilation < 1:
        raise click.UsageError(f"--dilation must be at least 1, not {dilation:g}")
