"""Conformal intervals: coverage is what is claimed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from simulation.cli import main
from simulation.errors import SimulationError
from simulation.plans.parallel_plan import ParallelPlan
from simulation.predictors.calibration import (
    ALL,
    Calibration,
    MeasuredCell,
    Ratios,
    cells_for,
    kind_of,
    measured_cells,
)
from simulation.predictors.predictor import Estimate
from tests.conftest import ROOT

PAGES = ROOT / "docs/measurements/results"
KINDS = {"ring": 0.02, "inagg+mcast": 0.1}  # mechanism -> spread of its errors


def ratios_of(random: np.random.Generator, mechanism: str, count: int) -> NDArray[np.float64]:
    """Skewed errors with a bias."""
    return 1.03 + KINDS[mechanism] * (random.gamma(2.0, 1.0, count) - 1)


def drawn(random: np.random.Generator, mechanism: str, count: int) -> list[MeasuredCell]:
    return [MeasuredCell(mechanism, float(ratio)) for ratio in ratios_of(random, mechanism, count)]


def covered_share(random: np.random.Generator, mechanism: str, within: Ratios) -> float:
    """The share of new cells that an interval covers."""
    new = ratios_of(random, mechanism, 1000)
    return float(np.mean((within.low <= new) & (new <= within.high)))


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("cells", [39, 99])
def test_intervals_cover_what_they_claim(coverage: float, cells: int) -> None:
    random = np.random.default_rng(7)
    shares = [
        covered_share(random, "ring", Calibration.of(drawn(random, "ring", cells), coverage).ratios("ring"))
        for _ in range(400)
    ]
    # Coverage is exact where 1 - coverage cuts n + 1 evenly; the mean over 400 calibrations is within 0.015 of it.
    assert np.mean(shares) == pytest.approx(coverage, abs=0.015)


def test_kinds_of_mechanisms_have_their_own_intervals() -> None:
    random = np.random.default_rng(7)
    covered = {(name, by_kind): 0.0 for name in KINDS for by_kind in (True, False)}
    for _ in range(200):
        cells = [cell for name in KINDS for cell in drawn(random, name, 59)]
        for by_kind in (True, False):
            calibration = Calibration.of(cells, 0.9, by_kind)
            for name in KINDS:
                covered[name, by_kind] += covered_share(random, name, calibration.ratios(name)) / 200
    assert covered["ring", True] == pytest.approx(0.9, abs=0.015)
    assert covered["inagg+mcast", True] == pytest.approx(0.9, abs=0.015)
    # Together, one is covered too often and the other too rarely.
    assert covered["ring", False] > 0.95 and covered["inagg+mcast", False] < 0.87


def test_by_hand() -> None:
    """19 ratios of 0.90, 0.91 ... 1.08: 20 x 0.05 = 1, so the smallest and the largest. 0.8: the second ones."""
    cells = [MeasuredCell("ring", round(0.9 + step / 100, 2)) for step in range(19)]
    assert cells_for(0.9) == 19 and cells_for(0.8) == 9
    assert Calibration.of(cells).groups == {ALL: Ratios(0.9, 1.08, 19), "hosts": Ratios(0.9, 1.08, 19)}
    narrower = Calibration.of(cells, 0.8)
    assert narrower.ratios("ring") == Ratios(0.91, 1.07, 19)
    # No cell of this kind: those of all.
    assert narrower.ratios("ps") == narrower.groups[ALL]
    plan = ParallelPlan.parse("ring", 4)
    assert narrower.apply(Estimate(2.0, memory_bytes=5), plan) == Estimate(2.0, 1.82, 2.14, 5)
    assert Calibration.from_json(json.dumps(narrower.as_json())) == narrower


def test_kinds() -> None:
    named = {
        "ring": "hosts",
        "ps": "servers",
        "inagg": "fabric",
        "hybcomm/ring": "hosts",
        "gpipe:stages=2/ring": "pipeline",
    }
    assert {name: kind_of(name) for name in named} == named


def test_too_few_cells_are_refused() -> None:
    with pytest.raises(SimulationError, match=r"a coverage of 0\.9 needs at least 19 measured cells, not 18"):
        Calibration.of([MeasuredCell("ring", 1.0)] * 18)
    with pytest.raises(SimulationError, match="coverage must be between 0 and 1, not 1"):
        Calibration.of([MeasuredCell("ring", 1.0)] * 18, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"coverage": 0.9, "groups": {}}',
        '{"coverage": 2, "groups": {"all": {"low": 0.9, "high": 1.1, "cells": 19}}}',
        '{"coverage": 0.9, "groups": {"all": {"low": 1.2, "high": 1.1, "cells": 19}}}',
        '{"coverage": 0.9, "groups": {"all": {"low": 0.9, "high": Infinity, "cells": 19}}}',
    ],
)
def test_a_file_that_is_no_calibration_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ratios.json"
    path.write_text(text)
    with pytest.raises(SimulationError) as error:
        Calibration.read(path)
    assert str(error.value) == f"{path} is not a calibration, which `netfold simulate calibrate --json` writes"


def test_cells_of_an_experiments_folder(tmp_path: Path) -> None:
    rows = [
        {"mechanism": "ring", "iteration_ms": 110.0, "simulated_ms": 100.0, "valid": True},
        {"mechanism": "ring", "iteration_ms": 150.0, "simulated_ms": 100.0, "valid": False},
        {"mechanism": "gloo", "iteration_ms": 150.0, "simulated_ms": None, "valid": True},
        {"mechanism": "inagg", "iteration_ms": 95.0, "simulated_ms": 100.0, "valid": True},
    ]
    (tmp_path / "results.json").write_text(json.dumps(rows))
    found = [MeasuredCell("ring", pytest.approx(1.1)), MeasuredCell("inagg", pytest.approx(0.95))]
    assert measured_cells([tmp_path]) == found
    assert measured_cells([tmp_path / "results.json"]) == found
    for text in ("{}", "[1]", "not JSON", '[{"mechanism": "ring"}]'):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(SimulationError, match=r"neither an experiment's results\.json nor a page") as error:
            measured_cells([tmp_path])
        assert "\n" not in str(error.value)


def test_cells_of_netfolds_own_measurements() -> None:
    accuracy = measured_cells([PAGES / "simulator-accuracy.json"])
    assert len(accuracy) >= 36 and MeasuredCell("inagg+mcast", pytest.approx(453 / 452)) in accuracy
    strategies = measured_cells([PAGES / "emulated-strategies.json"])
    assert MeasuredCell("hybcomm/ring", pytest.approx(1 / 0.991)) in strategies
    ratios = Calibration.of([*accuracy, *strategies]).ratios("ring")
    assert 0.9 < ratios.low < 1 < ratios.high < 1.3


def test_the_command_prints_intervals_by_kind() -> None:
    pages = [str(PAGES / f"{page}.json") for page in ("simulator-accuracy", "emulated-strategies")]
    printed = CliRunner().invoke(main, ["calibrate", *pages], catch_exceptions=False).stdout
    hosts = Calibration.of(measured_cells([Path(page) for page in pages])).ratios("ring")
    assert {"all", "fabric", "hosts", str(hosts.cells), f"{hosts.low - 1:+.1%}", f"{hosts.high - 1:+.1%}"} <= set(
        printed.split()
    )
    as_json = CliRunner().invoke(main, ["calibrate", *pages, "--together", "--coverage", "0.8", "--json"]).stdout
    calibration = Calibration.from_json(as_json)
    assert calibration.coverage == 0.8 and set(calibration.groups) == {ALL}
