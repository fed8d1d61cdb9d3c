"""Where ranks meet: a torch store, in a process of its own, which says its port and stays until it is killed."""

from __future__ import annotations

import os
import signal
from typing import Any


def open_store(address: str) -> Any:
    """A torch.distributed.TCPStore that listens on any port there."""
    # Before torch is loaded: that a namespace's addresses have no names is nothing to warn of.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch.distributed as dist

    return dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)


def main() -> None:
    """In a process that was forked for it."""
    store = open_store(os.environ["MASTER_ADDR"])
    os.write(1, f"{store.port}\n".encode())
    while True:
        signal.pause()
