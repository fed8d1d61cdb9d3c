"""A sweep on a Dask cluster."""

from __future__ import annotations

import pytest

from tests.unit.simulation.test_sweep import sweep


@pytest.mark.filterwarnings("ignore")  # of Dask and its event loop
def test_a_cluster_plays_the_same() -> None:
    distributed = pytest.importorskip("distributed", reason="an extra: pip install 'netfold[cluster]'")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp://"
    ) as cluster:
        there = sweep("--cluster", cluster.scheduler_address)
    assert [r["iteration_s"] for r in there] == [r["iteration_s"] for r in sweep()]
