"""Which cells are valid: by what their own processes lacked."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from emulation.experiments.measurement import Lack, Measured, Usage, measured
from emulation.experiments.process_times import ProcessTimes, ThreadTimes
from emulation.experiments.replay_worker import WorkerReport
from emulation.experiments.runner import row_of
from emulation.experiments.validity import Cause, bottleneck
from simulation.experiments.experiment_file import read_experiment
from simulation.predictors.predictor import find_predictor

EASY = Lack({"switch": 0.05}, {"worker0": 0.02, "worker1": 0.03}, own=0.3, others=0.05)
RIGHT = Measured([40.0, 40.2], {}, {"switch": 0.4, "controller": 0.1, "machine": 0.6}, 0.0, 0, {}, 0.001, EASY)


def test_a_cell_that_lacked_nothing_is_valid_however_busy_the_machine_was() -> None:
    busy = replace(EASY, own=0.3, others=0.7)
    assert bottleneck(replace(RIGHT, cpu={"switch": 0.4, "machine": 1.0}, lack=busy), 8) is None


@pytest.mark.parametrize(
    ("of", "cause", "says", "dilation"),
    [
        (
            replace(RIGHT, lack=replace(EASY, ranks={"worker0": 0.02, "worker7": 0.18})),
            Cause.WAITED,
            "worker7 waited for a core for 18% of the time: run again with --dilation 16",
            16,
        ),
        (
            replace(RIGHT, lack=replace(EASY, switches={"leaf0": 0.1, "spine": 0.5})),
            Cause.WAITED,
            "spine waited for a core for 50% of the time: run again with --dilation 32",
            32,
        ),
        (
            replace(RIGHT, lack=replace(EASY, switches={"switch": 0.3}, others=0.61)),
            Cause.LOAD,
            "something else loads this machine (61% of its cores, this cell 30%), and switch waited for a core for 30% "
            "of the time: end it, or run again with --real-time or --dilation 20",
            20,
        ),
        (
            replace(RIGHT, latest=0.006),
            Cause.LATE,
            "workers woke up late, by 0.6% of an iteration: run again with --dilation 32",
            32,
        ),
        (
            replace(RIGHT, cpu={"switch": 0.95, "controller": 0.99, "machine": 1.0}),
            Cause.BUSY,
            "switch was 95% busy: run again with --dilation 15",
            15,
        ),
        (
            # Something else is there, too, but without it the cell would not be valid either.
            replace(RIGHT, cpu={"switch": 0.98}, lack=replace(EASY, own=0.2, others=0.6)),
            Cause.BUSY,
            "switch was 98% busy: run again with --dilation 15",
            15,
        ),
        (
            replace(RIGHT, lack=replace(EASY, own=0.97)),
            Cause.BUSY,
            "this cell used 97% of all cores: run again with --dilation 15",
            15,
        ),
        (
            replace(RIGHT, iterations_ms=[40.0, 50.0, 41.0], retransmits=1234),
            Cause.ITERATIONS,
            "its iterations differ by 24%, though it lacked nothing, and 1,234 packets were sent again: measure more "
            "iterations",
            None,
        ),
    ],
)
def test_the_message_says_what_was_lacked_and_what_would_mend_it(
    of: Measured, cause: Cause, says: str, dilation: int | None
) -> None:
    found = bottleneck(of, 8)
    assert found is not None
    assert (found.cause, found.why, found.dilation) == (cause, says, dilation)


def test_what_was_sent_again_on_links_that_lose_nothing_is_a_cause() -> None:
    """One worker's packets are enough: its link is what the others wait for."""
    few = replace(RIGHT, retransmits=90, again=0.009)
    assert bottleneck(few, 8) is None
    many = replace(RIGHT, retransmits=17_657, again=0.75)
    found = bottleneck(many, 8)
    assert found is not None and (found.cause, found.dilation) == (Cause.AGAIN, 12)
    assert found.why == (
        "a worker sent 75.0% of its packets again, though no link loses any and it lacked nothing: run again with --dilation 12"
    )
    assert bottleneck(many, 8, drops=True) is None
    assert bottleneck(replace(many, lack=None), 1) is None
    # Who waits for a core answers late, and that is then the cause.
    waited = bottleneck(replace(many, lack=replace(EASY, ranks={"worker7": 0.18})), 8)
    assert waited is not None and waited.cause is Cause.WAITED


def test_the_worker_with_the_largest_share_of_retransmits_counts(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text('[cells]\nmodels = ["1MiB"]\nmechanisms = ["inagg+mcast"]\nworkers = [3]\n')
    reports = [
        asdict(WorkerReport(rank, 0, [10, 20], 0, [0, 0], [], packets, again, marked=rank))
        for rank, packets, again in (
            (0, 10_000, 20),
            (1, 1_000, 20),
            (2, 0, 60),
        )  # the last one's are no share of its packets
    ]
    found = measured(read_experiment(path), 1.0, reports, Usage({}, {}))
    assert (found.again, found.retransmits, found.marked) == (0.02, 100, 3)


@pytest.mark.parametrize(
    ("topology", "valid"), [("", False), ("[topology]\nqueue = 20\n", True), ("[topology]\nloss = 0.01\n", True)]
)
def test_links_that_drop_frames_as_they_are_told_to_are_no_cause(topology: str, valid: bool, tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(f'[cells]\nmodels = ["1MiB"]\nmechanisms = ["inagg+mcast"]\nworkers = [2]\n{topology}')
    experiment = read_experiment(path)
    row = row_of(
        experiment, experiment.cells[0], 8.0, replace(RIGHT, retransmits=900, again=0.09), find_predictor("simulator")
    )
    assert (row["valid"], row["again"], row["cause"]) == (valid, 0.09, None if valid else "again")


def test_what_is_random_may_differ_and_so_may_real_hosts() -> None:
    differ = replace(RIGHT, iterations_ms=[40.0, 60.0])
    assert bottleneck(differ, 8) is not None
    assert bottleneck(differ, 8, random=True) is None
    on_hosts = replace(differ, lack=None, cpu={}, latest=0.01)
    assert bottleneck(on_hosts, 1) is None
    late = bottleneck(replace(on_hosts, latest=0.03), 1)
    assert late is not None and late.cause is Cause.LATE
    assert (late.why, late.dilation) == ("workers woke up late, by 3.0% of an iteration", None)
    busy = bottleneck(replace(on_hosts, cpu={"switch": 0.97}), 1)
    assert busy is not None and busy.why == "switch was 97% busy: --controller names a faster fabric's"


def test_a_suggested_dilation_is_at_most_four_times_as_much() -> None:
    hopeless = bottleneck(replace(RIGHT, latest=0.5), 8)
    assert hopeless is not None and hopeless.dilation == 32


def test_a_process_s_times_are_of_its_busiest_thread() -> None:
    earlier = ProcessTimes({1: ThreadTimes(100, 5), 2: ThreadTimes(10, 10)})
    later = ProcessTimes({1: ThreadTimes(200, 7), 2: ThreadTimes(10**9 + 10, 3 * 10**9 + 10), 3: ThreadTimes(5, 5)})
    spent = later.since(earlier)
    assert spent.waited_s == 3.0 and spent.cpu_s == pytest.approx(1.0, abs=1e-6)
    assert ProcessTimes({}).waited_s == 0.0


def test_the_kernel_tells_a_process_s_times() -> None:
    earlier = ProcessTimes.of(os.getpid())
    give_up = time.monotonic() + 30
    while ProcessTimes.of(os.getpid()).since(earlier).cpu_s < 0.02 and time.monotonic() < give_up:
        pass
    spent = ProcessTimes.of(os.getpid()).since(earlier)
    assert spent.cpu_s >= 0.02 and spent.waited_s >= 0
    assert ProcessTimes.of(2**22 + 1).threads == {}  # above the largest pid
