"""Communication and the backward pass at the same time: in the trace that a run writes, and in what it reports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hostlib.errors import RunError
from hostlib.pytorch.step_times import Span, StepTimes, summary
from hostlib.train.loop import Profile
from tests.conftest import ROOT, Fabric
from tests.training_runs import trained

WORLD_SIZE = 2
FIRST, LAST = 6, 8  # of the steps in the trace: the first five are the warm-up
FLOAT_BYTES = 4

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Range:
    """Something that took a while, in microseconds of a trace."""

    name: str
    begin: float
    end: float
    arguments: dict[str, Any]

    def meets(self, other: Range) -> bool:
        return self.begin < other.end and other.begin < self.end

    def holds(self, other: Range) -> bool:
        return self.begin <= other.begin and other.end <= self.end


def hostlib_train(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hostlib", "train", "--workers", str(WORLD_SIZE), "--no-progress", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


def profiled(fabric: Fabric, folder: Path, *options: str) -> tuple[dict[str, Any], list[list[Event]]]:
    """A short run's result, and the events of each rank's trace."""
    run = ("--workers", str(WORLD_SIZE), "--iterations", str(LAST), "--chrome-traces", str(folder))
    result = trained(*run, "--controller", fabric.http, *options)
    names = [f"rank{rank}.json" for rank in range(WORLD_SIZE)]
    assert sorted(path.name for path in folder.iterdir()) == names
    return result, [json.loads((folder / name).read_text())["traceEvents"] for name in names]


def ranges(events: list[Event], prefix: str) -> list[Range]:
    """Of what torch recorded."""
    found = [e for e in events if e["ph"] == "X" and e["name"].startswith(prefix)]
    return [Range(e["name"], e["ts"], e["ts"] + e["dur"], e.get("args", {})) for e in found]


def spans(events: list[Event], prefix: str) -> list[Range]:
    """Of what was merged into the trace: each begin with its end."""
    begun = {e["id"]: e for e in events if e["ph"] == "b" and e["name"].startswith(prefix)}
    ended = {e["id"]: e for e in events if e["ph"] == "e" and e["name"].startswith(prefix)}
    assert begun.keys() == ended.keys()
    return [Range(e["name"], e["ts"], ended[number]["ts"], e["args"]) for number, e in begun.items()]


def within(step: Range, found: list[Range]) -> list[Range]:
    return [one for one in found if step.holds(one)]


def test_buckets_travel_while_the_backward_pass_goes_on(fabric: Fabric, tmp_path: Path) -> None:
    options = ("--model", "resnet18", "--batch", "2", "--bucket", "4MiB")
    result, traces = profiled(fabric, tmp_path / "traces", "--mechanism", "inagg+mcast", *options)
    assert result["steps"] == LAST and len(set(result["weights_sha256"])) == 1
    assert 0 <= result["exposed_ms_median"] <= result["communication_ms_median"]
    assert 0 <= result["overlap"] <= 1
    for events in traces:
        steps = ranges(events, "step ")
        assert [step.name for step in steps] == [f"step {n}" for n in range(FIRST, LAST + 1)]
        buckets, backwards = spans(events, "allreduce bucket "), spans(events, "backward computation")
        computed = ranges(events, "autograd::engine::evaluate_function")
        assert sum(len(within(step, buckets)) for step in steps) == len(buckets)
        for step in steps:
            (backward,) = within(step, backwards)
            travelling = within(step, buckets)
            assert sum(bucket.arguments["bytes"] for bucket in travelling) == FLOAT_BYTES * result["parameters"]
            assert [bucket.arguments["bucket"] for bucket in travelling] == list(range(len(travelling)))
            assert all(re.fullmatch(r"allreduce bucket \d+ \([\d.]+ MB\)", bucket.name) for bucket in travelling)
            assert len(travelling) > 2
            # Every bucket begins before the backward computation ends, and the first is under way while torch
            # computes further gradients: by its own record, not ours.
            assert all(backward.begin <= bucket.begin <= backward.end for bucket in travelling)
            assert all(bucket.meets(backward) for bucket in travelling)
            assert [one for one in computed if travelling[0].begin < one.begin < travelling[0].end]


def test_bsp_hides_nothing(fabric: Fabric, tmp_path: Path) -> None:
    result, traces = profiled(fabric, tmp_path / "traces", "--mechanism", "bsp/inagg+mcast")
    assert result["overlap"] == 0
    assert result["exposed_ms_median"] == result["communication_ms_median"] > 0
    for events in traces:
        backwards, buckets = spans(events, "backward computation"), spans(events, "allreduce bucket 0 (")
        assert len(buckets) == len(backwards) == LAST - FIRST + 1
        assert not any(bucket.meets(backward) for bucket in buckets for backward in backwards)


def test_exposed_and_communication_time_are_what_the_page_says() -> None:
    step = StepTimes(backward_end_ns=60, spans=[Span(0, 8, 10, 30), Span(1, 8, 20, 40), Span(2, 8, 50, 90)])
    assert step.communication_ns == 30 + 40  # the gap between 40 and 50 is none
    assert step.exposed_ns == 30
    hidden = StepTimes(backward_end_ns=100, spans=step.spans)
    assert hidden.exposed_ns == 0
    assert StepTimes().communication_ns == StepTimes().exposed_ns == 0
    figures = summary([(2_000_000, 500_000), (4_000_000, 4_000_000), (8_000_000, 0)])
    assert figures == {"communication_ms_median": 4.0, "exposed_ms_median": 0.5, "overlap": 0.75}


def test_a_profile_needs_steps_after_the_warm_up_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--chrome-traces writes the iterations after the first 5; this run has only 5"):
        Profile(tmp_path, rank=0, steps=5)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write to .*/file/traces: Not a directory"):
        Profile(tmp_path / "file" / "traces", rank=0, steps=6)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--lanes", "0"), "--lanes must be above 0, not 0"),
        (("--iterations", "-1"), "--iterations must be above 0, not -1"),
        (("--fallback", "inagg+mcast"), "unknown fallback 'inagg+mcast'; legal are"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: tuple[str, ...], line: str) -> None:
    done = hostlib_train("--mechanism", "ring", *options)
    assert done.returncode == 1
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
