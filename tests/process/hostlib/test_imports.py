"""What a new process loads, and what not: torch and its compiler take seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hostlib.errors import UnknownNameError
from hostlib.models import zoo
from hostlib.train.options import TrainOptions
from tests.conftest import ROOT


@pytest.mark.parametrize(
    "package",
    [
        "hostlib.schedules.schedule",
        "hostlib.mechanisms.mechanism",
        "hostlib.strategies.strategy",
        "hostlib.strategies.plan",
        "hostlib.fabric.job_client",
        "hostlib.cli",
        "hostlib.traces.trace",
        "hostlib.strategies.builtin.poseidon.traffic",
        "simulation.cli",
        "emulation.experiments.runner",
    ],
)
def test_torch_stays_out_of_what_does_not_need_it(package: str) -> None:
    code = f"import sys, {package}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_unknown_models_are_refused_before_torch_is_loaded() -> None:
    with pytest.raises(UnknownNameError, match="unknown model 'alexnot'; legal are MODULE:FACTORY, alexnet"):
        TrainOptions(model="alexnot", mechanism="ring")
    code = "import sys, hostlib.train.options as o; o.TrainOptions(model='vgg19:classes=5', data='synthetic'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_rank_that_trains_a_network_of_the_zoo_loads_no_compiler() -> None:
    code = (
        "import sys, hostlib.train.loop; from hostlib.datasets.pairing import *; from hostlib.datasets.dataset import Dataset\n"
        "data = Dataset('synthetic', examples=5); load_data(data, load_fitting('cifar10_quick', data), 1)\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in loaded
    assert {"scipy", "sklearn", "sympy", "torch._dynamo", "torch._inductor"}.isdisjoint(loaded)


def test_a_rank_loads_nothing_that_takes_long_and_that_it_does_not_need() -> None:
    code = "import sys, hostlib.datasets.batches, hostlib.train.loop as t; t._be_deterministic(1); hostlib.datasets.batches.digits(1); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in loaded
    assert {"scipy", "sklearn", "torch._dynamo", "torch._inductor"}.isdisjoint(loaded)


def test_names_need_no_torch() -> None:
    code = "import sys, hostlib.models.zoo, hostlib.models.zoo.catalogue; print('torch' in sys.modules, len(hostlib.models.zoo.NAMES))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", str(len(zoo.NAMES))]
