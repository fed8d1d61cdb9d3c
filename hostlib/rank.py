"""One process among the ranks of a run: what its launcher says of it, and the group that it forms with the others."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hostlib.errors import HostlibError, RunError
from hostlib.group import Group
from hostlib.liveness import Liveness
from hostlib.multicast import Streams, SwitchMulticast
from hostlib.peers import GlooPeers, MpiPeers, Peers, gloo_reason

STORE_GRACE_S = 30
IDLE = timedelta(days=365)  # how long a server may wait for work


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What torchrun (or the launcher) says in the environment.

    Attributes:
        world_size: of all processes, servers included, which are the last of them.
        host, port: of the torch store.
        communicator: mpi4py.MPI.Comm of the same processes, when messages go by MPI.
    """

    rank: int
    world_size: int
    host: str
    port: int
    communicator: Any = None

    @classmethod
    def from_environment(cls) -> Surroundings:
        """Raises RunError when started by hand."""
        try:
            here = cls(
                int(os.environ["RANK"]),
                int(os.environ["WORLD_SIZE"]),
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
            )
        except KeyError as absent:
            raise RunError(f"{absent.args[0]} is not set: run this under torchrun, or use `hostlib train`") from absent
        except ValueError as wrong:
            raise RunError(f"RANK, WORLD_SIZE and MASTER_PORT must be numbers: {wrong}") from wrong
        if not 0 <= here.rank < here.world_size:
            raise RunError(
                f"rank {here.rank} is not in 0..{here.world_size - 1}, the ranks of world size {here.world_size}"
            )
        return here


@contextmanager
def under_mpi() -> Iterator[Surroundings]:
    """What mpirun says, with a torch store for as long as the block runs.

    Raises:
        RunError: mpi4py, or the MPI library that it needs, is not there.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as wrong:
        raise RunError(
            f"--transport mpi needs mpi4py and an MPI library: pip install 'netfold[mpi]' ({wrong})"
        ) from wrong
    everybody = MPI.COMM_WORLD
    rank, size = everybody.Get_rank(), everybody.Get_size()
    alone = everybody.Split_type(MPI.COMM_TYPE_SHARED).Get_size() == size
    store, told = None, None
    if rank == 0:
        host = "127.0.0.1" if alone else socket.getfqdn()
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        told = (host, store.port)
    host, port = everybody.bcast(told)
    yield Surroundings(rank, size, host, port, everybody.Dup())
    everybody.Barrier()  # The store is rank 0's.
    MPI.Finalize()  # Ranks leave without Python's own end.


@contextmanager
def grouped(
    here: Surroundings, purpose: str, deadline_s: float, servers: int = 0, own: int = 0
) -> Iterator[tuple[Group, str]]:
    """The group of all ranks, as long as the block runs, and a name for its job that begins with `purpose` and that no
    other run has. Gloo is torch's default process group meanwhile and afterwards; a server has none.

    Args:
        servers: how many processes, the last, serve and are no ranks.
        own: how many of them, the last, are a strategy's own.

    Raises:
        HostlibError: what the block raises; torch's own errors become one that says which ranks are missing.
    """
    store = dist.TCPStore(
        here.host,
        here.port,
        is_master=False,
        timeout=timedelta(seconds=deadline_s + STORE_GRACE_S),
        wait_for_workers=False,
    )
    store = dist.PrefixStore(f"netfold-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    meet(store, here, deadline_s + STORE_GRACE_S)
    workers, timeout = here.world_size - servers, timedelta(seconds=deadline_s)
    serves = here.rank >= workers
    if not serves:
        dist.init_process_group("gloo", store=store, rank=here.rank, world_size=workers, timeout=timeout)
    if here.rank == 0:
        store.set("job", f"{purpose}-{uuid.uuid4().hex[:12]}")
    job = store.get("job").decode()
    liveness = Liveness(here.host, here.port, job, here.rank, here.world_size, servers)
    started = time.monotonic()
    try:
        another_gloo = gloo_maker(store, here.rank, workers, deadline_s)
        gloo = None if serves else another_gloo()
        hosts: Peers | None = None
        if here.communicator is not None:
            hosts = MpiPeers(here.communicator, None if serves else deadline_s)
        elif servers:
            waits = IDLE if serves else timeout
            hosts = gloo_peers(store, "hosts", here.rank, here.world_size, waits)
        nccl = nccl_maker(store, here.rank, workers, deadline_s)
        more = peers_maker(store, here, servers, own, deadline_s, hosts)
        group = Group(here.rank, workers, gloo, liveness, deadline_s, another_gloo, nccl, hosts, more)
        with ExitStack() as signs:
            yield replace(group, another_multicast=multicast_maker(group, here, job, more, signs)), job
    except HostlibError:
        raise
    except (RuntimeError, OverflowError) as wrong:
        raise _unwrapped(wrong, liveness, time.monotonic() - started) from wrong
    finally:
        liveness.close()


def gloo_maker(store: dist.Store, rank: int, world_size: int, deadline_s: float) -> Callable[[], Any]:
    """What makes a Gloo of its own at each call; ranks that call it as often meet in the same ones."""
    calls, timeout = itertools.count(), timedelta(seconds=deadline_s)
    return lambda: dist.ProcessGroupGloo(dist.PrefixStore(f"collective{next(calls)}", store), rank, world_size, timeout)


def peers_maker(
    store: dist.Store, here: Surroundings, servers: int, own: int, deadline_s: float, hosts: Peers | None
) -> Callable[[], Peers]:
    """What makes messages between workers and a strategy's servers at each call; see Group.another_peers."""
    calls, workers = itertools.count(), here.world_size - servers
    first_own = here.world_size - own
    number = here.rank if here.rank < workers else workers + here.rank - first_own
    serves = here.rank >= workers

    def make() -> Peers:
        if here.communicator is not None:
            members = [*range(workers), *range(first_own, here.world_size)]
            among = here.communicator.Create_group(here.communicator.Get_group().Incl(members), tag=next(calls))
            return MpiPeers(among, None if serves else deadline_s, hosts if isinstance(hosts, MpiPeers) else None)
        waits = IDLE if serves else timedelta(seconds=deadline_s)
        return gloo_peers(store, f"strategy{next(calls)}", number, workers + own, waits)

    return make


def gloo_peers(store: dist.Store, name: str, number: int, hosts: int, timeout: timedelta) -> GlooPeers:
    """Messages between hosts that send much to each other, both ways."""
    up, down = (
        dist.ProcessGroupGloo(dist.PrefixStore(f"{name}-{way}", store), number, hosts, timeout)
        for way in ("up", "down")
    )
    return GlooPeers(up, down)


def multicast_maker(
    group: Group, here: Surroundings, job: str, more: Callable[[], Peers], signs: ExitStack
) -> Callable[[str, str], SwitchMulticast]:
    """What makes a place among workers at each call, with signs of life and messages of its own; see
    Group.another_multicast.
    """
    calls = itertools.count()

    def make(controller: str, address: str) -> SwitchMulticast:
        name = f"{job}-own{next(calls)}"
        liveness = Liveness(here.host, here.port, name, group.rank, group.world_size)
        signs.callback(liveness.close)
        streams = Streams.of_workers(group.world_size)
        return SwitchMulticast(replace(group, liveness=liveness, hosts=more()), controller, name, address, streams)

    return make


def nccl_maker(store: dist.Store, rank: int, world_size: int, deadline_s: float) -> Callable[[], Any]:
    """What makes an NCCL group, once, on the current CUDA device."""
    timeout = timedelta(seconds=deadline_s)
    return lambda: dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, world_size, timeout)


def meet(store: dist.Store, here: Surroundings, patience_s: float) -> None:
    """Wait for all ranks, some of which may still be loading torch: from now on, the deadline holds.

    Raises:
        RunError: some did not come; it says which.
    """
    keys = [f"here/{rank}" for rank in range(here.world_size)]
    try:
        store.set(keys[here.rank], "")
        store.wait(keys, timedelta(seconds=patience_s))
    except RuntimeError as wrong:
        try:
            absent = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        except RuntimeError:
            raise RunError(f"the torch store at {here.host}:{here.port} is gone: {gloo_reason(wrong)}") from wrong
        which = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {', '.join(absent)}"
        raise RunError(f"{which} did not start within {patience_s:.0f} s") from wrong


def _unwrapped(wrong: Exception, liveness: Liveness, waited_s: float) -> HostlibError:
    """torch turns a future's exception into a RuntimeError that quotes it; the line of ours is inside."""
    text = str(wrong)
    # DDP takes what its hook's future holds for a tensor.
    quoted = re.fullmatch(r"Unable to cast (.*) to Tensor", text, re.DOTALL)
    if quoted:
        return RunError(quoted[1])
    for line in text.splitlines():
        name, colon, message = line.partition("Error: ")
        if colon and name in ("MissingRank", "Fabric", "Run", "UnknownName", "Hostlib", "Join", "Schedule"):
            return RunError(message)
    return liveness.explain(waited_s, lambda: RunError(gloo_reason(wrong)))
