"""One of the processes under mpirun: every mechanism of hosts, by both transports, with numbers of workers as
arguments.

The last three processes are servers, the others workers. Standard output of process 0 is a JSON list, with an entry for
each transport, world size, mechanism and host. It has the number of wrong elements, the bytes and messages that the
process's TCP connections carried, and the bytes that the schedule predicts.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from hostlib.collectives.mechanism_executor import MechanismExecutor
from hostlib.mechanisms.mechanism import Mechanism, find, registered
from hostlib.schedules.schedule import Receive, Send, is_host, piece_bounds, server, worker
from hostlib.system.tcp_counters import tcp_bytes
from hostlib.transport.gloo_transport import GlooTransport
from hostlib.transport.mpi_transport import MpiTransport
from hostlib.transport.segment_length import SEGMENT_BYTES
from tests.integration.transports.mpi_results import print_gathered

SERVERS = 3
SIZES = (0, 1, 2, 7, 1000, 700_001)  # fewer elements than pieces, and more than a segment
TIMEOUT_S = 60.0
NAMES = (
    "ps:servers=3",
    "ps:servers=2:assign=even",
    "ps:servers=3:assign=pairs",
    "ps:servers=2:assign=even:colocated",
    "ring:split=no",
    "tree:pieces=3",
)


def mechanisms() -> Iterator[Mechanism]:
    yield from (m for m in registered().values() if m.build is not None and m.runs_on_hosts and not m.needs_fabric)
    yield from map(find, NAMES)


def drawn(rank: int, size: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([rank, size]).standard_normal(size, np.float32))


def predicted(mechanism: Mechanism, workers: int, host: int) -> tuple[list[int], int]:
    """Bytes sent and received in all of the all-reduces, and in how many messages."""
    node = worker(host) if host < workers else server(host - workers)
    carried, messages = [0, 0], 0
    for turn, size in enumerate(filter(None, SIZES)):
        schedule = mechanism.schedule(workers, 4 * size, turn)
        lengths = [4 * (end - start) for start, end in piece_bounds(size, schedule.pieces)]
        for operation in schedule.nodes[node]:
            assert isinstance(operation, Send | Receive) and is_host(operation.peer)
            length = lengths[operation.piece]
            carried[isinstance(operation, Receive)] += length
            messages += -(-length // SEGMENT_BYTES)
    return carried, messages


def play(runtime: MechanismExecutor, workers: int, host: int) -> list[torch.Tensor]:
    """The sums."""
    if host >= workers:
        runtime.serve()
        return []
    sums = [drawn(host, size) for size in SIZES]
    for tensor in sums:
        runtime.allreduce(tensor, average=False)
    runtime.close()
    return sums


def mismatches(sums: list[torch.Tensor], workers: int, host: int, gloo: Any) -> int:
    """Elements that are not Gloo's sum, or that ranks disagree on."""
    found = 0
    for mine in sums:
        if mine.numel() > 0:
            wanted, first = drawn(host, mine.numel()), mine.clone()
            gloo.allreduce([wanted]).wait()
            bound = workers * 2e-7 * sum(drawn(rank, mine.numel()).abs() for rank in range(workers))
            found += int((~((mine - wanted).abs() <= bound)).sum())
            gloo.broadcast([first]).wait()
            found += int((first.view(torch.int32) != mine.view(torch.int32)).sum())
    return found


def meet(store: dist.Store, where: str, me: int, all_of: Collection[int]) -> None:
    """Wait for each other, without a message that counts; MPI would wait at full speed."""
    store.set(f"{where}/{me}", "")
    store.wait([f"{where}/{each}" for each in all_of], timedelta(seconds=300))


def main() -> None:
    torch.set_num_threads(1)
    everybody = MPI.COMM_WORLD
    me = everybody.Get_rank()
    world_sizes = [int(word) for word in sys.argv[1:]]
    most = max(world_sizes)
    serves = me >= most
    store_host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if me == 0 else None
    port = everybody.bcast(store_host.port if store_host else None)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    timeout = timedelta(seconds=TIMEOUT_S)
    results: list[dict[str, Any]] = []
    everyone = range(most + SERVERS)
    for workers in world_sizes:
        meet(store, f"{workers}", me, everyone)
        takes_part = serves or me < workers
        communicator = everybody.Split(0 if takes_part else MPI.UNDEFINED, me)
        if not takes_part:
            continue
        host = me if not serves else workers + me - most
        prefix = dist.PrefixStore(f"{workers}", store)
        gloo = None
        if not serves:
            gloo = dist.ProcessGroupGloo(dist.PrefixStore("reference", prefix), host, workers, timeout)
        hosts = dist.ProcessGroupGloo(dist.PrefixStore("hosts", prefix), host, workers + SERVERS, timeout)
        for transport, peers in (("gloo", GlooTransport(hosts)), ("mpi", MpiTransport(communicator, TIMEOUT_S))):
            for mechanism in mechanisms():
                if serves and me - most >= mechanism.servers:
                    continue
                if mechanism.chosen.get("colocated") and mechanism.chosen["servers"] > workers:
                    continue
                runtime = MechanismExecutor(mechanism, workers, host, peers)
                there = [*range(workers), *range(most, most + mechanism.servers)]
                where = f"{workers}/{transport}/{mechanism.name}"
                meet(store, f"{where}/before", me, there)
                before = tcp_bytes(port)
                meet(store, f"{where}/begin", me, there)
                sums = play(runtime, workers, host)
                meet(store, f"{where}/end", me, there)
                carried = tcp_bytes(port) - before
                meet(store, f"{where}/counted", me, there)
                wanted, messages = predicted(mechanism, workers, host)
                results.append(
                    {
                        "transport": transport,
                        "workers": workers,
                        "mechanism": mechanism.name,
                        "host": host,
                        "mismatches": mismatches(sums, workers, host, gloo),
                        "carried": [carried.sent, carried.received],
                        "predicted": wanted,
                        "messages": messages,
                    }
                )
    meet(store, "end", me, everyone)
    print_gathered(everybody, results)


if __name__ == "__main__":
    main()
