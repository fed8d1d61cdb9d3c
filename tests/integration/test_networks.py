"""Declared networks made real: ranks sum through them, ordinary traffic takes the right cables, nothing stays behind."""

from __future__ import annotations

import shutil

import pytest

from emulation.topology.declaration import leaf_spine
from emulation.topology.realisation import Realisation, SwitchKind, realise
from tests.conftest import needs_root
from tests.integration.networks import left_of, stream, sum_over

RATE_BITS_S, STREAM_BYTES = 20e6, 1_000_000
NETNS, EMBEDDED, BMV2 = Realisation.NETNS, SwitchKind.EMBEDDED, SwitchKind.BMV2
needs_bmv2 = pytest.mark.skipif(
    shutil.which("simple_switch_grpc") is None,
    reason="needs simple_switch_grpc on PATH (package p4lang-bmv2): docs/p4c.md says where it is packaged",
)


@needs_root
@pytest.mark.parametrize("kind", [EMBEDDED, pytest.param(BMV2, marks=needs_bmv2)])
def test_hosts_in_namespaces_sum_and_talk_over_a_tree(kind: SwitchKind) -> None:
    topology = leaf_spine(4, leaves=2, servers=1, rate_bits_s=RATE_BITS_S)
    with realise(topology, NETNS, kind) as fabric:
        assert [host.name for host in fabric.hosts] == ["worker0", "worker1", "worker2", "worker3", "server0"]
        sum_over(fabric, 5000)
        spine, *leaves = fabric.status()["switches"]
        assert spine["events"]["completed"] > 0
        assert [leaf["events"]["sent_up"] for leaf in leaves] == [spine["events"]["completed"]] * 2
        before = fabric.carried()
        elapsed_s = stream(fabric.hosts[0], fabric.hosts[3], STREAM_BYTES)
        after = fabric.carried()
        cpu_s = fabric.cpu_s()
    # A busy machine makes it slower, and nothing may make it faster.
    assert elapsed_s > 0.9 * STREAM_BYTES * 8 / RATE_BITS_S
    sent, received = ({name: after[name][way] - before[name][way] for name in after} for way in (0, 1))
    # Every byte of the stream, and less than a fifth more for headers, passed these cables in this direction.
    assert {name for name, size in sent.items() if STREAM_BYTES < size < 1.2 * STREAM_BYTES} == {"worker0", "leaf0"}
    assert {name for name, size in received.items() if STREAM_BYTES < size < 1.2 * STREAM_BYTES} == {"leaf1", "worker3"}
    assert {name for name in after if sent[name] == received[name] == 0} == {"worker1", "worker2", "server0"}
    assert cpu_s.keys() == {"spine", "leaf0", "leaf1", "controller"}
    assert all(spent > 0 for spent in cpu_s.values())
    assert left_of(fabric) == []
