"""The packet engine's tests over AF_XDP: pytest in a network namespace of its own. `python -m tests.xdp_namespace ARGS`."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from tests.prerequisites import missing

CLONE_NEWNET = 0x40000000


def main() -> None:
    """Become pytest, with these arguments; where AF_XDP cannot be had, say so in a line and end well."""
    if (reason := missing("xdp")) is not None:
        print(f"not over AF_XDP: {reason}")
        return
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        print(f"not over AF_XDP: no network namespace: {os.strerror(ctypes.get_errno())}")
        return
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # Frames from 127.0.0.1 that have not come through the kernel's own stack.
    for name in ("route_localnet", "accept_local"):
        Path("/proc/sys/net/ipv4/conf/lo", name).write_text("1")
    os.environ["NETFOLD_PATH"] = "xdp"
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])


if __name__ == "__main__":
    main()
