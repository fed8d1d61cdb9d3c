"""`hostlib mpi-shim`: MPI programs over netfold, unmodified."""

from __future__ import annotations

from pathlib import Path

import click

from hostlib.mpi_shim.shim_library import find_mpicc, shim_library
from hostlib.system.command import Command
from hostlib.system.extras import require_installed
from hostlib.text import option_types as types


@click.command("mpi-shim", cls=Command)
@click.option(
    "--mpicc",
    type=types.ANY_FILE,
    help="Compiler wrapper of the program's MPI library [default: mpicc on PATH, else the one beside this Python].",
)
def mpi_shim(mpicc: Path | None) -> None:
    """Print the path of netfold's library for MPI programs.

    Loaded before MPI's, it has them sum over a mechanism, unmodified. It is compiled at the first call. NETFOLD_MECHANISM, NETFOLD_CONTROLLER and so on configure it: see docs/mpi.md.

    \b
    Examples
        mpirun -x LD_PRELOAD=$(netfold mpi-shim) -n 4 ./program
        mpirun -x LD_PRELOAD=$(netfold mpi-shim --mpicc /opt/mpi/bin/mpicc) -n 4 ./program
    """
    require_installed("torch")
    click.echo(shim_library(find_mpicc(mpicc)))


PLACE = 115
COMMANDS = (mpi_shim,)
