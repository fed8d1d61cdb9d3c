"""What some tests need of the machine: a marker for each, and one line for what is missing and how to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


# Capabilities by number; with CAP_SYS_ADMIN the kernel does not ask for CAP_BPF.
CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_BPF = 12, 13, 21, 39
AF_XDP = 44


def _xdp() -> bool:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    effective = int(status["CapEff"], 16)
    has = {right for right in (CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_BPF) if effective >> right & 1}
    if not has >= {CAP_NET_ADMIN, CAP_NET_RAW} or not has & {CAP_SYS_ADMIN, CAP_BPF} or os.geteuid() != 0:
        return False
    try:
        socket.socket(AF_XDP, socket.SOCK_RAW, 0).close()
    except OSError:
        return False
    return True


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
    "xdp": (
        _xdp,
        "needs root with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and a kernel with AF_XDP (CONFIG_XDP_SOCKETS)",
    ),
    "gpu": (_gpu, "needs a CUDA device and torch built with CUDA (docs/torch.md, CUDA tensors)"),
}


def missing(marker: str) -> str | None:
    """What to say where a marker's prerequisite is not here; None where it is."""
    present, otherwise = PREREQUISITES[marker]
    return None if present() else otherwise
