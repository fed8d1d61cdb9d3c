"""Form the process group of a run."""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from hostlib.errors import HostlibError, RunError
from hostlib.fabric.multicast import Streams, SwitchMulticast
from hostlib.fabric.reduce_scatter import SwitchReduceScatter
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.transport.failure_detector import FailureDetector
from hostlib.transport.gloo_transport import GlooConnector
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.rank_context import RankContext
from hostlib.transport.refusals import quoted
from hostlib.transport.segment_length import SEGMENT_BYTES
from hostlib.transport.transport import Connector, Transport, first_line
from hostlib.transport.waits import PATIENCE_S, SILENCE_S

STORE_GRACE_S = 30


@contextmanager
def join_group(
    here: LaunchEnvironment,
    purpose: str,
    deadline_s: float,
    servers: int = 0,
    own: int = 0,
    number: int = 0,
    slots: int = SLOTS_PER_POOL,
    segment_bytes: int = SEGMENT_BYTES,
    patience_s: float = PATIENCE_S,
    silence_s: float = SILENCE_S,
) -> Iterator[tuple[RankContext, str]]:
    """Join the group of all ranks for the duration of the block; yields the rank's context and a job name.

    The job name begins with `purpose` and is unique to the run. Gloo becomes torch's default process group, and stays
    it, unless there is one already; servers have no default process group.

    Args:
        servers: how many processes, the last ones, serve and are not ranks.
        own: how many of those, the last ones, belong to a strategy.
        number: of this group, among the groups that these processes form one after the other.
        slots, segment_bytes, patience_s: see RankContext.
        silence_s: see FailureDetector.

    Raises:
        HostlibError: whatever the block raises; torch's own errors become one that names the missing ranks.
    """
    tcp_store = dist.TCPStore(
        here.host,
        here.port,
        is_master=False,
        timeout=timedelta(seconds=deadline_s + STORE_GRACE_S),
        wait_for_workers=False,
    )
    again = f"-{number}" if number else ""
    store = dist.PrefixStore(f"netfold-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}{again}", tcp_store)
    meet(store, here, deadline_s + STORE_GRACE_S)
    workers, timeout = here.world_size - servers, timedelta(seconds=deadline_s)
    serves = here.rank >= workers
    if not serves and not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=here.rank, world_size=workers, timeout=timeout)
    if here.rank == 0:
        store.set("job", f"{purpose}-{uuid.uuid4().hex[:12]}")
    job = store.get("job").decode()
    detector = FailureDetector(here.host, here.port, job, here.rank, here.world_size, servers, silence_s=silence_s)
    started = time.monotonic()
    try:
        another_gloo = gloo_maker(store, here.rank, workers, deadline_s)
        gloo = None if serves else another_gloo()
        connector = here.connector or GlooConnector()
        connect = partial(connector.connect, store, rank=here.rank, deadline_s=None if serves else deadline_s)
        transport = connect("hosts", range(here.world_size), gloo=None if servers else gloo)
        calls = itertools.count()
        members = [*range(workers), *range(here.world_size - own, here.world_size)]

        def another_transport() -> Transport:
            return connect(f"strategy{next(calls)}", members)

        context = RankContext(
            here.rank,
            workers,
            gloo,
            detector,
            deadline_s,
            another_gloo,
            nccl_maker(store, here.rank, workers, deadline_s),
            transport,
            servers,
            another_transport,
            slots=slots,
            segment_bytes=segment_bytes,
            patience_s=patience_s,
        )
        with ExitStack() as detectors:
            among = part_maker(context, here.host, here.port, job, store, connector, detectors)
            another_detector = detector_maker(context, here.host, here.port, detectors)
            multicast = multicast_maker(context, job, another_detector)
            scatter = scatter_maker(context, job, another_detector)
            yield replace(context, another_multicast=multicast, another_scatter=scatter, among=among), job
    except HostlibError:
        raise
    except (RuntimeError, OverflowError) as error:
        raise _unwrapped(error, detector, time.monotonic() - started) from error
    finally:
        detector.close()


def gloo_maker(store: dist.Store, rank: int, world_size: int, deadline_s: float) -> Callable[[], Any]:
    """Return a function that makes a new Gloo group at each call; the ranks' n-th calls meet in the same group."""
    calls, timeout = itertools.count(), timedelta(seconds=deadline_s)
    return lambda: dist.ProcessGroupGloo(dist.PrefixStore(f"collective{next(calls)}", store), rank, world_size, timeout)


def multicast_maker(
    context: RankContext, job: str, another_detector: Callable[[str], FailureDetector]
) -> Callable[[str, str], SwitchMulticast]:
    """Return a function that joins a multicast job of the workers at each call, with heartbeats and messages of its
    own.

    See RankContext.another_multicast.
    """
    calls = itertools.count()

    def make(controller: str, address: str) -> SwitchMulticast:
        assert context.another_transport is not None
        name = f"{job}-own{next(calls)}"
        own = replace(context, detector=another_detector(name), transport=context.another_transport())
        return SwitchMulticast(own, controller, name, address, Streams.of_workers(context.world_size, context.slots))

    return make


def scatter_maker(
    context: RankContext, job: str, another_detector: Callable[[str], FailureDetector]
) -> Callable[[str, str], SwitchReduceScatter]:
    """Return a function that joins a job of reduce-scatters of the workers at each call. See
    RankContext.another_scatter.
    """
    calls = itertools.count()

    def make(controller: str, address: str) -> SwitchReduceScatter:
        name = f"{job}-owners{next(calls)}"
        own = replace(context, detector=another_detector(name))
        return SwitchReduceScatter(own, controller, name, address)

    return make


def detector_maker(
    context: RankContext, host: str, port: int, detectors: ExitStack
) -> Callable[[str], FailureDetector]:
    """Return a function that begins the heartbeats of one more job of the workers, given the job's name.

    Args:
        host, port: of the torch store.
        detectors: closes the heartbeats.
    """
    silence_s = context.detector.silence_s

    def make(job: str) -> FailureDetector:
        detector = FailureDetector(host, port, job, context.rank, context.world_size, silence_s=silence_s)
        detectors.callback(detector.close)
        return detector

    return make


def part_maker(
    context: RankContext,
    host: str,
    port: int,
    job: str,
    store: dist.Store,
    connector: Connector,
    detectors: ExitStack,
) -> Callable[[Sequence[int]], tuple[RankContext, str] | None]:
    """Return a function that makes the context and the job name of a part of the ranks. See RankContext.among.

    Args:
        host, port: of the torch store.
        detectors: closes the heartbeats that parts begin.
    """
    calls = itertools.count()

    def make(ranks: Sequence[int]) -> tuple[RankContext, str] | None:
        key = f"part{next(calls)}-from{ranks[0]}"
        if context.rank not in ranks:
            return None
        rank, name, own = ranks.index(context.rank), f"{job}-{key}", dist.PrefixStore(key, store)
        numbers = [context.number(each) for each in ranks]
        another_gloo = gloo_maker(own, rank, len(ranks), context.deadline_s)
        gloo = another_gloo()
        transport = connector.connect(own, "hosts", numbers, numbers[rank], context.deadline_s, gloo=gloo)
        detector = FailureDetector(
            host, port, name, rank, len(ranks), run=context.detector, silence_s=context.detector.silence_s
        )
        detectors.callback(detector.close)
        part = RankContext(
            rank,
            len(ranks),
            gloo,
            detector,
            context.deadline_s,
            another_gloo,
            nccl_maker(own, rank, len(ranks), context.deadline_s),
            transport,
            slots=context.slots,
            segment_bytes=context.segment_bytes,
            numbers=numbers,
            patience_s=context.patience_s,
            in_script=context.in_script,
        )
        return replace(part, among=part_maker(part, host, port, name, own, connector, detectors)), name

    return make


def nccl_maker(store: dist.Store, rank: int, world_size: int, deadline_s: float) -> Callable[[], Any]:
    """Return a function that makes one NCCL group on the current CUDA device."""
    timeout = timedelta(seconds=deadline_s)
    prefix = dist.PrefixStore("nccl", store)
    return lambda: dist.ProcessGroupNCCL(prefix, rank, world_size, timeout)  # type: ignore[arg-type]


def meet(store: dist.Store, here: LaunchEnvironment, patience_s: float) -> None:
    """Wait until all ranks have started; some may still be loading torch. The deadline applies from here on.

    Raises:
        RunError: some ranks did not start; the message names them.
    """
    keys = [f"here/{rank}" for rank in range(here.world_size)]
    try:
        store.set(keys[here.rank], "")
        store.wait(keys, timedelta(seconds=patience_s))
    except RuntimeError as error:
        try:
            absent = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        except RuntimeError:
            raise RunError(f"the torch store at {here.host}:{here.port} is gone: {first_line(error)}") from error
        which = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {', '.join(absent)}"
        raise RunError(f"{which} did not start within {patience_s:.0f} s") from error


def _unwrapped(error: Exception, detector: FailureDetector, waited_s: float) -> HostlibError:
    """Recover netfold's error from torch's RuntimeError, which only quotes its text."""
    return quoted(str(error)) or detector.explain(waited_s, lambda: RunError(first_line(error)))
