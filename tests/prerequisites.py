"""What some tests need of the machine: a marker for each, and one line for what is missing and how to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


# Marker -> is it there, and what to say where it is not. Of a Tofino there are several: tests/dataplane/target.py.
PREREQUISITES: dict[str, tuple[Callable[[], bool], str]] = {
    "root": (
        lambda: os.geteuid() == 0,
        'needs root, for network namespaces and packet sockets: sudo env PATH="$PATH" .venv/bin/python -m pytest',
    ),
    "bmv2": (
        lambda: shutil.which("simple_switch_grpc") is not None,
        "needs simple_switch_grpc on PATH (package p4lang-bmv2): docs/p4c.md says where it is packaged",
    ),
    "mininet": (
        lambda: importlib.util.find_spec("mininet") is not None,
        "needs Debian's package mininet (apt-get install mininet), seen from a venv with --system-site-packages",
    ),
    "mpi": (
        lambda: Path(sys.executable).with_name("mpirun").exists(),
        "needs mpirun: pip install 'netfold[mpi]'",
    ),
    "gpu": (_gpu, "needs a CUDA device and torch built with CUDA (docs/torch.md, CUDA tensors)"),
}


def missing(marker: str) -> str | None:
    """What to say where a marker's prerequisite is not here; None where it is."""
    present, otherwise = PREREQUISITES[marker]
    return None if present() else otherwise
