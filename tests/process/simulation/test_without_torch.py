"""Networks of the zoo are simulated where torch is not installed."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
sys.modules["torch"] = None  # importing it fails
from simulation.models.architectures import BUILDERS
from simulation.models.compute import Compute
from simulation.models.workload_source import model

for name in BUILDERS:
    assert model(name, Compute(gpu="h100")).trace.bytes > 0
print(model("gpt2", Compute()).trace.bytes)
"""


def test_networks_of_the_zoo_need_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(4 * 124_439_808), done.stderr
