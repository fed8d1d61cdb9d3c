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
    "grpc": ("grpcio", "controller"),
    "google": ("protobuf", "controller"),
    "p4": ("p4runtime", "controller"),
    "cryptography": ("cryptography", "controller"),
    "fastapi": ("fastapi", "controller"),
    "fastapi_offline": ("fastapi-offline", "controller"),
    "prometheus_client": ("prometheus-client", "controller"),
    "p4runtime_sh": ("p4runtime-shell", "controller"),
    "uvicorn": ("uvicorn", "controller"),
    "jinja2": ("jinja2", "emulation"),
}
# What `controller start` loads, with an embedded switch.
CONTROLLER = tuple(module for module, (_, extra) in EXTRAS.items() if extra == "controller")


class NotInstalledError(ModuleNotFoundError):
    """Several modules of netfold's extras, all of which are needed."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        super().__init__(f"No module named {', '.join(map(repr, modules))}", name=modules[0])
        self.modules = modules


def what_to_install(error: ModuleNotFoundError) -> str | None:
    """Say in one line which extra to install; None if no extra has the module."""
    modules = error.modules if isinstance(error, NotInstalledError) else ((error.name or "").partition(".")[0],)
    if not EXTRAS.keys() >= set(modules):
        return None
    names = [EXTRAS[module][0] for module in modules]
    extras = dict.fromkeys(EXTRAS[module][1] for module in modules)
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"this needs {listed}: pip install 'netfold[{','.join(extras)}]'"


def require_installed(*modules: str) -> None:
    """Check that modules are installed before another process is asked to import them.

    Raises:
        NotInstalledError: some of them are not.
    """
    absent = tuple(module for module in modules if importlib.util.find_spec(module) is None)
    if absent:
        raise NotInstalledError(absent)
