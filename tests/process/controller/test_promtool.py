"""The metrics, as Prometheus' own tool reads them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.unit.controller.memory_api import memory_api

PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool on PATH: apt-get install prometheus")
def test_promtool_finds_nothing_wrong_with_the_metrics() -> None:
    api = memory_api()
    api.join(0, world_size=1)
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=api.read("/metrics"), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
