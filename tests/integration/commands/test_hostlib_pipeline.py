"""`hostlib pipeline` and `hostlib bubble`: a model's stages, and pipelines that sleep."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hostlib.bench.pipeline_bubble import BubbleOptions, measured_bubbles
from hostlib.commands.pipeline import bubble, pipeline
from hostlib.models.loading import load_model

FORWARD_S, BACKWARD_S = 0.02, 0.04
LATE = 3  # times as long as without the machine's other work, at most


SLOTS = {  # of one micro-batch's forward and backward pass at a worker
    "gpipe:stages=2:microbatches=3": 4,
    "1f1b:stages=3:microbatches=3": 5,
    "interleaved:stages=2:microbatches=2": 2.5,
    "modelparallel": 2,
}
AGAIN = "gpipe:stages=2:microbatches=1:recompute"


def test_a_pipeline_takes_as_long_as_its_formula_says() -> None:
    asked = [BubbleOptions(name, FORWARD_S, BACKWARD_S, 1) for name in (*SLOTS, AGAIN)]
    *rows, again = measured_bubbles(asked, lambda name: None)
    for row, slots in zip(rows, SLOTS.values(), strict=True):
        assert row.iteration_ms == pytest.approx(slots * 1e3 * (FORWARD_S + BACKWARD_S))
        assert row.bubble == pytest.approx(1 - row.microbatches / slots, abs=1e-4)
        assert 0 < row.measured_bubble < 1
    assert again.iteration_ms == pytest.approx(2 * 1e3 * (2 * FORWARD_S + BACKWARD_S))
    for row in (*rows, again):
        assert row.iteration_ms < row.measured_ms < LATE * row.iteration_ms


def test_the_commands_print_what_they_measure() -> None:
    words = ["--mechanism", "modelparallel", "--forward", "5ms", "--backward", "5ms", "--iterations", "1"]
    shown = CliRunner().invoke(bubble, words)
    assert shown.exit_code == 0 and "modelparallel" in shown.output and "50.00 %" in shown.output
    (row,) = json.loads(CliRunner().invoke(bubble, [*words, "--json"]).stdout)
    assert (row["stages"], row["microbatches"], row["bubble"], row["iteration_ms"]) == (2, 1, 0.5, 20.0)

    words = ["lenet", "--mechanism", "gpipe:stages=3:microbatches=2", "--batch", "2", "--bandwidth", "1gbit"]
    shown = CliRunner().invoke(pipeline, words)
    assert shown.exit_code == 0 and "3 workers, micro-batches of 3" in shown.output
    made = json.loads(CliRunner().invoke(pipeline, [*words, "--json"]).stdout)
    assert len(made["stages"]) == 3 and made["bubble"] == 0.5
    assert sum(part["parameter_bytes"] for part in made["stages"]) == sum(
        p.nbytes for p in load_model("lenet").parameters()
    )
    assert made["stages"][-1]["sent_bytes"] == 0 and made["iteration_ms"] > 0
