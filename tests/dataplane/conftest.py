"""Packet tests run on every target that is there, for every number of elements per packet."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from controller.target import V1MODEL
from tests.dataplane.packets import Bench
from tests.dataplane.target import BMV2, KINDS, Target, absent


@pytest.fixture(
    scope="session",
    params=[
        "embedded-64",
        "embedded-256",
        pytest.param("embedded-1024", marks=pytest.mark.slow),
        "embedded-2048",
        *(pytest.param(f"bmv2-{elements}", marks=pytest.mark.bmv2) for elements in V1MODEL.elements),
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


# What a chip does otherwise (docs/tofino.md), by test and, where it has several, the one of them.
WHOLE_HEADERS = "a chip writes a header whole that a frame ended in, and takes it for valid"
CHECK_SEQUENCE = "a chip parses the frame check sequence: up to four missing bytes go unnoticed"
OTHERWISE = {
    f"{test}[tofino-{elements}{which.format(elements)}]": reason
    for elements in (32, 64)
    for test, which, reason in (
        ("test_what_is_switched_is_not_touched", "-a header without its {} elements", WHOLE_HEADERS),
        ("test_what_cannot_be_routed", "-short UDP", WHOLE_HEADERS),
        ("test_what_cannot_be_routed", "-short ARP", WHOLE_HEADERS),
        ("test_a_truncated_packet", "", CHECK_SEQUENCE),
    )
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := OTHERWISE.get(item.name):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


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
