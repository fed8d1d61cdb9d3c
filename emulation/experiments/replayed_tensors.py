"""The tensors of a replayed iteration: real ones, each for one collective of the mechanism, and what they must end with.

Every element that a rank gives is its number among the ranks, from 1, so that it is known what each must take. Needs
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hostlib.collectives.collective import Collective as Sums
from hostlib.collectives.create import create_collective
from hostlib.collectives.rank_collectives import RankCollectives, added_up
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import FabricUse
from hostlib.transport.rank_context import RankContext

Future = torch.futures.Future[Any]

ROOT = 0  # of broadcasts
TOLERANCE = 1e-5  # of a value, relative: far above rounding, far below a lost or doubled contribution


@dataclass(frozen=True, slots=True)
class Replayed:
    """One tensor.

    Attributes:
        bytes: of the whole.
        begin: begins its collective.
        wrong: counts the elements that are not what they must be.
    """

    bytes: int
    begin: Callable[[], Future]
    wrong: Callable[[], int]


class ReplayedTensors:
    """A worker's tensors.

    Args:
        elements: of each tensor; see ReplayOptions.
        collectives: of each tensor; None for the mechanism's all-reduce.
        context: of the ranks that share the tensors.
        job: a name that is the same on all of them.

    Attributes:
        multicasts: whether the switch multicasts some of them.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        elements: tuple[int, ...],
        collectives: tuple[Collective | None, ...],
        context: RankContext,
        job: str,
        controller: str,
        address: str,
    ) -> None:
        self._rank, self._world_size = context.rank, context.world_size
        kinds = dict.fromkeys(collectives)
        self._others = RankCollectives(mechanism, context, controller, address)
        self._sums: Sums | None = None
        if None in kinds or not kinds:
            self._sums = create_collective(mechanism, context, controller, job, address)
        self.multicasts = any(
            (mechanism if each is None else mechanism.of(each)).fabric_use is FabricUse.MULTICAST for each in kinds
        )
        self._tensors = [self._tensor(*each) for each in zip(collectives, elements, strict=True)]

    def begin(self, number: int) -> tuple[Future, str]:
        """Begin a tensor's collective; returns its future and what to call it."""
        tensor = self._tensors[number]
        return tensor.begin(), f"tensor {number} ({tensor.bytes / 1e6:.3g} MB)"

    @property
    def wrong_elements(self) -> int:
        """How many elements, of all tensors, are not what they must be after a first iteration."""
        return sum(tensor.wrong() for tensor in self._tensors)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the fabric."""
        return [*([] if self._sums is None else self._sums.failures), *self._others.failures]

    def stats(self) -> dict[str, int] | None:
        """The counters of all packet engines, added up; None without an engine."""
        return added_up([self._others.stats(), None if self._sums is None else self._sums.stats()])

    def close(self, graceful: bool) -> None:
        """End; see RankCollectives.close."""
        self._others.close(graceful)
        if self._sums is not None:
            self._sums.close()

    # ---- tensors -----------------------------------------------------------------------------------------------------

    def _tensor(self, collective: Collective | None, count: int) -> Replayed:
        mine, average, size = float(self._rank + 1), (self._world_size + 1) / 2, count // self._world_size
        whole, others = torch.full((count,), mine), self._others
        match collective:
            case None:
                assert self._sums is not None
                sums = self._sums
                return Replayed(whole.nbytes, lambda: sums.allreduce(whole, average=True), lambda: off(whole, average))
            case Collective.BROADCAST:
                return Replayed(whole.nbytes, lambda: others.broadcast(whole, ROOT), lambda: off(whole, ROOT + 1))
            case Collective.REDUCE_SCATTER:
                shard = torch.zeros(size)
                return Replayed(
                    whole.nbytes, lambda: others.reduce_scatter(shard, whole, average=True), lambda: off(shard, average)
                )
            case Collective.ALL_GATHER:
                own = torch.full((size,), mine)
                return Replayed(
                    whole.nbytes,
                    lambda: others.all_gather(whole, own),
                    lambda: sum(off(part, rank + 1) for rank, part in enumerate(whole.chunk(self._world_size))),
                )
        raise ValueError(f"{collective} is not replayed")


def off(tensor: Tensor, value: float) -> int:
    """Count the elements that are not a value."""
    return int((~((tensor - value).abs() <= TOLERANCE * value)).sum())
