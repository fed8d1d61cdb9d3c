"""Optional dependencies: which of netfold's extras installs a missing module."""

from __future__ import annotations

import importlib.util

# Module -> the distribution that contains it, and the extra (pyproject.toml) that installs it.
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
    """Say in one line which extra to install; None if no extra has the module."""
    found = EXTRAS.get((error.name or "").partition(".")[0])
    return None if found is None else f"this needs {found[0]}: pip install 'netfold[{found[1]}]'"


def require_installed(module: str) -> None:
    """Check that a module is installed before another process is asked to import it.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
