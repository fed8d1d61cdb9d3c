"""The reduce-scatters, all-gathers and broadcasts of one process group that the mechanism does.

They are made at their first use, as sums are (sum_streams.py), in jobs of their own: what reduces and what gathers runs at
the same time. They leave the group's sums room on the switch. Those that callbacks begin go to Gloo, since their order is
not the script's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hostlib.collectives.bootstrap import detector_maker, multicast_maker, scatter_maker
from hostlib.collectives.rank_collectives import RankCollectives
from hostlib.collectives.vendor import CLOSE_S
from hostlib.errors import HostlibError, JoinError
from hostlib.fabric.slot_choice import require_room
from hostlib.protocol.slots import POOLS_OF_STREAMS
from hostlib.pytorch.future_waits import bind
from hostlib.pytorch.group_context import meet, nobody_missing
from hostlib.pytorch.group_settings import GroupSettings
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import FabricUse
from hostlib.staging.completion_threads import CompletionThreads, completing
from hostlib.staging.request import DTYPES
from hostlib.transport.failure_detector import FailureDetector
from hostlib.transport.rank_context import RankContext

LEAST_BYTES = 256 << 10  # of what the switch multicasts: Gloo does less sooner

LOG = logging.getLogger(__name__)

Future = torch.futures.Future


class GroupCollectives:
    """Those of a group of two ranks or more.

    Args:
        host, port: of the torch store.
        job: a name that is unique to this group, the same on all ranks.
        detector: of the group; explains failures.
    """

    def __init__(
        self,
        settings: GroupSettings,
        host: str,
        port: int,
        job: str,
        rank: int,
        world_size: int,
        detector: FailureDetector,
    ) -> None:
        self._settings, self._host, self._port, self._job = settings, host, port, f"{job}-shards"
        self._rank, self._world_size, self._detector = rank, world_size, detector
        self._made: RankCollectives | None = None
        self._context: RankContext | None = None
        self._placed: set[Collective] = set()
        self._refused: set[Collective] = set()  # which have no place on the switch
        self._completing: dict[Collective, CompletionThreads] = {}
        self._last: dict[Collective, Future[Tensor]] = {}
        self._detectors = ExitStack()
        self._lock = threading.Lock()

    def reduce_scatter(self, output: Tensor, values: Tensor, average: bool) -> Future[Tensor] | None:
        """See RankCollectives; None if the mechanism does not do it, so that its all-reduce must.

        Raises:
            HostlibError: a rank is missing, or sums something else.
        """
        fits = values.dtype in DTYPES and output.dtype == values.dtype
        fits &= values.numel() == self._world_size * output.numel()
        if not fits or not self._does(Collective.REDUCE_SCATTER, output, values):
            return None
        return self._begin(
            Collective.REDUCE_SCATTER, lambda made, future: made.reduce_scatter(output, values, average, future)
        )

    def all_gather(self, output: Tensor, values: Tensor) -> Future[Tensor] | None:
        """See RankCollectives; None for what Gloo must do. Raises HostlibError: a rank is missing."""
        fits = output.dtype == values.dtype and output.numel() == self._world_size * values.numel()
        if not fits or not self._multicasts(Collective.ALL_GATHER, output, values):
            return None
        return self._begin(Collective.ALL_GATHER, lambda made, future: made.all_gather(output, values, future))

    def broadcast(self, tensor: Tensor, root: int, takes_place: bool = False) -> Future[Tensor] | None:
        """See RankCollectives; None for what Gloo must do. Raises HostlibError: a rank is missing.

        Args:
            takes_place: take a place on the switch if there is none yet. Otherwise it uses that of all-gathers: DDP
                would keep one for the one broadcast of its weights.
        """
        placed = takes_place or Collective.ALL_GATHER in self._placed
        if not placed or not self._multicasts(Collective.BROADCAST, tensor):
            return None
        return self._begin(Collective.BROADCAST, lambda made, future: made.broadcast(tensor, root, future))

    def multicasts(self, collective: Collective) -> bool:
        """Whether the mechanism has the switch multicast what a collective carries."""
        mechanism = self._settings.mechanism
        return collective in mechanism.collectives and mechanism.of(collective).fabric_use is FabricUse.MULTICAST

    def _multicasts(self, collective: Collective, *tensors: Tensor) -> bool:
        return tensors[0].nbytes >= LEAST_BYTES and self._does(collective, *tensors) and self.multicasts(collective)

    def _does(self, collective: Collective, *tensors: Tensor) -> bool:
        """Whether the mechanism does it with these tensors; the same on all ranks."""
        mechanism = self._settings.mechanism
        if collective not in mechanism.collectives or collective in self._refused or completing() is not None:
            return False
        dense = all(each.layout == torch.strided and each.device.type == "cpu" for each in tensors)
        return dense and mechanism.of(collective).build is not None

    def _begin(
        self, collective: Collective, begin: Callable[[RankCollectives, Future[Tensor]], Future[Tensor]]
    ) -> Future[Tensor] | None:
        begun = time.monotonic()
        with self._lock:
            threads = self._completing_of(collective)
            future: Future[Tensor] = Future()
            bind(future, threads.name, threads.put)
            try:
                if self._made is None:
                    self._made = self._make()
                if collective not in self._placed:
                    self._require_room(collective)
                self._last[collective] = begin(self._made, future)
            except JoinError as error:
                if self._settings.strict:
                    raise
                self._refused.add(collective)
                if self._rank == 0:
                    LOG.warning("netfold: no place on the switch for a group's %s: %s", collective.words, error)
                return None
            except HostlibError:
                raise
            except RuntimeError as error:
                waited_s = time.monotonic() - begun
                raise self._detector.explain(waited_s, lambda: nobody_missing(waited_s, collective.words)) from error
            self._placed.add(collective)
        return future

    def _require_room(self, collective: Collective) -> None:
        """Raise JoinError, on all ranks, where its place would be that of the group's sums."""
        settings, context = self._settings, self._context
        if settings.mechanism.of(collective).fabric_use is not None:
            assert context is not None, "of what is made"
            leaves = context.slots * settings.lanes
            require_room(context.gloo, self._rank, settings.controller, context.slots, leaves)

    def _completing_of(self, collective: Collective) -> CompletionThreads:
        if collective not in self._completing:
            self._completing[collective] = CompletionThreads(f"{self._job}-{collective.value}")
        return self._completing[collective]

    def _make(self) -> RankCollectives:
        settings = self._settings
        context = meet(
            settings,
            self._host,
            self._port,
            self._job,
            self._rank,
            self._world_size,
            self._detector,
            self._detectors,
        )
        another_detector = detector_maker(context, self._host, self._port, self._detectors)
        # A group takes as many slots for the streams of each as for a pool of sums, so that others find room, too.
        streams = replace(context, slots=context.slots // POOLS_OF_STREAMS)
        self._context = context = replace(
            context,
            another_multicast=multicast_maker(streams, self._job, another_detector),
            another_scatter=scatter_maker(streams, self._job, another_detector),
        )
        return RankCollectives(settings.mechanism, context, settings.controller, settings.address, self._completing_of)

    @property
    def done(self) -> bool:
        """Whether all that was begun is."""
        with self._lock:
            return all(future.done() for future in self._last.values())

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the fabric."""
        return [] if self._made is None else self._made.failures

    def close(self, graceful: bool) -> None:
        """Close. `graceful`: wait until the other ranks have the results they asked for."""
        with self._lock:
            if self._made is not None:
                self._made.close(graceful)
            for threads in self._completing.values():
                threads.close(CLOSE_S)
            self._detectors.close()
