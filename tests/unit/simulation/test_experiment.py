"""Experiments: what a file says, what it may not say, and what the simulator makes of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hostlib.protocol.header import frame_bytes
from hostlib.traces.trace import Layer, Parameter, synthesise, write
from simulation.cli import main
from simulation.errors import ExperimentError
from simulation.experiments import scenario
from simulation.experiments.experiment_file import Cell, read_experiment
from simulation.predictors.experiment_cells import parts_of
from simulation.predictors.predictor import find_predictor
from simulation.simulator.workload import of_trace
from tests.conftest import ROOT
from tests.unit.simulation.simulated import simulated_s

TCP_FRAME = 1514
READY = ROOT / "emulation" / "experiments" / "ready"
SMALL = """
title = "small"
[cells]
models = ["MODEL"]
mechanisms = ["inagg+mcast", "ring"]
bandwidths = ["1gbit"]
workers = [2, 4]
[replay]
shrink = 2
bucket = "1MB"
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two layers: 1 ms and 2 ms each way, 400 kB and 800 kB."""
    layers = [Layer("a", 1_000_000, 1_000_000), Layer("b", 2_000_000, 2_000_000)]
    parameters = [Parameter("a/w", 400_000, "a"), Parameter("b/w", 800_000, "b")]
    write(synthesise(layers, parameters), tmp_path / "two.trace")
    return tmp_path / "two.trace"


@pytest.fixture
def small(tmp_path: Path, trace: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace("MODEL", str(trace)))
    return path


def test_all_combinations_of_one_network_follow_each_other(small: Path) -> None:
    cells = read_experiment(small).cells
    assert [(cell.workers, cell.mechanism) for cell in cells] == [
        (2, "inagg+mcast"),
        (2, "ring"),
        (4, "inagg+mcast"),
        (4, "ring"),
    ]
    assert len({cell.name for cell in cells}) == 4


def test_a_cell_that_is_all_communication_takes_what_its_bytes_take(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: the bucket of both gradients leaves when the backward pass is over, after 6 ms of computing."""
    in_step = replace(scenario.RUNTIME, jitter=0.0)
    monkeypatch.setattr("simulation.predictors.experiment_cells.RUNTIME", in_step)
    experiment = read_experiment(small)
    cell = Cell(experiment.cells[0].model, "inagg+mcast", "1gbit", 2)
    payload, frame = frame_bytes()
    seconds = simulated_s(experiment, cell)
    assert seconds is not None
    # Half as many bytes on a link that is half as fast; frames are whole, and the switch has one before it goes on. Before
    # them leave three prologues, of 50 blocks each, and the first one's result is back by then.
    link = 1e9 / 2
    frames = -(-600_000 // payload) + 1 + 3
    assert seconds == pytest.approx(0.006 + frames * frame * 8 / link, rel=1e-6)
    ring = simulated_s(experiment, Cell(cell.model, "ring", "1gbit", 4))
    assert ring is not None
    sent = 2 * 3 / 4 * 1_200_000 * 8 / 1e9 * (TCP_FRAME + 33) / 1448
    assert ring == pytest.approx(0.006 + sent + 6 * TCP_FRAME * 8 / link, rel=1e-6)


def test_what_cannot_be_simulated_is_not(small: Path) -> None:
    experiment = read_experiment(small)
    assert simulated_s(experiment, Cell(experiment.cells[0].model, "gloo", "1gbit", 2)) is None


@pytest.mark.parametrize("mechanism", ["ring", "inagg+mcast", "butterfly"])
def test_loss_costs_time(small: Path, mechanism: str) -> None:
    experiment = read_experiment(small)
    times = [simulated_s(experiment, Cell(experiment.cells[0].model, mechanism, "1gbit", 4, p)) for p in (0, 0.01, 0.2)]
    without, some, much = (each for each in times if each is not None)
    assert without <= some < much


WINDOW = """
[cells]
models = ["1MiB"]
mechanisms = ["inagg+mcast", "ring+mcast"]
bandwidths = ["10gbit"]
workers = [4]
slots = [16, 128]
delays = ["5us", "100us"]
[topology]
kind = "leaf-spine"
leaves = 2
delay = "7us"
"""


@pytest.fixture
def window(tmp_path: Path) -> Path:
    path = tmp_path / "window.toml"
    path.write_text(WINDOW)
    return path


def test_slots_and_delays_are_axes_whose_networks_follow_each_other(window: Path) -> None:
    experiment = read_experiment(window)
    assert [(cell.delay, cell.slots, cell.mechanism) for cell in experiment.cells] == [
        (delay, slots, mechanism)
        for delay in ("5us", "100us")
        for slots in (16, 128)
        for mechanism in ("inagg+mcast", "ring+mcast")
    ]
    assert experiment.cells[0].name == "1MiB-inagg+mcast-10gbit-4w-16slots-5us"
    assert experiment.cells[2].name == "1MiB-inagg+mcast-10gbit-4w-5us"
    for cell in experiment.cells:
        delays = {cable.delay_ns for cable in experiment.declared(cell).cables}
        assert delays == {5_000 if cell.delay == "5us" else 100_000}
        parts = parts_of(experiment, cell)
        assert parts is not None and parts[1].scenario(parts[0], parts[2]).semantics.slots == cell.slots
    window.write_text(WINDOW.replace('delays = ["5us", "100us"]', "").replace("slots = [16, 128]", ""))
    older = read_experiment(window)
    assert [(cell.slots, cell.delay) for cell in older.cells] == [(128, None)] * 2
    assert {cable.delay_ns for cable in older.declared(older.cells[0]).cables} == {7_000}


def test_a_rank_has_no_more_under_way_than_its_slots(window: Path) -> None:
    """By hand: 16 packets in each round trip over four links of 100 us, where 128 in that time are fewer than fit."""
    experiment = read_experiment(window)
    few, many = (
        simulated_s(experiment, Cell("1MiB", "inagg+mcast", "10gbit", 4, slots=slots, delay="100us"))
        for slots in (16, 128)
    )
    payload, _ = frame_bytes()
    assert few is not None and many is not None
    assert few == pytest.approx((1 << 20) / (16 * payload) * 400e-6, rel=0.03)
    assert many < few / 6


@given(sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=12), bucket=st.integers(1, 3 * 10**6))
def test_buckets_hold_everything_once_and_are_full(sizes: list[int], bucket: int) -> None:
    layers = [Layer(f"l{i}", 1000, 1000) for i in range(len(sizes))]
    parameters = [Parameter(f"l{i}/w", 4 * size, f"l{i}") for i, size in enumerate(sizes)]
    workload = of_trace(synthesise(layers, parameters), bucket_bytes=bucket)
    assert workload.bytes == 4 * sum(sizes)
    assert sorted(t for step in workload.released for t in step) == list(range(len(workload.tensors)))
    assert all(tensor.bytes >= bucket for tensor in workload.tensors[:-1])
    assert workload.backward_ns.sum() == of_trace(synthesise(layers, parameters)).backward_ns.sum()


def test_what_is_trained_in_earnest_is_not_simulated(small: Path) -> None:
    text = small.read_text()
    small.write_text(
        text[: text.index("[replay]")].replace(str(small.with_name("two.trace")), "lenet") + "[training]\n"
    )
    experiment = read_experiment(small)
    assert experiment.training is not None and experiment.training.iterations == 10
    assert simulated_s(experiment, experiment.cells[0]) is None


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("[replay]", "[training]\n[replay]", "replay and training exclude each other"),
        (
            '[replay]\nshrink = 2\nbucket = "1MB"',
            "[training]\nsteps = 2",
            "training.steps is not a key of an experiment; legal are iterations",
        ),
        ('title = "small"', "titel = 1", "titel is not a key of an experiment; legal are title, "),
        ("workers = [2, 4]", "workers = [0]", "cells.workers must be at least 1, not 0"),
        ("workers = [2, 4]", 'workers = ["2"]', "cells.workers must be a list that is not empty of numbers"),
        ("workers = [2, 4]", "worker = [2]", "cells.worker is not a key of an experiment; legal are models, "),
        ('"ring"', '"rong"', "rong"),
        ('"1gbit"', '"1gb"', "bandwidth '1gb' is not a number"),
        ("shrink = 2", "shrink = 0.5", "replay.shrink must be a number of at least 1, not 0.5"),
        ("shrink = 2", "iterations = 1.5", "replay.iterations must be a whole number, not 1.5"),
        ('bucket = "1MB"', 'bucket = "much"', "size 'much' is not a number"),
        ("shrink = 2", "shrink = inf", "replay.shrink must be a number, not inf"),
        ("shrink = 2", "shrink = true", "replay.shrink must be a number, not True"),
        ("shrink = 2", "bucket_bytes = 2", "replay.bucket_bytes is not a key of an experiment; legal are dilation, "),
        ("workers = [2, 4]", "workers = []", "cells.workers must be a list that is not empty, not []"),
        ("workers = [2, 4]", "loss = [1.0]", "cells.loss must be below 1, not 1.0"),
        ('title = "small"', "title = 3", "title must be a string, not 3"),
        ('title = "small"', "seed = 1.5", "seed must be a whole number, not 1.5"),
        ('title = "small"', "topology = 1", "topology must be a table, not 1"),
        (
            "[replay]",
            '[topology]\nkind = "star"\nleaves = 0\n[replay]',
            "topology of kind star has no key 'leaves'; legal are ",
        ),
        (
            "[replay]",
            '[topology]\nkind = "leaf-spine"\nleaves = 0\n[replay]',
            "0 leaves for 2 workers: at least 1, and a worker on each",
        ),
        ("workers = [2, 4]", "slots = [96]", "cells.slots must be powers of two, not 96"),
        ("workers = [2, 4]", "slots = [0]", "cells.slots must be at least 1, not 0"),
        ("workers = [2, 4]", "slots = [2048]", "needs 2048 slots of each switch, which has 1024"),
        ("workers = [2, 4]", "slots = [512]\njobs = [2, 3]", "needs 1536 slots of each switch, which has 1024"),
        (
            '"ring"]',
            '"ring+mcast"]\nslots = [1]',
            "ring+mcast-1gbit-4w-1slots: 1 slots are too few for 4 streams of chunks",
        ),
        (
            '"ring"]',
            '"fsdp/inagg+mcast"]\nslots = [1]',
            "fsdp_inagg+mcast-1gbit-4w-1slots: 1 slots are too few for 4 owners of shards",
        ),
        (
            '"ring"]',
            '"fsdp/inagg+mcast"]\nslots = [512]',
            "fsdp_inagg+mcast-1gbit-2w-512slots needs 2048 slots of each switch, which has 1024",
        ),
        ("workers = [2, 4]", 'collectives = ["gossip"]', "unknown collective 'gossip'; legal are all_gather, "),
        ("workers = [2, 4]", "collectives = []", "cells.collectives must be a list that is not empty, not []"),
        (
            "workers = [2, 4]",
            'collectives = ["all_gather"]',
            "cells.collectives: all_gather is of a size in cells.models, not of ",
        ),
        ("workers = [2, 4]", 'delays = ["soon"]', "delay 'soon' is not a number"),
        ("workers = [2, 4]", "delays = []", "cells.delays must be a list that is not empty, not []"),
        (
            '[replay]\nshrink = 2\nbucket = "1MB"',
            "slots = [64]\n[training]",
            "cells.slots is of replayed models: real training has slots of its own",
        ),
        ("MODEL", "0MB", "cells.models: 0MB is not a size of at least 1 byte"),
        ("MODEL", "4parsecs", "size '4parsecs'"),
        ("[cells]", "[cell]", "cell is not a key of an experiment"),
        ("[cells]", "[cells", "is not TOML"),
        ("two.trace", "none.trace", "none.trace"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(small: Path, old: str, new: str, says: str) -> None:
    small.write_text(small.read_text().replace(str(small.with_name("two.trace")) if old == "MODEL" else old, new))
    with pytest.raises(ExperimentError) as error:
        read_experiment(small)
    assert str(small) in str(error.value) and says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_simulator_plays_every_cell_of_a_file(small: Path) -> None:
    done = CliRunner().invoke(main, ["run", str(small), "--json"], catch_exceptions=False)
    rows = json.loads(done.stdout)
    assert [row["workers"] for row in rows] == [2, 2, 4, 4]
    assert all(row["iteration_ms"] > 6 for row in rows)


COLLECTIVES = """
[cells]
models = ["4MB"]
mechanisms = ["ring", "inagg+mcast"]
collectives = ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]
bandwidths = ["1gbit"]
workers = [4]
"""


def test_collectives_take_what_the_command_says_of_them(tmp_path: Path) -> None:
    path = tmp_path / "collectives.toml"
    path.write_text(COLLECTIVES)
    rows = json.loads(CliRunner().invoke(main, ["run", str(path), "--json"], catch_exceptions=False).stdout)
    assert [row["collective"] for row in rows[::2]] == ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]
    names = [cell.name for cell in read_experiment(path).cells]
    assert names[:3] == ["4MB-ring-1gbit-4w", "4MB-inagg+mcast-1gbit-4w", "4MB-ring-1gbit-4w-reduce_scatter"]
    for row in rows:
        options = ["--size", "4MB", "--workers", "4", "--bandwidth", "1gbit", "--mechanism", row["mechanism"]]
        alone = CliRunner().invoke(main, ["run", *options, "--collective", row["collective"], "--json"])
        # The experiment's links count the bytes of emulated frames, which have no preamble, gap and checksum.
        assert row["iteration_ms"] == pytest.approx(json.loads(alone.stdout)["iteration_s"] * 1e3, rel=0.03)


@pytest.mark.parametrize(
    ("mechanism", "says"),
    [
        ("butterfly", "butterfly does no reduce_scatter; legal are all_reduce, broadcast"),
        ("fsdp/ring", "fsdp/ring is a training strategy: reduce_scatter takes a mechanism alone"),
    ],
)
def test_what_does_not_do_a_collective_is_refused(tmp_path: Path, mechanism: str, says: str) -> None:
    path = tmp_path / "collectives.toml"
    path.write_text(COLLECTIVES.replace('"all_reduce", ', "").replace('["ring", "inagg+mcast"]', f'["{mechanism}"]'))
    with pytest.raises(ExperimentError, match=re.escape(says)):
        read_experiment(path)


@pytest.mark.parametrize("path", sorted(READY.glob("*.toml")), ids=lambda path: path.stem)
def test_ready_experiments_are_experiments(path: Path) -> None:
    experiment = read_experiment(path)
    assert experiment.title != experiment.name
    assert len({cell.name for cell in experiment.cells}) == len(experiment.cells)


def test_an_interval_has_the_prediction_in_it(small: Path) -> None:
    experiment = read_experiment(small)
    for cell in experiment.cells:
        plain, wide = (find_predictor().of_cell(experiment, cell, interval) for interval in (False, True))
        assert plain is not None and wide is not None and wide.low_s is not None and wide.high_s is not None
        assert wide.iteration_s == plain.iteration_s and wide.low_s < wide.iteration_s < wide.high_s
    gloo = Cell(experiment.cells[0].model, "gloo", "1gbit", 2)
    assert find_predictor().of_cell(experiment, gloo, interval=True) is None
