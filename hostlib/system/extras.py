"""What netfold's extras bring: who needs something that is not installed is told which extra has it."""

from __future__ import annotations

import importlib.util

# Module -> the distribution that it comes with, and the extra (pyproject.toml) that installs that.
EXTRAS = {
    "torch": ("torch", "train"),
    "sklearn": ("scikit-learn", "train"),
    "mpi4py": ("mpi4py", "mpi"),
    "matplotlib": ("matplotlib", "plot"),
    "distributed": ("distributed", "cluster"),
    "grpc": ("grpcio", "emulation"),
    "google": ("protobuf", "emulation"),
    "jinja2": ("jinja2", "emulation"),
    "p4": ("p4runtime", "emulation"),
    "fastapi": ("fastapi", "controller"),
    "p4runtime_sh": ("p4runtime-shell", "controller"),
    "uvicorn": ("uvicorn", "controller"),
}


def what_to_install(error: ModuleNotFoundError) -> str | None:
    """In a line; None where no extra has the module."""
    found = EXTRAS.get((error.name or "").partition(".")[0])
    return None if found is None else f"this needs {found[0]}: pip install 'netfold[{found[1]}]'"


def require_installed(module: str) -> None:
    """For whoever has other processes load it.

    Raises:
        ModuleNotFoundError: it is not there.
    """
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
