"""Packet tests run on every target that is there, for every number of elements per packet."""

from __future__ import annotations

import re
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


# What a chip does otherwise (docs/tofino.md), by test and, where it has several, the one of them.
WHOLE_HEADERS = "a chip writes a header whole that a frame ended in, and takes it for valid"
CHECK_SEQUENCE = "a chip parses the frame check sequence: up to four missing bytes go unnoticed"
OTHERWISE = {
    "test_what_is_switched_is_not_touched[tofino-N-a short datagram to the protocol's port]": WHOLE_HEADERS,
    "test_what_is_switched_is_not_touched[tofino-N-a header without its N elements]": WHOLE_HEADERS,
    "test_what_is_routed_leaves_with_a_right_checksum[tofino-N-a short datagram to the protocol's port-10.1.9.9-ports0]": WHOLE_HEADERS,
    "test_what_is_routed_leaves_with_a_right_checksum[tofino-N-a short datagram to the protocol's port-239.1.1.7-ports1]": WHOLE_HEADERS,
    "test_what_cannot_be_routed[tofino-N-short UDP]": WHOLE_HEADERS,
    "test_what_cannot_be_routed[tofino-N-short ARP]": WHOLE_HEADERS,
    "test_no_port_speaks_as_the_fabric[tofino-N-to the protocol's port]": WHOLE_HEADERS,
    "test_a_truncated_packet[tofino-N]": CHECK_SEQUENCE,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := OTHERWISE.get(re.sub(r"(?<=tofino-)\d+|\d+(?= elements)", "N", item.name)):
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
