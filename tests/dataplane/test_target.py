"""The targets themselves: what they count by port, and that they leave nothing behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from tests.dataplane import target as targets
from tests.dataplane.packets import Bench
from tests.dataplane.source import FRONTEND
from tests.dataplane.target import BMV2, KINDS, Bmv2, Target, absent
from tests.dataplane.test_forwarding import EVERYBODY, GROUP, HOST, OTHER, entry, flood, number


@pytest.fixture
def fresh(target: Target) -> Iterator[Bench]:
    """A target that has counted nothing."""
    made = Bench(target)
    made.reset()
    yield made
    made.clear()


def test_frames_and_bytes_are_counted_by_port(fresh: Bench) -> None:
    """In: all that came. Out: all that left; what egress dropped did not."""
    fresh.install_entities(
        [
            flood(1, 2, 3),
            entry(fresh, "l2", "dst_mac", number(OTHER), "l2_forward", port=2),
            entry(fresh, "l2", "dst_mac", number(EVERYBODY), "l2_flood", group=GROUP),
        ]
    )
    for mac in (OTHER, EVERYBODY, "02:00:00:01:00:99"):
        fresh.target.send(1, bytes(Ether(src=HOST, dst=mac, type=0x88B5) / Raw(b"x" * 86)))
    assert fresh.target.traffic() == {"port_in": {1: (3, 300)}, "port_out": {2: (2, 200), 3: (1, 100)}}


def test_a_target_begins_anew(fresh: Bench) -> None:
    fresh.target.send(1, bytes(Ether(src=HOST, dst=OTHER, type=0x88B5) / Raw(b"x" * 50)))
    assert fresh.target.counts()["events"] and fresh.target.traffic()["port_in"]
    fresh.reset()
    assert fresh.target.counts() == {"events": {}, "egress_events": {}}
    assert fresh.target.traffic() == {"port_in": {}, "port_out": {}}


def left_behind() -> list[str]:
    """This process's network namespaces and switches."""
    spaces = [each.name for each in Path("/run/netns").glob(f"netfold-test-{os.getpid()}-*")]
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "comm="], capture_output=True, text=True).stdout
    return [*spaces, *(line for line in children.split() if BMV2.startswith(line))]


@pytest.mark.bmv2
@pytest.mark.root
def test_bmv2_goes_with_its_namespace() -> None:
    before = left_behind()
    started = Bmv2(64)
    assert len(left_behind()) == len(before) + 2
    started.close()
    assert left_behind() == before


@pytest.mark.bmv2
@pytest.mark.root
def test_a_bmv2_that_does_not_start_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / BMV2
    fake.write_text("#!/bin/sh\necho no such device; exit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = left_behind()
    with pytest.raises(OSError, match="did not start: no such device"):
        Bmv2(64)
    assert left_behind() == before


@pytest.mark.parametrize("kind", ["bmv2", "tna", "tofino"])
def test_an_absent_target_says_what_to_install(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    absent.cache_clear()
    try:
        reason = absent(kind)
    finally:
        absent.cache_clear()
    assert reason is not None
    assert {"bmv2": BMV2, "tna": FRONTEND, "tofino": targets.HARNESS}[kind] in reason
    assert (Path(__file__).parents[2] / reason.split(": ")[-1].split()[0]).exists()


def test_every_kind_is_here_or_says_what_is_missing() -> None:
    assert all(kind in KINDS or absent(kind) for kind in ("embedded", "bmv2", "tna", "tofino"))
