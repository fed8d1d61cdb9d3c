"""Packet tests run on every target that is there, for every number of elements per packet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dataplane.packets import Bench
from tests.dataplane.target import KINDS, Target, absent


@pytest.fixture(scope="session", params=["embedded-64", "embedded-256", "bmv2-64", "bmv2-256"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    kind, elements = request.param.split("-")
    reason = absent(kind)
    if reason is not None:
        pytest.skip(reason)
    started = KINDS[kind](int(elements))
    yield started
    started.close()


@pytest.fixture
def bench(target: Target) -> Iterator[Bench]:
    """The target with the fabric's address, and nothing else."""
    made = Bench(target)
    yield made
    made.clear()
