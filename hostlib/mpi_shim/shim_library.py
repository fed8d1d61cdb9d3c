"""Compile the shim for an MPI library, cached by the hash of all inputs.

MPI libraries differ in what their handles are, so there is no shim for all of them: the compiler wrapper of the one at
hand, mpicc, compiles it in a second.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hostlib.errors import RunError
from hostlib.system.user_file import cache_folder

SOURCES = Path(__file__).with_name("shim")
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-fvisibility=default")
LONGEST_S = 60.0  # a compilation


def find_mpicc(named: Path | None) -> Path:
    """The MPI library's compiler wrapper: `named`, else mpicc on PATH, else the one beside this Python.

    Raises:
        RunError: there is none.
    """
    beside = Path(sys.executable).with_name("mpicc")
    found = shutil.which(named or "mpicc") or (None if named else shutil.which(beside))
    if found is None:
        raise RunError(
            f"no {named or 'mpicc'} to compile the shim with: install the MPI library's (pip install 'netfold[mpi]', or "
            "apt-get install libopenmpi-dev), or name it: --mpicc"
        )
    return Path(found)


def shim_library(mpicc: Path) -> Path:
    """The shim, as a shared library for mpicc's MPI library: from the cache, or compiled now.

    Raises:
        RunError: mpicc refused, with its first error, or the cache cannot be written.
    """
    command = [str(mpicc), *FLAGS, f'-DNETFOLD_PYTHON="{sys.executable}"']
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    # What mpi.h says, and where the library is, follows from what the preprocessor and -show print.
    parts = [_output([*command, "-E", *sources]), _output([str(mpicc), "-show"]), " ".join(command).encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    library = cache_folder() / f"mpi-shim-{digest}.so"
    if not library.exists():
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
                partial = Path(scratch) / library.name
                _output([*command, "-o", str(partial), *sources])
                os.replace(partial, library)  # atomically: a killed compilation leaves nothing under the final name
        except OSError as error:
            raise RunError(
                f"the shim cannot be kept in {library.parent}: {error.strerror}; "
                "set XDG_CACHE_HOME to a folder that can be written"
            ) from error
    return library


def _output(command: list[str]) -> bytes:
    """Standard output of mpicc. Raises RunError: it failed."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=LONGEST_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{command[0]} does not run: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        first = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no message")
        raise RunError(f"{command[0]} does not compile the shim: {first}")
    return done.stdout
