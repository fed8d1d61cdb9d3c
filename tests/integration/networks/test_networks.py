"""Declared networks made real: ranks sum through them, ordinary traffic takes the right cables, nothing stays behind."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from emulation.experiments.packet_counts import marked_packets
from emulation.experiments.process_times import ProcessTimes
from emulation.networks.addressing import DATA
from emulation.networks.cleanup import CleanupRecord
from emulation.networks.netns import namespaces
from emulation.networks.realise import NetworkKind, SwitchKind, realise
from hostlib.system.network_links import with_tables
from hostlib.topology.builtin.leaf_spine import leaf_spine
from hostlib.topology.builtin.star import star
from hostlib.topology.topology import Topology, TopologyError
from tests.conftest import ROOT
from tests.integration.networks.virtual_hosts import at, left_of, stream, sum_over

RATE_BITS_S, STREAM_BYTES = 20e6, 1_000_000
NETNS, EMBEDDED, BMV2 = NetworkKind.NETNS, SwitchKind.EMBEDDED, SwitchKind.BMV2


MININET, LOOPBACK = NetworkKind.MININET, NetworkKind.LOOPBACK


@pytest.mark.root
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        (NETNS, EMBEDDED),
        pytest.param(NETNS, BMV2, marks=pytest.mark.bmv2),
        pytest.param(MININET, EMBEDDED, marks=pytest.mark.mininet),
    ],
)
def test_hosts_sum_and_talk_over_a_tree(how: NetworkKind, kind: SwitchKind) -> None:
    topology = leaf_spine(4, leaves=2, servers=1, rate_bits_s=RATE_BITS_S)
    with realise(topology, how, kind) as fabric:
        assert [host.name for host in fabric.hosts] == ["worker0", "worker1", "worker2", "worker3", "server0"]
        sum_over(fabric, 5000)
        before = fabric.carried()
        spine, *leaves = fabric.status()["switches"]
        assert spine["events"]["completed"] > 0
        assert [leaf["events"]["sent_up"] for leaf in leaves] == [spine["events"]["completed"]] * 2
        elapsed_s = stream(fabric.hosts[0], fabric.hosts[3], STREAM_BYTES)
        after = fabric.carried()
        cpu_s = {name: ProcessTimes.of(each.pid).cpu_s for name, each in fabric.processes.items()}
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


@pytest.mark.root
@pytest.mark.parametrize(
    ("how", "loss", "delay_ns", "windows", "least_timeout_ms"),
    [
        (NETNS, 0.0, 0, (131072, 65536), 1000),
        (NETNS, 0.01, 0, (131072, 65536), None),
        (NETNS, 0.0, 1000, (131072, 131072), 1000),
        pytest.param(MININET, 0.0, 0, (131072, 65536), 1000, marks=pytest.mark.mininet),
    ],
)
def test_the_receiver_bounds_tcp(
    how: NetworkKind, loss: float, delay_ns: int, windows: tuple[int, int], least_timeout_ms: int | None
) -> None:
    topology = star(2, servers=1, rate_bits_s=RATE_BITS_S, loss=loss, delay_ns=delay_ns)
    with realise(topology, how, EMBEDDED) as fabric:
        found = {host.name: tcp_metrics(host.netns) for host in fabric.hosts}
    assert [found[name]["RTAX_WINDOW"] for name in ("worker1", "server0")] == list(windows)
    assert {each.get("RTAX_RTO_MIN") for each in found.values()} == {least_timeout_ms}


@pytest.mark.root
@pytest.mark.parametrize("how", [NETNS, pytest.param(MININET, marks=pytest.mark.mininet)])
@pytest.mark.parametrize("mark", [None, (5, 20)])
def test_the_queue_to_a_host_marks_what_two_send_it(how: NetworkKind, mark: tuple[int, int] | None) -> None:
    with realise(star(3, rate_bits_s=RATE_BITS_S, mark=mark), how, EMBEDDED) as fabric:
        *sources, last = fabric.hosts
        with ThreadPoolExecutor(len(sources)) as pool:
            list(pool.map(lambda source: stream(source, last, STREAM_BYTES), sources))
        marked = [at(host, marked_packets) for host in fabric.hosts]
    assert (marked[2] > 0) == (mark is not None)
    assert marked[:2] == [0, 0], "acknowledgements wait for nobody"


def tcp_metrics(space: str | None) -> dict[str, int]:
    """Metrics of a host's route to the others."""

    def read(kernel: IPRoute) -> dict[str, int]:
        routes = {route.get_attr("RTA_DST"): route for route in kernel.get_routes() if route["dst_len"] == DATA.bits}
        return dict(routes[DATA.first].get_attr("RTA_METRICS")["attrs"])

    return with_tables(space, read)


@pytest.mark.root
@pytest.mark.mininet
@pytest.mark.slow
@pytest.mark.parametrize("kind", [EMBEDDED, pytest.param(BMV2, marks=pytest.mark.bmv2)])
def test_a_leaf_spine_of_mininets_sums_hierarchically(kind: SwitchKind) -> None:
    """4 leaves x 4 workers: each leaf sends one sum up for its four, as its counters and its cable's say."""
    with realise(leaf_spine(16, leaves=4), MININET, kind) as fabric:
        sum_over(fabric, 4000)
        carried = fabric.carried()
        spine, *leaves = fabric.status()["switches"]
    completed = spine["events"]["completed"]
    assert completed >= 4000 / 256
    assert [leaf["events"]["sent_up"] for leaf in leaves] == [completed] * 4
    # On a busy machine something may have been sent twice.
    assert {name for name, count in spine["drops"].items() if count} <= {"duplicate", "stale"}
    for leaf in range(4):
        up = carried[f"leaf{leaf}"][0]
        workers = [carried[f"worker{worker}"][0] for worker in range(4 * leaf, 4 * leaf + 4)]
        assert 0 < up < sum(workers)
    assert left_of(fabric) == []
    assert [path.name for path in Path("/sys/class/net").iterdir() if fabric.record.path.stem[-6:] in path.name] == []


@pytest.mark.root
@pytest.mark.mininet
def test_a_switch_of_ones_own_mininet_carries_tcp() -> None:
    """The example of docs/emulation-networks.md."""
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/emulation-networks.md").read_text(), re.M | re.S)
    done = subprocess.run([sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    ports = ast.literal_eval(done.stdout.splitlines()[-1])
    assert ports.keys() == {1, 2}
    assert all(1_000_000 < size < 1_200_000 for size in (ports[1]["bytes_in"], ports[2]["bytes_out"]))


def test_a_tree_on_loopback_needs_no_root_and_its_links_lose() -> None:
    topology = leaf_spine(4, leaves=2, rate_bits_s=RATE_BITS_S, loss=0.02, delay_ns=100_000)
    with realise(topology, LOOPBACK, EMBEDDED, seed=5) as fabric:
        assert {host.netns for host in fabric.hosts} == {None}
        assert sum_over(fabric, 20_000) > 0, "of over 600 frames 2 % are lost"
        carried = fabric.carried()
        spine, *leaves = fabric.status()["switches"]
    assert [leaf["events"]["sent_up"] for leaf in leaves] == [spine["events"]["completed"]] * 2
    payload = 20_000 * 4
    assert all(size > payload for way in carried.values() for size in way), carried
    assert left_of(fabric) == []


def test_what_cannot_be_made_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(topology: Topology, how: NetworkKind, kind: SwitchKind, says: str) -> None:
        with pytest.raises(TopologyError, match=says) as error, realise(topology, how, kind):
            pass
        assert "\n" not in str(error.value)

    with monkeypatch.context() as somewhere:
        somewhere.setenv("PATH", "/nowhere")
        refused(star(2), NETNS, BMV2, "bmv2 need simple_switch_grpc on PATH: docs/p4c.md says")
        refused(star(2), MININET, SwitchKind.TOFINO_MODEL, "need tofino_test_harness on PATH: docs/tofino.md")
    monkeypatch.setattr("emulation.networks.realise.require_able", lambda kind: None)
    refused(star(2), LOOPBACK, BMV2, "need network interfaces: on loopback there is embedded alone")
    refused(star(2, loss=0.1), NETNS, BMV2, "bmv2 neither delays nor loses frames: leave out delay and loss")
    slow = star(2, delay_ns=1000)
    refused(
        slow, NETNS, SwitchKind.TOFINO_MODEL, "tofino-model does not delay frames: leave out delay, or use embedded"
    )
    marking = star(2, rate_bits_s=RATE_BITS_S, mark=(30, 90))
    refused(marking, NETNS, BMV2, "bmv2 has no queue that marks frames: leave out mark, or use embedded and netns")
    refused(marking, LOOPBACK, EMBEDDED, "loopback has no queue that marks frames")
    monkeypatch.setitem(sys.modules, "emulation.networks.mininet", None)
    refused(star(2), MININET, EMBEDDED, "needs Debian's package mininet .*: apt-get install mininet")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(TopologyError, match="network namespaces need root; the realisation loopback does not"):
        namespaces(star(2), CleanupRecord(tmp_path / "1-1-1.jsonl")).__enter__()
    with pytest.raises(TopologyError, match="on loopback ring would bypass the switches"):
        LOOPBACK.require_streams("ring")
    NETNS.require_streams("ring")
