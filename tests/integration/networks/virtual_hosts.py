"""What real hosts do on a network that was made of a declaration: sum, and send one another a stream."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from emulation.networks.realise import Host, RunningNetwork
from hostlib._engine import Engine
from hostlib.fabric.aggregation import configure
from hostlib.fabric.job_client import FabricSession, join
from hostlib.system.network_namespace import inside

DEADLINE_S = 60.0


def at(host: Host, do: Callable[[], Any]) -> Any:
    return do() if host.netns is None else inside(host.netns, do)


def sum_over(fabric: RunningNetwork, size: int) -> int:
    """All workers' engines sum int32 tensors, exactly; how many packets were sent again."""
    workers = fabric.hosts[: fabric.topology.workers]

    def joined(rank: int) -> tuple[Engine, FabricSession]:
        engine = Engine(workers[rank].address)
        session = join(
            fabric.controller,
            "networks",
            rank,
            len(workers),
            engine.address,
            engine.ports,
            DEADLINE_S,
            lambda: engine.position,
        )
        configure(engine, session.place)
        return engine, session

    with ThreadPoolExecutor(len(workers)) as pool:
        ranks = list(pool.map(lambda r: at(workers[r], lambda: joined(r)), range(len(workers))))
        tensors = [np.arange(size, dtype=np.int32) * (rank + 1) for rank in range(len(ranks))]
        total = np.sum(tensors, axis=0)
        list(pool.map(lambda r: ranks[r][0].allreduce(tensors[r], False, DEADLINE_S), range(len(ranks))))
        assert all(np.array_equal(tensor, total) for tensor in tensors)
        for rank, (_, session) in enumerate(ranks):
            at(workers[rank], session.leave)
        return sum(engine.stats()["retransmits"] for engine, _ in ranks)


def stream(source: Host, destination: Host, size: int) -> float:
    """Send so many bytes by TCP; the seconds until all were there."""
    with at(destination, lambda: socket.create_server((destination.address, 0))) as server:
        sender = at(source, lambda: socket.create_connection(server.getsockname(), DEADLINE_S))
        began = time.monotonic()
        with sender, server.accept()[0] as receiver:
            sending = threading.Thread(target=lambda: (sender.sendall(bytes(size)), sender.shutdown(socket.SHUT_WR)))
            sending.start()
            got = 0
            while data := receiver.recv(1 << 16):
                got += len(data)
            sending.join()
        assert got == size
        return time.monotonic() - began


def left_of(fabric: RunningNetwork) -> list[str]:
    """What is still there of a network that has ended."""
    left = [f"{name} {process.pid}" for name, process in fabric.processes.items() if process.alive]
    left += [host.netns for host in fabric.hosts if host.netns is not None and Path(host.netns).exists()]
    return left + [str(path) for path in (fabric.record.path, fabric.record.folder) if path.exists()]
