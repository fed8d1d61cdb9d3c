"""Without Triton, and without a GPU: one line that says what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.conftest import ROOT

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import hostlib.pytorch.backend
try:
    import hostlib.staging.cuda
except hostlib.errors.HostlibError as line:
    sys.exit(str(line))
"""


def test_without_triton_all_but_cuda_works() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr.startswith(
        "sums of CUDA tensors need Triton, which every CUDA build of torch brings: pip install"
    )


WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        pytest.param(options, "error: no CUDA device: torch ", marks=WITHOUT_GPU)
        for options in (["--device", "cuda"], ["--device", "cuda", "--kernels"])
    ],
)
def test_figures_of_a_gpu_need_one(options: list[str], line: str) -> None:
    command = [sys.executable, "-m", "hostlib", "bench", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(line) and len(done.stderr.splitlines()) == 1
