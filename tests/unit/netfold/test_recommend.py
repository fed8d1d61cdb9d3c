"""`netfold ask --search` and netfold.recommend: what they promise to print, what they refuse, and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import netfold
from netfold.cli import main
from netfold.job_mix import read_mix
from netfold.recommendation import memory_limit
from simulation.errors import ExperimentError, SimulationError
from simulation.models.gpus import GPUS
from simulation.recommendation.recommendation import duration

# Few mechanisms make a search short.
WORDS = [
    "ask",
    "--search",
    "--model",
    "lenet",
    "--workers",
    "4",
    "--bandwidth",
    "1gbit",
    "--mechanism",
    "ring,inagg+mcast",
]
OF_ASK = {"answer", "unresolved", "best", "assumptions", "rows"}
CANDIDATE = {"plan", "iteration_ms", "low_ms", "high_ms", "memory_bytes", "fits"}


@pytest.fixture(scope="module")
def printed() -> dict:  # type: ignore[type-arg]
    done = CliRunner().invoke(main, [*WORDS, "--gpu", "t4", "--examples", "60000", "--price", "2", "--json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_json_has_what_it_promises(printed: dict) -> None:  # type: ignore[type-arg]
    assert printed.keys() >= OF_ASK | {"recommended", "changes", "candidates"}
    assert all(each.keys() >= CANDIDATE for each in printed["candidates"])
    names = {each["plan"] for each in printed["candidates"]}
    assert printed["recommended"] in names == {"ring", "inagg+mcast"}
    times = [each["iteration_ms"] for each in printed["candidates"]]
    assert times == sorted(times)
    for each in printed["candidates"]:
        assert each["low_ms"] <= each["iteration_ms"] <= each["high_ms"]
        assert each["memory_bytes"] > 0 and each["fits"] is True
    assert printed["memory_limit_bytes"] == GPUS["t4"].memory_gb * 10**9


def test_an_epoch_has_its_time_and_price(printed: dict) -> None:  # type: ignore[type-arg]
    run = printed["run"]
    assert run["iterations"] == -(-60000 // (4 * 32))
    chosen = next(each for each in printed["candidates"] if each["plan"] == printed["recommended"] and each["finalist"])
    assert run["seconds"] == pytest.approx(run["iterations"] * chosen["iteration_ms"] / 1e3)
    assert run["gpu_hours"] == pytest.approx(run["seconds"] * 4 / 3600)
    assert run["cost"] == pytest.approx(2 * run["gpu_hours"])


def test_changes_say_where(printed: dict) -> None:  # type: ignore[type-arg]
    assert printed["changes"]
    for each in printed["changes"]:
        assert each.keys() == {"what", "unit", "now", "at", "side", "fabric_pays", "plan"}
        assert (each["at"] > each["now"]) is (each["side"] == "above")


def test_the_map_agrees_with_the_answer(printed: dict) -> None:  # type: ignore[type-arg]
    map_ = printed["map"]
    today = map_["places"][map_["speeds"].index(1.0)][map_["bandwidths_bits_s"].index(1e9)]
    by_name = {each["mechanism"]: each["iteration_ms"] for each in printed["rows"]}
    assert today["fabric_ms"] == pytest.approx(by_name["inagg+mcast"])
    assert today["hosts_ms"] == pytest.approx(by_name["ring"])


def test_the_map_by_workers_agrees_with_the_answer_and_the_changes(printed: dict) -> None:  # type: ignore[type-arg]
    map_ = printed["map"]
    assert map_["workers"] == [4, 16, 64, 256, 1024] and len(map_["by_workers"]) == 5
    assert all(len(row) == len(map_["bandwidths_bits_s"]) for row in map_["by_workers"])
    now = map_["bandwidths_bits_s"].index(1e9)
    own = map_["by_workers"][0]
    assert own == map_["places"][map_["speeds"].index(1.0)]
    # A hundred times the bandwidth leaves less to gain, with every number of workers.
    for row in map_["by_workers"]:
        assert row[now]["fabric_ms"] > row[-1]["fabric_ms"] and row[now]["speedup"] >= row[-1]["speedup"] - 0.01
    # A ring of more workers has more to pass on than a switch, which sums once.
    gains = [row[now]["speedup"] for row in map_["by_workers"]]
    assert gains == sorted(gains)
    for change in printed["changes"]:
        if change["what"] == "workers" and change["at"] in map_["workers"]:
            assert map_["by_workers"][map_["workers"].index(change["at"])][now]["fabric_pays"] is change["fabric_pays"]


def test_a_place_of_the_map_is_a_question_of_its_own() -> None:
    """With another number of workers and another bandwidth, asked anew."""
    found = json.loads(CliRunner().invoke(main, [*WORDS, "--tflops", "1", "--bucket", "25MiB", "--json"]).stdout)["map"]
    place = found["by_workers"][found["workers"].index(16)][found["bandwidths_bits_s"].index(10e9)]
    asked = netfold.ask("lenet", 16, "10gbit", mechanisms=["ring", "inagg+mcast"], tflops=1.0, bucket="25MiB")
    times = {row.mechanism: row.iteration_ms for row in asked.rows}
    assert place["fabric_ms"] == pytest.approx(times["inagg+mcast"], rel=0.05)
    assert place["hosts_ms"] == pytest.approx(times["ring"], rel=0.05)


def test_there_is_no_map_by_workers_of_given_hosts() -> None:
    found = json.loads(CliRunner().invoke(main, [*WORDS, "--straggler", "1=2", "--json"]).stdout)["map"]
    assert found["places"] and found["workers"] == found["by_workers"] == []


def test_a_row_with_which_nothing_can_be_played_is_left_out() -> None:
    """Eight slots are for 16 workers' streams at most."""
    found = json.loads(
        CliRunner().invoke(main, [*WORDS[:8], "--mechanism", "ring,ring+mcast", "--slots", "8", "--json"]).stdout
    )
    assert found["map"]["workers"] == [4, 16]


def test_python_gives_the_same() -> None:
    of_command = json.loads(CliRunner().invoke(main, [*WORDS[:8], "--json"]).stdout)
    found = netfold.recommend("lenet", cluster=netfold.Cluster(workers=4, bandwidth="1gbit"))
    assert isinstance(found, netfold.Recommendation) and isinstance(found.candidates[0], netfold.Candidate)
    of_python = found.as_json()
    for each in (of_command, of_python):
        each.pop("assumptions")
    assert of_command == json.loads(json.dumps(of_python))


def test_nothing_fits_and_nothing_is_recommended() -> None:
    done = CliRunner().invoke(main, [*WORDS, "--gpu-memory", "1MB", "--json"])
    found = json.loads(done.stdout)
    assert found["recommended"] is None and found["rows"] == []
    assert all(each["fits"] is False for each in found["candidates"])
    assert found["answer"].startswith("No plan fits into 0.001 GB of GPU memory: the least that one needs is ")


def test_one_worker_has_no_winner() -> None:
    done = CliRunner().invoke(main, [*WORDS, "--workers", "1", "--json"])
    found = json.loads(done.stdout)
    assert found["recommended"] is None and found["unresolved"] is True
    assert found["answer"].startswith("None is faster: all plans take the same ")


def test_the_page_holds_what_was_found(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, mix = tmp_path / "page.html", tmp_path / "mix.toml"
    mix.write_text('[[job]]\nmodel = "lenet"\nworkers = 2\nhours = 10\ncount = 3\n')
    done = CliRunner().invoke(main, [*WORDS, "--mix", str(mix), "--report", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text().replace("<wbr>", "")
    answer = done.stdout.splitlines()[0]
    assert answer in text.replace("&#39;", "'") and f"report: {page}" in done.stdout
    assert not re.search(r"https?://", text)
    for section in ("changes", "map", "map-workers", "plans", "mix", "assumptions"):
        assert f'<section id="{section}">' in text


def test_a_mix_is_worth_what_its_jobs_save(tmp_path: Path) -> None:
    mix = tmp_path / "mix.toml"
    mix.write_text('[[job]]\nmodel = "alexnet"\nworkers = 4\nhours = 10\ncount = 3\nbandwidth = "10gbit"\n')
    done = CliRunner().invoke(
        main, ["ask", "--search", "--mechanism", "ring,inagg+mcast", "--mix", str(mix), "--price", "2", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["mix"]
    (job,) = found["jobs"]
    assert (job["hosts"], job["fabric"]) == ("ring", "inagg+mcast")
    assert 0 < job["low"] < job["share"] < job["high"] < 1
    assert found["gpu_hours"] == 4 * 3 * 10
    assert found["saved_gpu_hours"] == pytest.approx(120 * job["share"])
    assert found["saved"] == pytest.approx(2 * found["saved_gpu_hours"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job: Field required"),
        ("[[job]]\nmodel = 1\nworkers = 2\nhours = 1\n", "job.0.model: Input should be a valid string"),
        (
            '[[job]]\nmodel = "lenet"\nworkers = 0\nhours = 1\n',
            "job.0.workers: Input should be greater than or equal to 1",
        ),
        ('[[job]]\nmodel = "lenet"\nworkers = 2\nhour = 1\n', "job.0.hours: Field required"),
        ("[[job]\n", "mix.toml is not a TOML file: "),
    ],
)
def test_a_wrong_mix_is_refused(tmp_path: Path, text: str, message: str) -> None:
    mix = tmp_path / "mix.toml"
    mix.write_text(text)
    with pytest.raises(ExperimentError) as caught:
        read_mix(mix)
    assert message in str(caught.value)


def test_memory_is_given_or_the_gpu_s() -> None:
    assert memory_limit("16GB", "h100") == 16 * 10**9
    assert memory_limit(None, "h100") == 80 * 10**9
    assert memory_limit(None, None) is None
    with pytest.raises(SimulationError, match="at least 1 byte"):
        memory_limit("0", None)


@pytest.mark.slow
def test_a_profile_takes_the_place_of_assumed_times() -> None:
    pytest.importorskip("torch")
    done = CliRunner().invoke(main, [*WORDS, "--profile", "cpu", "--batch", "2", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert "given" in found["assumptions"]["computing"]["source"]
    assert found["rows"][0]["compute_ms"] > 0


def test_one_worker_has_nothing_to_choose() -> None:
    found = netfold.recommend("lenet", cluster=netfold.Cluster(workers=1))
    assert found.recommended is None and {each.plan.mechanism for each in found.candidates} <= set(netfold.mechanisms())


def test_a_duration_has_at_most_59_seconds_beside_minutes() -> None:
    assert [duration(seconds) for seconds in (59.9, 60, 119.4, 119.7, 599.9)] == [
        "59.9 s", "1 min 0 s", "1 min 59 s", "2 min 0 s", "10 min 0 s",
    ]  # fmt: skip
