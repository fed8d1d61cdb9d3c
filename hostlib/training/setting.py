"""What every strategy gets, and what it gives: a rank's setting and its trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from hostlib.collective import Collective
from hostlib.group import Group
from hostlib.hook import HookState
from hostlib.multicast import SwitchMulticast
from hostlib.options import TrainOptions
from hostlib.peers import Peers
from hostlib.registry import Mechanism


@dataclass(frozen=True, slots=True)
class Setting:
    """A rank's, or a strategy's server's, surroundings.

    Attributes:
        model: freshly made: with the same weights on every rank and server.
        loss: of outputs and labels, a mean over the examples.
        optimiser: makes one of parameters; every rank's is to have the same gradients.
        collective: the mechanism at work; None on a strategy's server.
    """

    options: TrainOptions
    group: Group
    mechanism: Mechanism
    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    optimiser: Callable[[Iterable[nn.Parameter]], Optimizer]
    collective: Collective | None

    @property
    def sums(self) -> Collective:
        """The collective of a rank."""
        assert self.collective is not None, "a server has no collective"
        return self.collective

    def another_peers(self) -> Peers:
        """See Group.another_peers: every rank and every server of the strategy makes as many."""
        assert self.group.another_peers is not None, "only a strategy's hosts have messages of their own"
        return self.group.another_peers()

    def another_multicast(self) -> SwitchMulticast:
        """See Group.another_multicast: every rank makes as many."""
        assert self.group.another_multicast is not None, "only a strategy's hosts have messages of their own"
        return self.group.another_multicast(self.options.controller, self.options.address)


class Trainer(Protocol):
    """One rank's steps.

    Attributes:
        state: which buckets there were, and when those of the last step were under way.
        told: what is to be said of the run beside its figures, for the result.
    """

    state: HookState

    @property
    def told(self) -> dict[str, Any]: ...

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        """Forward and backward pass over this rank's examples, synchronisation, and the update; this rank's loss."""
        ...

    def whole(self) -> nn.Module:
        """The whole model with its present weights, the same on every rank. All ranks ask at the same time."""
        ...

    def close(self, graceful: bool = True) -> None:
        """There will be no more steps. Not `graceful`: something failed, and nobody is to be waited for."""
        ...


class DataParallel:
    """What trainers share whose ranks each have the whole model."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.state = HookState(setting.sums)
        self.model = setting.model
        self.optimiser = setting.optimiser(setting.model.parameters())

    @property
    def told(self) -> dict[str, Any]:
        return {}

    def whole(self) -> nn.Module:
        return self.model

    def close(self, graceful: bool = True) -> None:
        """Nothing of its own is to be ended: whoever made the collective closes it."""
