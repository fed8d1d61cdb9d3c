"""A torch store in a process of its own, which reports its port and runs until it is killed."""

from __future__ import annotations

import os
import signal
from typing import Any


def open_store(address: str) -> Any:
    """Open a torch.distributed.TCPStore that listens on any port of an address."""
    # Set before torch is loaded: a namespace's addresses have no names, and torch would warn of that.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch.distributed as dist

    return dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)


def main() -> None:
    """Run the store in a forked process."""
    store = open_store(os.environ["MASTER_ADDR"])
    os.write(1, f"{store.port}\n".encode())
    while True:
        signal.pause()
