"""Every strategy with every mechanism that it goes with: what four workers train is what one process trains with all of
their examples, and all ranks have the same bits.

One group of processes goes through all pairs that are asked for; PAIRS are further ones, with options that matter. Each
strategy and each mechanism is in one that is not slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hostlib.datasets.batches import Split, batches, digits
from hostlib.errors import HostlibError
from hostlib.launch.fork_server import fork_server
from hostlib.launch.hosts import LocalHosts
from hostlib.launch.launcher import run_ranks
from hostlib.mechanisms.mechanism import Mechanism, find, registered
from hostlib.strategies.strategy import Strategy, choose, registered_strategies
from hostlib.train.local import TRAINING
from hostlib.train.loop import MOMENTUM
from tests.conftest import running_fabric
from tests.integration.strategies import strategy_ranks
from tests.integration.strategies.strategy_ranks import BATCH_SIZE, LR, SEED, STEPS, WORKERS, network

pytestmark = pytest.mark.timeout(400)  # of the first test, which waits for all runs

Weights = dict[str, Tensor]

MECHANISMS = [*(m for m in registered().values() if m.runs_with("gloo")), find("inagg+mcast:via_server")]
PAIRS = [
    "wfbp/ps:servers=2:assign=even",
    "bsp/ps:servers=2:assign=pairs:colocated",
    "cgdp:chunk=1/shm",
    "cgdp:chunk=2/inagg+mcast",
    "ralp:force/ring",
    "sfb:multicast/ring",
    "sfb:multicast/inagg+mcast",  # two jobs on one switch
    "ralp:force:all/inagg+mcast",
    "cgdp:step=2:range=1:interval=3/shm",  # the search ends within the steps
]

# How gradients are cut does not change sums in shared memory.
ALIKE = ("bsp/shm", "wfbp/shm", "cgdp/shm", "cgdp:chunk=1/shm", "cgdp:step=2:range=1:interval=3/shm")

# How far an average of gradients may be from the reference's, as a part of the step's largest gradient. What the fabric
# carries is off by 2^-28 (docs/protocol.md, "Numbers": half a unit of 2^(e + h - 30) for each rank, h = 2, and 2^e at
# most twice the largest value). A float32 sum is off by 2^-24 for each addition, and of ranks and examples, which are
# added in another order, there are 16.
ROUNDING = WORKERS * BATCH_SIZE * 2**-24
# At worst the steps' errors do not make up for each other, as random ones do.
WORST = math.sqrt(STEPS)
TRIALS = 4
FALLEN = 0.8
MARGIN = 1000  # between rounding and what training, or a rank that is left out, changes


def legal_pairs() -> list[str]:
    """All of them."""
    crossed = [f"{s.name}/{m.name}" for s in registered_strategies().values() for m in MECHANISMS if goes_with(s, m)]
    return crossed + PAIRS


def covering(pairs: list[str]) -> set[str]:
    """The first pairs that have a strategy or a mechanism which none before them has, and all of PAIRS."""
    seen: set[str] = set()
    chosen = set(PAIRS)
    for pair in pairs:
        parts = set(pair.partition("/")[::2])
        if not parts <= seen:
            chosen.add(pair)
        seen |= parts
    return chosen


def as_parameters(pairs: list[str]) -> list[Any]:
    few = covering(pairs)
    more = (pytest.mark.slow, pytest.mark.crossed)
    return [pytest.param(pair, marks=() if pair in few else more) for pair in pairs]


def goes_with(strategy: Strategy, mechanism: Mechanism) -> bool:
    return strategy.refusal(mechanism) is None


# ---- the reference ---------------------------------------------------------------------------------------------------


def fresh() -> Weights:
    torch.manual_seed(SEED)
    return network().state_dict()


def trained(data: Split, workers: int = WORKERS, noise: float = 0.0, trial: int = 0) -> Weights:
    """What one process ends with, given the examples of so many ranks of WORKERS at each step.

    Args:
        noise: added to gradients, up to so much of the step's largest one, either way.
    """
    torch.manual_seed(SEED)
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    drawn = torch.Generator().manual_seed(trial)
    for chosen in islice(batches(len(data.train_labels), WORKERS * BATCH_SIZE, 0, 1, SEED, 0), STEPS):
        mine = chosen[: workers * BATCH_SIZE]
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.train_images[mine]), data.train_labels[mine]).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        largest = max(float(gradient.abs().max()) for gradient in gradients)
        for gradient in gradients:
            gradient += noise * largest * (2 * torch.rand(gradient.shape, generator=drawn) - 1)
        optimiser.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def apart(one: Weights, other: Weights) -> float:
    """The largest difference of two models' weights."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def loss(weights: Weights, data: Split) -> float:
    model = network()
    model.load_state_dict(weights)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(data.train_images), data.train_labels))


@pytest.fixture(scope="module")
def data() -> Split:
    return digits(SEED)


@pytest.fixture(scope="module")
def reference(data: Split) -> Weights:
    return trained(data)


@pytest.fixture(scope="module")
def bound(data: Split, reference: Weights) -> float:
    """How far weights may be from the reference's: as far as rounding at each step moves them, by what follows from it."""
    return WORST * max(apart(reference, trained(data, noise=ROUNDING, trial=trial)) for trial in range(TRIALS))


# ---- the pairs -------------------------------------------------------------------------------------------------------


class Outcomes:
    """What came of each pair: the ranks' digests and the weights, or why it failed."""

    def __init__(self, folder: Path, asked: list[str]) -> None:
        self._folder, self._asked = folder, asked
        self._digests: dict[str, list[str]] = {}
        self._failures: dict[str, str] = {}

    def play(self, controller: str) -> None:
        """Go through all pairs; one that fails takes its processes along, and others go on after it."""
        while left := [pair for pair in self._asked if pair not in self._digests | self._failures]:
            try:
                self._play(left, controller)
            except HostlibError as error:
                failed = next(pair for pair in left if pair not in self._digests)
                self._failures[failed] = str(error)

    def _play(self, pairs: list[str], controller: str) -> None:
        folder = self._folder / str(len(self._failures))
        folder.mkdir()
        options = strategy_ranks.PairOptions(pairs, str(folder), controller)
        servers = max(choose(pair).servers for pair in pairs)
        with fork_server(*TRAINING, strategy_ranks.__name__) as forks:
            module, text = strategy_ranks.__name__, options.to_json()
            run_ranks(module, lambda rank: text, WORKERS, LocalHosts(), self._note, servers, forks)

    def _note(self, event: dict[str, Any]) -> None:
        self._digests[event["pair"]] = event["weights_sha256"]

    def of(self, pair: str) -> tuple[list[str], Weights]:
        assert pair not in self._failures, self._failures[pair]
        (path,) = self._folder.glob(f"*/{strategy_ranks.file_name(pair)}")
        return self._digests[pair], torch.load(path)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Of the pairs whose tests were selected, and of those that are compared with each other."""
    selected = {item.callspec.params.get("pair") for item in request.session.items if hasattr(item, "callspec")}
    asked = [pair for pair in legal_pairs() if pair in selected | set(ALIKE)]
    with running_fabric(tmp_path_factory.mktemp("fabric")) as fabric:
        found = Outcomes(tmp_path_factory.mktemp("weights"), asked)
        found.play(fabric.http)
        yield found


@pytest.mark.parametrize("pair", as_parameters(legal_pairs()))
def test_workers_train_as_one_process_does(
    pair: str, outcomes: Outcomes, data: Split, reference: Weights, bound: float
) -> None:
    digests, weights = outcomes.of(pair)
    assert len(digests) == WORKERS
    assert len(set(digests)) == 1
    assert loss(weights, data) < FALLEN * loss(fresh(), data)
    assert apart(weights, fresh()) > MARGIN * bound
    if choose(pair).strategy.exact:
        assert apart(weights, reference) <= bound


def test_how_gradients_are_cut_does_not_change_sums_in_shared_memory(outcomes: Outcomes) -> None:
    assert len({outcomes.of(pair)[0][0] for pair in ALIKE}) == 1


def test_the_bound_would_show_a_rank_that_is_left_out(data: Split, reference: Weights, bound: float) -> None:
    assert 0 < MARGIN * bound < apart(reference, trained(data, workers=WORKERS - 1))


def test_pairs_that_are_not_legal_are_refused_with_those_that_are() -> None:
    for strategy in registered_strategies().values():
        for mechanism in registered().values():
            if goes_with(strategy, mechanism):
                assert choose(f"{strategy.name}/{mechanism.name}").strategy is strategy
                continue
            with pytest.raises(HostlibError) as refused:
                choose(f"{strategy.name}/{mechanism.name}")
            line = str(refused.value)
            assert "\n" not in line
            legal = [name for name, other in registered().items() if goes_with(strategy, other)]
            assert legal
            assert line.endswith(f"legal are {', '.join(sorted(legal))}")
