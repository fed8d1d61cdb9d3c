"""The sums of one process group: a stream of them for each kind of thread that begins sums.

All ranks must begin a stream's sums in the same order. Those of the user's own threads are in the order of the script.
Callbacks run in the order in which sums end (see CompletionThreads), beside the script, so the sums that they begin are
streams of their own, with a place on the switch of their own: one for the callbacks of each other stream.
"""

from __future__ import annotations

import threading
import time
import zlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.collectives.bootstrap import STORE_GRACE_S, gloo_maker, nccl_maker
from hostlib.collectives.collective import Collective
from hostlib.collectives.create import create_collective
from hostlib.collectives.deferred_collective import DeferredCollective
from hostlib.errors import HostlibError, RunError
from hostlib.fabric.admission import admitted_alike
from hostlib.fabric.slot_choice import choose_slots
from hostlib.pytorch.future_waits import bind
from hostlib.pytorch.group_settings import GroupSettings
from hostlib.staging.completion_threads import completing, expect
from hostlib.transport.failure_detector import FailureDetector
from hostlib.transport.gloo_transport import GlooTransport
from hostlib.transport.rank_context import RankContext

Future = torch.futures.Future


class SumStreams:
    """The sums of a group of two ranks or more.

    Args:
        host, port: of the torch store.
        job: a name that is unique to this group, the same on all ranks.
    """

    def __init__(self, settings: GroupSettings, host: str, port: int, job: str, rank: int, world_size: int) -> None:
        self._settings, self._host, self._port, self._job = settings, host, port, job
        self._rank, self._world_size = rank, world_size
        self._detector = FailureDetector(host, port, job, rank, world_size, silence_s=settings.silence_s)
        self._streams: dict[str | None, DeferredCollective] = {}
        self._detectors: list[FailureDetector] = []
        self._last: dict[str | None, Future[Tensor]] = {}
        self._lock = threading.Lock()

    def allreduce(self, tensor: Tensor, average: bool) -> Future[Tensor]:
        """See hostlib.collectives.collective."""
        beginner = completing()
        with self._lock:
            if beginner not in self._streams:
                name = self._job if beginner is None else f"{self._job}-{zlib.crc32(beginner.encode()):08x}"
                self._streams[beginner] = DeferredCollective(name, lambda: self._make(name))
            stream = self._streams[beginner]
            ours: Future[Tensor] | None = None
            if not tensor.is_cuda:  # whose futures are the device's
                ours = Future()
                bind(ours, stream.name, stream.complete)
            future = self._last[beginner] = stream.allreduce(tensor, average, ours)
        expect(future.done)
        return future

    def _make(self, name: str) -> Collective:
        """Make a stream's collective together with all other ranks.

        Raises:
            HostlibError: a rank is missing, or did not begin a sum; or a place on the switch was refused, to all alike.
        """
        settings, rank, world_size = self._settings, self._rank, self._world_size
        detector = self._detector
        if name != self._job:
            detector = FailureDetector(
                self._host, self._port, name, rank, world_size, run=self._detector, silence_s=settings.silence_s
            )
            self._detectors.append(detector)
        begun = time.monotonic()
        try:
            # Its own connection: a wait for another rank's key would block everybody else's.
            # To reach the store takes no other rank, so a machine that pauses is no reason to name one.
            patience = timedelta(seconds=settings.deadline_s + STORE_GRACE_S)
            tcp = dist.TCPStore(self._host, self._port, is_master=False, timeout=patience, wait_for_workers=False)
            tcp.set_timeout(timedelta(seconds=settings.deadline_s))
            store = dist.PrefixStore(name, tcp)
            another_gloo = gloo_maker(store, rank, world_size, settings.deadline_s)
            # The collective's thread sends in its own order, so it has a Gloo group of its own.
            gloo = another_gloo()
            context = RankContext(
                rank,
                world_size,
                gloo,
                detector,
                settings.deadline_s,
                another_gloo,
                nccl_maker(store, rank, world_size, settings.deadline_s),
                GlooTransport(gloo),
                slots=choose_slots(gloo, rank, settings.mechanism, settings.controller, settings.lanes, settings.slots),
                patience_s=settings.patience_s,
                admitted=admitted_alike(gloo, world_size),
                in_script=True,
            )
            return create_collective(
                settings.mechanism,
                context,
                settings.controller,
                name,
                settings.address,
                fallback=settings.fallback,
                lanes=settings.lanes,
            )
        except HostlibError:
            raise
        except RuntimeError as error:
            waited_s = time.monotonic() - begun
            raise self._detector.explain(waited_s, lambda: _nobody_missing(waited_s)) from error

    @property
    def done(self) -> bool:
        """Whether all sums are."""
        with self._lock:
            return all(future.done() for future in self._last.values())

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the fabric."""
        with self._lock:
            return [failure for stream in self._streams.values() for failure in stream.failures]

    def close(self, graceful: bool) -> None:
        """Close all streams; those of callbacks after those whose callbacks they are."""
        closed: set[str | None] = set()
        while True:
            with self._lock:
                left = [name for name in self._streams if name not in closed]
            if not left:
                break
            self._streams[left[0]].close(graceful)
            closed.add(left[0])
        for detector in (*self._detectors, self._detector):
            detector.close()


def _nobody_missing(waited_s: float) -> HostlibError:
    return RunError(
        f"not every rank began its first sum: the others waited {waited_s:.0f} s (does every rank reduce the same tensors?)"
    )
