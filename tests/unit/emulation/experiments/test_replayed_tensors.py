"""The tensors of a replayed iteration: what each collective must leave, and that anything else is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emulation.errors import EmulationError
from emulation.experiments import replayed_tensors
from emulation.experiments.cell import process_options
from emulation.experiments.replayed_tensors import ReplayedTensors
from emulation.experiments.runner import ExperimentRun, RunOptions
from emulation.experiments.worker_options import ReplayOptions
from emulation.networks.realise import NetworkKind
from hostlib.collectives.rank_collectives import added_up
from hostlib.mechanisms.mechanism import find
from hostlib.schedules.contract import Collective
from simulation.experiments.experiment_file import read_experiment

N, RANK = 4, 2
KINDS = (None, Collective.REDUCE_SCATTER, Collective.ALL_GATHER, Collective.BROADCAST)


def done(value: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


class Ranks:
    """Rank 2 of four; each of the others gives its number, from 1. `lost`: elements that stay as they are."""

    rank, world_size = RANK, N
    lost = 0
    failures: tuple[Any, ...] = ()

    def __init__(self, *_: object) -> None:
        self.closed: list[bool] = []

    def stats(self) -> None:
        """No engine."""

    def close(self, graceful: bool = True) -> None:
        self.closed.append(graceful)

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Any]:
        assert average and (tensor == RANK + 1).all()
        tensor[self.lost :] = (N + 1) / 2
        return done(tensor)

    def reduce_scatter(self, output: Tensor, values: Tensor, average: bool) -> torch.futures.Future[Any]:
        assert average and (values == RANK + 1).all() and len(values) == N * len(output)
        output[self.lost :] = (N + 1) / 2
        return done(output)

    def all_gather(self, output: Tensor, values: Tensor) -> torch.futures.Future[Any]:
        assert (values == RANK + 1).all() and len(output) == N * len(values)
        output[self.lost :] = torch.arange(1.0, N + 1).repeat_interleave(len(values))[self.lost :]
        return done(output)

    def broadcast(self, tensor: Tensor, root: int) -> torch.futures.Future[Any]:
        tensor[self.lost :] = root + 1
        return done(tensor)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    made = Ranks()
    monkeypatch.setattr(replayed_tensors, "RankCollectives", lambda *_: made)
    monkeypatch.setattr(replayed_tensors, "create_collective", lambda *_: made)
    return made


def tensors(ranks: Ranks) -> ReplayedTensors:
    context: Any = ranks
    return ReplayedTensors(find("inagg+mcast"), (10, 12, 12, 10), KINDS, context, "job", "http://nowhere", "127.0.0.1")


@pytest.mark.parametrize(("lost", "wrong"), [(0, 0), (1, 4), (2, 8)])
def test_what_a_collective_does_not_leave_is_counted(ranks: Ranks, lost: int, wrong: int) -> None:
    made, ranks.lost = tensors(ranks), lost
    for number in range(len(KINDS)):
        future, name = made.begin(number)
        future.wait()
        assert name == f"tensor {number} ({4e-6 * (10, 12, 12, 10)[number]:.3g} MB)"
    assert made.wrong_elements == wrong
    assert made.multicasts and made.failures == [] and made.stats() is None
    made.close(graceful=False)
    assert ranks.closed == [False, True]


def test_a_mechanism_that_sums_nothing_joins_for_no_sums(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed_tensors, "create_collective", lambda *_: pytest.fail("a place for no sums"))
    context: Any = ranks
    kinds = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    made = ReplayedTensors(find("ring"), (12, 12), kinds, context, "job", "http://nowhere", "127.0.0.1")
    assert not made.multicasts


@pytest.mark.parametrize(
    ("mechanism", "collective", "says"),
    [
        (
            "ring",
            "all_to_all",
            "all_to_all can be simulated, not replayed; legal are all_reduce, reduce_scatter, all_gather",
        ),
        ("ps", "reduce_scatter", "servers serve all-reduces only; leave it out"),
    ],
)
def test_what_workers_cannot_do_is_refused_before_anything_runs(
    tmp_path: Path, mechanism: str, collective: str, says: str
) -> None:
    (tmp_path / "moved.toml").write_text(
        f'[cells]\nmodels = ["1MB"]\nmechanisms = ["{mechanism}"]\ncollectives = ["{collective}"]\nworkers = [2]\n'
    )
    experiment = read_experiment(tmp_path / "moved.toml")
    with pytest.raises(EmulationError, match=says):
        ExperimentRun(experiment, RunOptions(tmp_path / "out", NetworkKind.LOOPBACK), lambda row: None)
    assert not (tmp_path / "out").exists()


def test_counters_of_nothing_stay() -> None:
    assert added_up([{"sent": 1, "again": 0}, None, {"sent": 2, "again": 0}]) == {"sent": 3, "again": 0}
    assert added_up([None]) is None and added_up([]) is None


def test_a_worker_is_told_what_its_plan_gathers(tmp_path: Path) -> None:
    (tmp_path / "sharded.toml").write_text(
        '[cells]\nmodels = ["lenet"]\nmechanisms = ["fsdp/ring"]\nbandwidths = ["1gbit"]\nworkers = [3]\n'
    )
    experiment = read_experiment(tmp_path / "sharded.toml")
    cell = experiment.cells[0]
    _, text = process_options(experiment, cell, 2.0, 1, "http://nowhere", "127.0.0.1", "")
    options, workload = ReplayOptions.from_json(text), experiment.workload(cell)
    assert options == ReplayOptions.from_json(options.to_json())
    assert options.forward == tuple(round(2 * int(ns)) for ns in workload.forward_ns)
    assert len(options.asked) == len(options.awaited) == len(options.forward) + len(options.backward)
    # Whole shards for each of three ranks, which begin where the plan says.
    assert all(count % 3 == 0 for count in options.elements)
    kinds = [options.collectives[number] for number, _, _ in workload.gathers]
    assert set(kinds) == {"all_gather"} and set(options.collectives) == {"all_gather", "reduce_scatter"}
    for number, asked, needed in workload.gathers:
        assert number in options.asked[asked] and number in options.awaited[needed]
