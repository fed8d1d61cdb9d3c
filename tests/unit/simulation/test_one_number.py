"""run, sweep, predict, ask and experiment files give the same number for the same cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import netfold
from hostlib.errors import UnknownNameError
from netfold.cli import main

EXPERIMENT = """
[cells]
models = ["alexnet"]
mechanisms = ["ring", "tree", "ps", "inagg+mcast"]
bandwidths = ["10gbit"]
workers = [6]

[replay]
shrink = {shrink}
"""
RACKS = '[topology]\nkind = "leaf-spine"\nleaves = 2\noversubscription = 4.0\n'


def printed(*words: str) -> Any:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("racks", [1, 2])
@pytest.mark.parametrize("shrink", [1.0, 64.0])
def test_a_cell_has_one_number(racks: int, shrink: float, tmp_path: Path) -> None:
    file = tmp_path / "cells.toml"
    file.write_text(EXPERIMENT.format(shrink=shrink) + (RACKS if racks > 1 else ""))
    of_file = {row["mechanism"]: row["iteration_ms"] for row in printed("simulate", str(file), "--json")}
    network = ["--racks", str(racks), "--oversubscription", "4"] if racks > 1 else []
    words = [
        "--model", "alexnet", "--mechanism", ",".join(of_file), "--bandwidth", "10gbit", "--workers", "6", *network, "--json",
    ]  # fmt: skip
    run = {name: each["iteration_s"] * 1e3 for name, each in printed("simulate", *words).items()}
    sweep = {row["mechanism"]: row["iteration_s"] * 1e3 for row in printed("simulate", "sweep", *words)}
    ask = {row["mechanism"]: row["iteration_ms"] for row in printed("ask", *words)["rows"]}
    predicted = {
        name: netfold.predict(
            "alexnet", name, 6, "10gbit", racks=racks, oversubscription=4.0 if racks > 1 else 1.0
        ).iteration_s
        * 1e3
        for name in of_file
    }
    assert len(of_file) == 4 and of_file == run == sweep == ask == predicted


@pytest.mark.parametrize("mechanism", ["adam/ring", "hybcomm/ring", "poseidon"])
def test_one_worker_computes_and_exchanges_nothing(mechanism: str) -> None:
    """Also where a strategy's own messages carry all gradients."""
    alone = netfold.predict("lenet", "bsp/ring", 1)
    assert netfold.predict("lenet", mechanism, 1).iteration_s == alone.iteration_s > 0


@pytest.mark.parametrize("option", ["semantics", "framing", "barrier", "order", "pipelined"])
def test_an_option_with_choices_has_no_others(option: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown {option} 'x'; legal are "):
        netfold.predict("lenet", "ring", 2, **{option: "x"})  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match=f"unknown {option} 'x'; legal are "):
        netfold.ask("lenet", 2, **{option: "x"})  # type: ignore[arg-type]


def test_the_slowest_job_counts() -> None:
    found = netfold.predict("lenet", "ring", 2, jobs=3)
    assert found.iteration_s == max(found.jobs_iteration_s) and len(found.jobs_iteration_s) == 3


@pytest.mark.parametrize("mechanism", ["ring", "tree", "ps", "inagg+mcast", "mcast", "hybcomm/ring"])
def test_one_worker_needs_no_network(mechanism: str) -> None:
    found = netfold.predict("lenet", mechanism, 1, "1mbit", forward="3ms", backward="4ms")
    # A little jitter is always played.
    assert found.iteration_s == pytest.approx(7e-3, rel=0.01)
    assert all(way == 0 for link in found.bytes_per_link.values() for way in link.values())


@pytest.mark.parametrize(
    ("single", "all_of_them"),
    [
        ({"slots": 0}, {"slots": 0, "semantics": "runtime"}),
        ({"bucket": "0"}, {"message": "0"}),
        ({"headers": False, "semantics": "papers"}, {"semantics": "papers"}),
        ({"bucket": "0", "slots": 0, "semantics": "papers"}, {"semantics": "papers"}),
    ],
)
def test_semantics_can_be_chosen_one_by_one(single: dict[str, Any], all_of_them: dict[str, Any]) -> None:
    one, other = (netfold.predict("lenet", "inagg+mcast", 4, **kind) for kind in (single, all_of_them))
    assert one.iteration_s == other.iteration_s


def test_headers_slots_and_buckets_take_time() -> None:
    plain = netfold.predict("alexnet", "inagg+mcast", 4, "10gbit").iteration_s
    assert netfold.predict("alexnet", "inagg+mcast", 4, "10gbit", headers=False).iteration_s < plain
    far = {"latency": "1ms"}
    limited, unlimited = (netfold.predict("alexnet", "inagg+mcast", 4, "10gbit", slots=n, **far) for n in (128, 0))
    assert unlimited.iteration_s < limited.iteration_s
