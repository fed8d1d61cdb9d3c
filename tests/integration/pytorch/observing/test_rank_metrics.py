"""What a rank's groups and sessions carried, as Prometheus reads it from the rank's process."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hostlib.launch.fork_server import ForkServer
from tests.conftest import Fabric
from tests.forked import Ranks

SCRIPT = Path(__file__).with_name("metrics_ranks.py")
PATIENCE_S = 100.0
PROMTOOL = shutil.which("promtool")


@pytest.mark.parametrize(("mechanism", "path"), [("inagg+mcast", "fabric"), ("ring", "hosts")])
def test_bytes_and_operations_of_groups_and_sessions(
    mechanism: str, path: str, fabric: Fabric, forks: ForkServer, tmp_path: Path
) -> None:
    environment = {"NETFOLD_MECHANISM": mechanism, "NETFOLD_CONTROLLER": fabric.http}
    ranks = Ranks(forks, tmp_path, SCRIPT, tmp_path, mechanism, fabric.http, **environment)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    of_groups = {
        ("0", "all_reduce", path): (1, 400),
        ("0", "all_reduce", "gloo"): (1, 800),
        ("0", "barrier", "gloo"): (1, 0),
    }
    of_session = {
        ("all_reduce", path): (2, 4 * (50 + 10)),  # DDP's bucket of ten parameters, too
        ("reduce_scatter", path): (1, 800),
        ("all_gather", path): (1, 800),
        ("broadcast", path): (1, 800),
    }
    if mechanism == "ring":
        of_session |= {("reduce", path): (1, 40), ("all_to_all", path): (1, 80)}
    for rank in range(2):
        text, traffic = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert {
            (operation, means): (carried["calls"], carried["bytes"])
            for operation, by_means in traffic.items()
            for means, carried in by_means.items()
        } == of_session
        values = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        expected = {("netfold_rank_fabric_failures_total", group): 0 for group in ("0", "session-1")}
        expected |= {("netfold_rank_fallback_bytes_total", group): 0 for group in ("0", "session-1")}
        for labels, (calls, size) in (
            of_groups | {("session-1", *labels): of for labels, of in of_session.items()}
        ).items():
            expected[("netfold_rank_operations_total", *labels)] = calls
            expected[("netfold_rank_bytes_total", *labels)] = size
        assert values == expected
        if PROMTOOL is not None:
            checked = subprocess.run(
                [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
            )
            assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
