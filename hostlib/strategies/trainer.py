"""The interface of strategies: a rank's context and its trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from hostlib.collectives.collective import Collective
from hostlib.fabric.job_client import DEFAULT_CONTROLLER
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.pytorch.ddp_hook import HookState
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import MulticastTransport, Transport


@dataclass(frozen=True, slots=True)
class TrainerContext:
    """The context of a rank, or of a strategy's server.

    Attributes:
        model: freshly initialised, with the same weights on every rank and server.
        loss: of outputs and labels, a mean over the examples.
        optimiser: makes an optimiser for given parameters; every rank's must get the same gradients.
        collective: the mechanism's; None on a strategy's server.
        batch_size: examples of a rank in a step.
        bucket_mb: DDP's bucket size in MiB.
        example: a batch of one example.
        controller: its URL.
        address: this host's IPv4 address towards the switch.
    """

    rank_context: RankContext
    mechanism: Mechanism
    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    optimiser: Callable[[Iterable[nn.Parameter]], Optimizer]
    collective: Collective | None
    batch_size: int
    bucket_mb: float
    example: Callable[[], Tensor]
    controller: str = DEFAULT_CONTROLLER
    address: str = "127.0.0.1"

    @property
    def sums(self) -> Collective:
        """The collective of a rank."""
        assert self.collective is not None, "a server has no collective"
        return self.collective

    def another_transport(self) -> Transport:
        """See RankContext.another_transport: all ranks and servers of the strategy make equally many."""
        assert self.rank_context.another_transport is not None, "only a strategy's hosts have messages of their own"
        return self.rank_context.another_transport()

    def another_multicast(self) -> MulticastTransport:
        """See RankContext.another_multicast: all ranks make equally many."""
        assert self.rank_context.another_multicast is not None, "only a strategy's hosts have messages of their own"
        return self.rank_context.another_multicast(self.controller, self.address)


class Trainer(Protocol):
    """One rank's training steps.

    Attributes:
        state: the buckets, and when those of the last step were in flight.
        notes: remarks for the run's result.
    """

    state: HookState

    @property
    def notes(self) -> dict[str, Any]: ...

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        """Forward and backward pass over this rank's examples, synchronisation and update; returns its loss."""
        ...

    def whole(self) -> nn.Module:
        """The whole model with its current weights, the same on every rank. All ranks must call it together."""
        ...

    def stats(self) -> dict[str, int] | None:
        """The counters of the packet engines of its own, beside its context's collective's; None without any."""
        ...

    def close(self, graceful: bool = True) -> None:
        """End after the last step. Not `graceful`: after a failure, without waiting for other ranks."""
        ...


class DataParallel:
    """Base of trainers whose ranks each have the whole model."""

    def __init__(self, context: TrainerContext) -> None:
        self.context = context
        self.state = HookState(context.sums)
        self.model = context.model
        self.optimiser = context.optimiser(context.model.parameters())

    @property
    def notes(self) -> dict[str, Any]:
        return {}

    def whole(self) -> nn.Module:
        return self.model

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        """Do nothing: the collective's creator closes it."""
