"""CGDP's trainer on one rank, with sums that are recorded: which part of the gradients goes when, and what remains."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import find
from hostlib.models.inspection import example, input_of, layers_of
from hostlib.models.loading import load_without_weights
from hostlib.models.zoo import NAMES
from hostlib.strategies.builtin.cgdp.cgdp_options import Options
from hostlib.strategies.builtin.cgdp.cgdp_trainer import HostAccumulating, trained_layers
from hostlib.strategies.builtin.cgdp.cost_model import partition
from hostlib.strategies.strategy import choose, find_strategy
from hostlib.strategies.trainer import TrainerContext
from hostlib.transport.rank_context import RankContext

LAYERS, WIDTH, BATCH = 6, 8, 4


class Recorded:
    """A collective of one rank, which doubles what it is given: so that what it has summed can be told."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.failures: list[dict[str, Any]] = []

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        assert average
        self.sizes.append(tensor.numel())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(tensor.mul_(2))
        return future

    def stats(self) -> None:
        return None

    def close(self, graceful: bool = True) -> None: ...


class Net(nn.Module):
    """LAYERS trained layers of unlike sizes, one with a normalisation; and one that the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(WIDTH, WIDTH, bias=bool(n % 2)) for n in range(LAYERS - 2)), nn.GroupNorm(2, WIDTH), nn.Tanh()
        )
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x))  # type: ignore[no-any-return]


def made(options: Options) -> tuple[HostAccumulating, Recorded]:
    torch.manual_seed(1)
    collective = Recorded()
    rank_context = RankContext(0, 1, None, cast(Any, None), 5.0, lambda: None, lambda: None, cast(Any, None))
    sgd = partial(torch.optim.SGD, lr=0.1)
    model, loss = Net(), nn.CrossEntropyLoss()
    context = TrainerContext(rank_context, find("shm"), model, loss, sgd, collective, BATCH, 1.0, lambda: batch()[0])
    return HostAccumulating(context, options), collective


def batch() -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(2)
    return torch.randn(BATCH, WIDTH, generator=drawn), torch.randint(0, 2, (BATCH,), generator=drawn)


@pytest.fixture
def alone() -> Iterator[None]:
    """torch's default group, of this process: what rank 0 tells the others goes by it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=10))
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("size", range(1, LAYERS + 2))
def test_chunks_go_in_backward_order_and_have_all_gradients(size: int) -> None:
    trainer, collective = made(Options(chunk=size))
    assert trainer.notes == {"chunk_size": size}
    sizes = [sum(p.numel() for p in layer) for layer in trained_layers(trainer.model)]
    plain, loss = Net(), nn.CrossEntropyLoss()
    plain.load_state_dict(trainer.model.state_dict())
    inputs, labels = batch()
    trainer.step(inputs, labels)
    assert collective.sizes == [sum(sizes[layer - 1] for layer in chunk) for chunk in partition(LAYERS, size)]
    assert trainer.state.buckets == collective.sizes
    assert [span.bucket for span in trainer.state.step.spans] == list(range(len(collective.sizes)))
    loss(plain(inputs), labels).backward()
    for (name, mine), theirs in zip(trainer.model.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        wanted = torch.zeros_like(theirs) if theirs.grad is None else 2 * theirs.grad
        assert torch.equal(mine.grad, wanted), name
        assert torch.equal(mine, theirs.detach().add(wanted, alpha=-0.1)), name


def test_the_first_chunk_goes_while_the_backward_pass_goes_on() -> None:
    trainer, _ = made(Options(chunk=1))
    trainer.step(*batch())
    times = trainer.state.step
    assert times.backward_begin_ns < times.spans[0].begin_ns < times.backward_end_ns
    assert all(span.done_ns >= span.begin_ns for span in times.spans)


def test_steps_do_not_add_up_gradients() -> None:
    trainer, _ = made(Options(chunk=3))
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.step(*batch())
    first = [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]
    trainer.model.load_state_dict(weights)
    trainer.step(*batch())
    assert all(torch.equal(one, p.grad) for one, p in zip(first, trainer.model.parameters(), strict=True))


def test_the_search_tries_sizes_in_turn_and_keeps_one(alone: None) -> None:
    options = Options(step=3, range=1, interval=2)
    trainer, collective = made(options)
    search, sizes = trainer.search, []
    assert search is not None
    while not search.over:
        assert len(sizes) < 100
        sizes.append(search.chunk)
        before = len(collective.sizes)
        trainer.step(*batch())
        assert len(collective.sizes) - before == len(partition(LAYERS, sizes[-1]))
    tried = [trial.chunk for trial in search.trials]
    # The first step is not timed.
    assert sizes == [tried[0], *(size for size in tried for _ in range(options.interval))]
    assert tried[:3] == [1, 2, 3]
    best = min(search.trials, key=lambda trial: trial.lapse_s).chunk
    before = len(collective.sizes)
    trainer.step(*batch())
    assert search.best == best
    assert trainer.notes == {"chunk_size": best, "chunk_sizes_tried": tried}
    assert len(collective.sizes) - before == len(partition(LAYERS, best))


@pytest.mark.parametrize("name", NAMES)
def test_layers_are_those_that_inspection_finds(name: str) -> None:
    model = load_without_weights(name)
    names = {parameter: name for name, parameter in model.named_parameters()}
    mine = [{names[parameter] for parameter in layer} for layer in trained_layers(model)]
    seen = layers_of(model, example(model, input_of(model)))
    assert mine == [set(layer.members) for layer in seen if layer.params]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cgdp:step=0", "step must be at least 1, not 0"),
        ("cgdp:interval=0", "interval must be at least 1, not 0"),
        ("cgdp:chunk=x", "cgdp:chunk takes a number, not 'x'"),
        (
            "cgdp:size=3",
            "unknown option of cgdp 'size'; legal are accumulation, broadcast, chunk, interval, range, step, sync",
        ),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(name: str, line: str) -> None:
    with pytest.raises(HostlibError) as refused:
        find_strategy(name)
    assert line in str(refused.value)


def test_a_bare_cgdp_sums_in_shared_memory() -> None:
    assert str(choose("cgdp")) == "cgdp/shm"
    assert choose("cgdp:chunk=2/ring").strategy.options == Options(chunk=2)
