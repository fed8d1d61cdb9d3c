"""`netfold ask`: what it promises to print, in the same words as netfold.ask."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import netfold
from netfold.cli import main
from netfold.commands.ask import ask as command

WORDS = ["ask", "--model", "lenet", "--workers", "4", "--bandwidth", "1gbit"]
ROW = {
    "mechanism", "uses_fabric", "iteration_ms", "low_ms", "high_ms", "speedup", "compute_ms", "exposed_ms",
    "limited_by",
}  # fmt: skip


def test_json_has_what_it_promises() -> None:
    done = CliRunner().invoke(main, [*WORDS, "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed.keys() == {"answer", "unresolved", "best", "assumptions", "rows"}
    assert all(row.keys() == ROW for row in printed["rows"]) and len(printed["rows"]) == 9
    times = [row["iteration_ms"] for row in printed["rows"]]
    assert times == sorted(times) and printed["best"] == printed["rows"][0]["mechanism"]
    hosts = min(row["iteration_ms"] for row in printed["rows"] if not row["uses_fabric"])
    assert all(row["speedup"] == pytest.approx(hosts / row["iteration_ms"]) for row in printed["rows"])
    for name, each in printed["assumptions"].items():
        assert each.keys() == {"value", "source"} and each["source"], name
    assert printed["assumptions"]["model"] == {"value": "lenet", "source": "--model"}
    assert printed["assumptions"]["bandwidth"]["source"] == "--bandwidth"
    assert printed["assumptions"]["slots"] == {"value": 128, "source": "default of `controller start`"}


def test_python_gives_the_same_answer() -> None:
    of_command = json.loads(CliRunner().invoke(main, [*WORDS, "--json"]).stdout)
    found = netfold.ask("lenet", 4, "1gbit")
    assert isinstance(found, netfold.Answer) and isinstance(found.rows[0], netfold.Row)
    of_python = found.as_json()
    for each in (of_command, of_python):
        each.pop("assumptions")
    assert of_command == of_python
    assert found.assumptions["bandwidth"]["source"] == "--bandwidth"
    assert found.assumptions["workers"] == {"value": 4, "source": "default"}


def test_ask_has_the_options_and_defaults_of_the_command() -> None:
    of_the_command = {option.name: option for option in command.params}
    of_search = ("search", "examples", "epochs", "price", "gpu_memory", "profiled_on", "mix", "report")
    for name in ("plot", "as_json", *of_search):
        del of_the_command[name]
    parameters = inspect.signature(netfold.ask).parameters
    assert {{"trace_file": "trace"}.get(name, name) for name in of_the_command} == parameters.keys()
    context = command.make_context("ask", [])
    for name, parameter in parameters.items():
        if name not in ("trace", "stragglers", "mechanisms"):
            assert context.params[name] == parameter.default, name


def test_the_sentence_comes_first_then_the_table_then_the_assumptions() -> None:
    lines = CliRunner().invoke(main, [*WORDS, "--mechanism", "ring,ps"]).stdout.splitlines()
    assert lines[0].endswith(".") and "ring" in lines[0]
    assert lines[1].startswith("lenet, 4 workers, 1gbit links")
    assert any("limited by" in line for line in lines)
    assert lines.index("Assumptions") > max(number for number, line in enumerate(lines) if "ps" in line and "│" in line)


def test_a_mechanism_that_cannot_be_played_is_named_beside_the_json() -> None:
    done = CliRunner().invoke(main, [*WORDS, "--slots", "1", "--mechanism", "ring,ring+mcast", "--json"])
    assert done.exit_code == 0 and [row["mechanism"] for row in json.loads(done.stdout)["rows"]] == ["ring"]
    assert done.stderr == "left out: ring+mcast: 1 slots are too few for 4 streams of chunks\n"


def test_a_calibration_gives_intervals_by_kind(tmp_path: Path) -> None:
    """One in which the fabric was measured to be 10 to 20 % slower than predicted."""
    path = tmp_path / "ratios.json"
    groups = {"all": {"low": 0.9, "high": 1.05, "cells": 40}, "fabric": {"low": 1.1, "high": 1.2, "cells": 19}}
    path.write_text(json.dumps({"coverage": 0.9, "groups": groups}))
    plain, found = netfold.ask("lenet", 4, "1gbit"), netfold.ask("lenet", 4, "1gbit", calibration=path)
    assert [row.iteration_ms for row in found.rows] == [row.iteration_ms for row in plain.rows]
    for row in found.rows:
        low, high = (1.1, 1.2) if row.uses_fabric else (0.9, 1.05)
        assert (row.low_ms, row.high_ms) == pytest.approx((low * row.iteration_ms, high * row.iteration_ms))
    said = found.assumptions["intervals"]
    assert said["source"] == str(path)
    assert said["value"].startswith("measured over predicted times, 90% of cells: all 0.90 to 1.05 (40 cells)")
    recommended = netfold.recommend("lenet", cluster=netfold.Cluster(4, "1gbit"), calibration=path)
    for each in recommended.candidates:
        if not each.uses_fabric:
            assert each.high_ms == pytest.approx(1.05 * each.iteration_ms)
    assert recommended.assumptions["intervals"] == said
    pytest.importorskip("matplotlib")
    words = [*WORDS, "--calibration", str(path), "--plot", str(tmp_path / "answer.svg")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0 and str(path) in done.stdout


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_plot_is_drawn(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"answer.{ending}"
    done = CliRunner().invoke(main, [*WORDS, "--mechanism", "ring,inagg+mcast,ps", "--plot", str(path)])
    assert done.exit_code == 0, done.output
    assert path.stat().st_size > 1000
    if ending == "svg":
        assert path.read_text().count("ring") and "</svg>" in path.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("ask", "--model is missing; legal are alexnet"),
        ("ask --model lenett", "unknown model 'lenett'"),
        ("ask --model lenet --mechanism gloo,ring", "gloo is a library's own collective and has no schedule"),
        ("ask --model lenet --mechanism rung", "unknown mechanism 'rung'"),
        ("ask --model lenet --workers 0", "--workers must be at least 1, not 0"),
        ("ask --model lenet --racks 9", "racks must be in 1..4, the number of workers' hosts, not 9"),
        ("ask --model lenet --straggler 9=2", "--straggler 9: there are only 4 workers"),
        ("ask --model lenet --bucket 1MiB --message 1KiB", "--bucket and --message exclude each other"),
        ("ask --model lenet --plot answer.bmp", "answer.bmp cannot be drawn"),
        ("ask --model resnet50 --message 1", "messages are more than 1,048,576"),
        ("ask --model lenet --apart", "--apart is of several jobs: it needs --jobs of 2 or more"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_played(
    words: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.simulator.play.Kernel", lambda *_: pytest.fail("is played"))
    done = CliRunner().invoke(main, words.split(), standalone_mode=False)
    error = done.exception
    assert error is not None and says in (error.message if isinstance(error, click.ClickException) else str(error))
