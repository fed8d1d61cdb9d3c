"""Where a run's model is cut, and the server's half of a step: sums in the order of the ranks, gradients for each."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import find
from hostlib.strategies.builtin.ralp.ralp_options import Options
from hostlib.strategies.builtin.ralp.ralp_trainer import Tail, decide
from hostlib.strategies.trainer import TrainerContext

BATCH, WORKERS = 4, 3


def context(model: nn.Module) -> TrainerContext:
    rank_context: Any = None
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    loss = nn.CrossEntropyLoss()
    return TrainerContext(
        rank_context, find("ring"), model, loss, sgd, None, BATCH, 1.0, lambda: torch.zeros(1, 1, 8, 8)
    )


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 16), nn.ReLU(inplace=True), nn.Linear(16, 500))


def split(model: nn.Module, options: Options) -> str | None:
    found = decide(context(model), options).split
    return None if found is None else found.layer.name


def test_the_profiler_decides_unless_it_is_told() -> None:
    assert split(network(), Options()) == "0"
    assert split(network(), Options(threshold=-9)) is None
    assert split(network(), Options(threshold=-9, force=True)) == "0"
    assert split(network(), Options(split="2")) == "2"
    assert split(network(), Options(threshold=-9, split="2")) == "2"


def test_nothing_to_cut_cannot_be_forced() -> None:
    with pytest.raises(HostlibError, match="ralp:force has nothing to cut"):
        decide(context(nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())), Options(force=True))


def test_what_was_decided_is_said() -> None:
    assert decide(context(network()), Options()).sentence.startswith("Partition: the skewness -")
    assert decide(context(network()), Options(threshold=-9)).sentence.startswith("No partition: ")
    assert decide(context(network()), Options(split="2")).sentence == "Split after 2, as requested."
    assert decide(context(network()), Options(threshold=-9, force=True)).sentence == "Split after 0, as requested."


class OneStep:
    """A worker's line: what it sent, and what it gets."""

    def __init__(self, handed: Tensor, labels: Tensor) -> None:
        self._sent = [handed, labels]
        self.got: list[Tensor] = []

    def received(self) -> list[Tensor]:
        return [tensor.clone() for tensor in self._sent]

    def send(self, tensors: list[Tensor]) -> None:
        self.got = [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("together", [False, True])
def test_the_tail_learns_what_one_process_does(together: bool) -> None:
    torch.manual_seed(1)
    here = context(network())
    alone = network()
    alone.load_state_dict(here.model.state_dict())
    halves = decide(here, Options(split="0")).halves(here)
    images, labels = torch.rand(WORKERS, BATCH, 1, 8, 8), torch.randint(10, (WORKERS, BATCH))
    handed = [halves.head(each)[0].detach() for each in images]

    lines: list[Any] = [OneStep(*each) for each in zip(handed, labels, strict=True)]
    tail = Tail(here, halves.tail)
    tail.step(lines, together)

    optimiser = here.optimiser(alone.parameters())
    between = alone[0](images.flatten(0, 1))  # type: ignore[index]
    between.retain_grad()
    loss = here.loss(alone[1:](between), labels.flatten())  # type: ignore[index]
    loss.backward()
    optimiser.step()
    for name, parameter in halves.tail.named_parameters():
        torch.testing.assert_close(parameter, alone.get_parameter(name), rtol=0, atol=1e-6)
    # Workers average what follows from these over all of them.
    gradients = torch.cat([line.got[1] for line in lines]) / WORKERS
    torch.testing.assert_close(gradients, between.grad, rtol=0, atol=1e-6)
    losses = torch.cat([line.got[0] for line in lines])
    assert losses.mean().item() == pytest.approx(loss.item())
    assert together == (losses.unique().numel() == 1)
