"""A worker that is killed while the host adds: the others say who is missing, and nothing is left of the memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.chaos.training import TrainingRun

DEADLINE_S = 3


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=(pytest.mark.slow, pytest.mark.crossed))]
)
def test_a_rank_that_goes_is_named(number: signal.Signals) -> None:
    before = set(os.listdir("/dev/shm"))
    run = TrainingRun.start("--mechanism", "cgdp", "--workers", "3", "--epochs", "2000", "--deadline", str(DEADLINE_S))
    try:
        run.wait_for_step()
        victim = run.ranks()[1]
        mapped = Path(f"/proc/{victim}/maps").read_text()
        assert "/memfd:netfold-shm (deleted)" in mapped
        os.kill(victim, number)
        assert run.end(within_s=DEADLINE_S + 20) == 1
        assert "rank 1" in run.error()
        # Other runs of this machine may have come and gone, but none of these processes is there any more.
        assert not [name for name in set(os.listdir("/dev/shm")) - before if "netfold" in name]
    finally:
        run.stop()
