"""Packet tests run on every target that is there, for every number of elements per packet."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.dataplane.packets import Bench
from tests.dataplane.target import BMV2, KINDS, Target, absent


@pytest.fixture(
    scope="session",
    params=[
        "embedded-64",
        "embedded-256",
        *(pytest.param(name, marks=pytest.mark.bmv2) for name in ("bmv2-64", "bmv2-256")),
        *(pytest.param(name, marks=pytest.mark.tofino) for name in ("tna-32", "tna-64", "tofino-32", "tofino-64")),
    ],
)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    kind, elements = request.param.split("-")
    reason = absent(kind)
    if reason is not None:
        pytest.skip(reason)
    started = KINDS[kind](int(elements))
    yield started
    started.close()


@pytest.fixture(scope="session", autouse=True)
def versions(record_testsuite_property: Callable[[str, object], None]) -> None:
    """For docs/measurements/packet-tests.md: tests/dataplane/report.py."""
    if absent("bmv2") is None:
        printed = subprocess.run([BMV2, "--version"], capture_output=True, text=True, timeout=20)
        record_testsuite_property("bmv2", printed.stdout.split()[0])


@pytest.fixture
def bench(target: Target) -> Iterator[Bench]:
    """The target with the fabric's address, and nothing else."""
    made = Bench(target)
    yield made
    made.clear()
