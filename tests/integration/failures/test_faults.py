"""A bad network changes nothing but the time: the weights are those of a good one, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Fabric
from tests.training_runs import trained

FAULTS = ("--loss", "0.02", "--duplicate", "0.02", "--reorder", "0.02", "--seed", "7")


@pytest.mark.parametrize(
    "options",
    [
        ("--iterations", "30"),
        pytest.param(("--mechanism", "bsp/inagg+mcast", "--model", "vgg", "--iterations", "8"), marks=pytest.mark.slow),
    ],
)
def test_loss_duplication_and_reordering_leave_the_weights_alone(
    start_fabric: Callable[..., Fabric], options: tuple[str, ...]
) -> None:
    good_fabric = start_fabric()
    good = trained("--controller", good_fabric.http, "--deadline", "20", *options)
    bad_fabric = start_fabric(*FAULTS)
    bad = trained("--controller", bad_fabric.http, "--deadline", "20", *options)
    assert len(set(good["weights_sha256"] + bad["weights_sha256"])) == 1
    assert sum(engine["retransmits"] for engine in bad["engine"]) > 0
    # Each slot completes once, however often its packets were lost or came twice.
    for fabric, run in ((good_fabric, good), (bad_fabric, bad)):
        assert fabric.status()["events"]["completed"] == run["steps_chunks_total"] > 0
    assert bad_fabric.status()["events"]["answered"] > 0
