"""Every mechanism of hosts by real messages, over Gloo and MPI: the sum is Gloo's, and links carry what the schedule says.

Both transports go by TCP here, so that the kernel counts the bytes of each host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import MPI, MPIRUN_NICELY, ROOT
from tests.integration.transports import transport_ranks

TIMEOUT_S = 400
# Gloo has a header per message and two more to arrange it; MPI has one, and three for a large message.
HEADER_BYTES, SERVERS_ARE_TOLD_BYTES = 300, 2500

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", params=["3", pytest.param("2 4 8", marks=(pytest.mark.slow, pytest.mark.crossed))])
def workers(request: pytest.FixtureRequest) -> list[int]:
    return [int(word) for word in request.param.split()]


@pytest.fixture(scope="module")
def results(workers: list[int]) -> list[dict[str, Any]]:
    processes = max(workers) + transport_ranks.SERVERS
    command = [*MPIRUN_NICELY, "-n", str(processes), sys.executable, "-m", transport_ranks.__name__]
    command += [str(each) for each in workers]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **MPI}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return list(json.loads(done.stdout))


def test_every_mechanism_sums_as_gloo_does(workers: list[int], results: list[dict[str, Any]]) -> None:
    played = {(r["transport"], r["workers"], r["mechanism"]) for r in results}
    for mechanism in transport_ranks.mechanisms():
        for transport in ("gloo", "mpi"):
            assert {(transport, count, mechanism.name) for count in workers} <= played
    assert [result for result in results if result["mismatches"]] == []


def test_every_hosts_link_carries_what_the_schedule_predicts(results: list[dict[str, Any]]) -> None:
    for result in results:
        headers = HEADER_BYTES * result["messages"] + SERVERS_ARE_TOLD_BYTES
        for carried, predicted in zip(result["carried"], result["predicted"], strict=True):
            assert predicted <= carried <= predicted + headers, result
