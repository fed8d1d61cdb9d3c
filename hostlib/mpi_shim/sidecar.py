"""The sidecar: the process beside a rank of an MPI program that does its collectives.

The shim (hostlib/mpi_shim/shim/) starts it at the rank's first sum, and hands it a channel for each communicator
(rank_channel.py). It ends with the rank, when its control socket closes.

Source: docs/adr/0024-mpi-ranks-have-a-sidecar.md.
"""

from __future__ import annotations

import os
import signal
import socket
import threading

CONTROL = 3  # descriptor of the control socket


def main() -> None:
    """Serve the channels that arrive at the control socket, and end when it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, with which the sidecar ends
    os.closerange(CONTROL + 1, os.sysconf("SC_OPEN_MAX"))  # what the program has open is not the sidecar's
    # Before torch is loaded: when ranks are killed, its stores would report each other's end with stack traces.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch

    from hostlib.mpi_shim.rank_channel import RankChannel, SharedMemory

    torch.set_num_threads(1)  # the other cores are other ranks'
    control = socket.socket(fileno=CONTROL)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            os._exit(0)  # whatever a thread waits for: nobody waits for it any more
        requests, memory = descriptors
        channel = RankChannel(socket.socket(fileno=requests), SharedMemory(memory))
        threading.Thread(target=channel.serve, name="channel", daemon=True).start()
