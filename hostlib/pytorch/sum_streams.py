"""The sums of one process group: a stream of them for each kind of thread that begins sums.

All ranks must begin a stream's sums in the same order. Those of the user's own threads are in the order of the script.
Callbacks run in the order in which sums end (see CompletionThreads), beside the script, so the sums that they begin are
streams of their own, with a place on the switch of their own: one for the callbacks of each other stream.
"""

from __future__ import annotations

import threading
import time
import zlib
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from hostlib.collectives.collective import Collective
from hostlib.collectives.create import create_collective
from hostlib.collectives.deferred_collective import DeferredCollective
from hostlib.errors import HostlibError
from hostlib.pytorch.future_waits import bind
from hostlib.pytorch.group_context import meet, nobody_missing
from hostlib.pytorch.group_settings import GroupSettings
from hostlib.staging.completion_threads import completing, expect
from hostlib.transport.failure_detector import FailureDetector

Future = torch.futures.Future


class SumStreams:
    """The sums of a group of two ranks or more.

    Args:
        host, port: of the torch store.
        job: a name that is unique to this group, the same on all ranks.

    Attributes:
        detector: the group's heartbeats.
    """

    def __init__(self, settings: GroupSettings, host: str, port: int, job: str, rank: int, world_size: int) -> None:
        self._settings, self._host, self._port, self._job = settings, host, port, job
        self._rank, self._world_size = rank, world_size
        self.detector = FailureDetector(host, port, job, rank, world_size, silence_s=settings.silence_s)
        self._streams: dict[str | None, DeferredCollective] = {}
        self._detectors = ExitStack()
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
        detector = self.detector
        if name != self._job:
            detector = FailureDetector(
                self._host, self._port, name, rank, world_size, run=self.detector, silence_s=settings.silence_s
            )
            self._detectors.callback(detector.close)
        begun = time.monotonic()
        try:
            return create_collective(
                settings.mechanism,
                meet(settings, self._host, self._port, name, rank, world_size, detector, self._detectors),
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
            raise self.detector.explain(waited_s, lambda: nobody_missing(waited_s, "first sum")) from error

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
        self._detectors.close()
        self.detector.close()
