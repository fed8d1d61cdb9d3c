"""`netfold ask --links`: what pairs of hosts reached becomes the hosts' links."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import netfold
from hostlib.errors import HostlibError
from hostlib.protocol.framing import PHYSICAL
from hostlib.system.pair_links import PairLink, read_links
from netfold.cli import main
from simulation.errors import SimulationError
from simulation.models.measured_links import MeasuredLinks
from simulation.simulator.network import Network, star_of

Of = Callable[[int, int], tuple[float, float]]


def pairs(hosts: int, of: Of) -> list[PairLink]:
    return [PairLink(first, second, *of(first, second)) for first, second in combinations(range(hosts), 2)]


def measured(hosts: int, of: Of) -> MeasuredLinks:
    return MeasuredLinks.of(Path("l"), {(each.first, each.second): each for each in pairs(hosts, of)}, hosts)


def probed(path: Path, hosts: int, of: Of) -> Path:
    rows = [
        {"first": each.first, "second": each.second, "latency_us": each.latency_us, "gbit_s": each.gbit_s}
        for each in pairs(hosts, of)
    ]
    path.write_text(json.dumps({"schema": 1, "links": rows}))
    return path


def test_a_host_s_link_is_as_fast_as_its_best_pair() -> None:
    rates = (10.0, 25.0, 5.0, 25.0)
    found = measured(4, lambda a, b: (20.0, min(rates[a], rates[b])))
    assert found.gbit_s == rates and found.latency_us == (10.0,) * 4 and not found.alike
    assert "5 to 25 Gbit/s of values; host 2 has the slowest link" in found.bandwidth_text


def test_links_that_differ_a_little_are_alike() -> None:
    found = measured(4, lambda a, b: (20.0 + a, 9.4 + 0.1 * b))
    assert found.alike and found.narrow is None
    assert found.gbit_s[0] == pytest.approx(9.7)
    on = found.on(Network(1e9), None)
    assert on.host_links == () and on.bandwidth_bits_s == pytest.approx(9.7e9) and on.latency_ns == 20_500


def test_what_is_slow_between_fast_hosts_limits_all() -> None:
    """Two racks: each host has a fast neighbour, and the way to the other rack is slower."""
    found = measured(4, lambda a, b: (20.0, 25.0 if a // 2 == b // 2 else 10.0))
    assert found.gbit_s == (10.0,) * 4 and found.narrow == (0, 2)
    assert (found.narrow_text or "").startswith("hosts 0 and 2 are slower than with others")


def test_latencies_of_pairs_are_sums_of_hosts() -> None:
    ways = (5.0, 5.0, 5.0, 100.0)
    found = measured(4, lambda a, b: (ways[a] + ways[b], 10.0))
    assert found.latency_us == pytest.approx(ways) and not found.alike
    assert found.latency_text == "10 to 105 us from host to host"


def test_a_network_has_the_links_of_frames() -> None:
    """Values were measured; the simulator's links carry headers."""
    rates = (10.0, 25.0)
    found = measured(3, lambda a, b: (20.0, min((*rates, 25.0)[a], (*rates, 25.0)[b])))
    values, taken = PHYSICAL.tcp_segment()
    network = found.on(Network(1e9), PHYSICAL)
    star = star_of(network, 3, 1)
    worker0, worker1, _, server = star.cables
    assert worker0.rate_bits_s == pytest.approx(10e9 * taken / values)
    assert worker1.rate_bits_s == pytest.approx(25e9 * taken / values)
    assert (server.rate_bits_s, server.delay_ns) == (worker0.rate_bits_s, 10_000)
    apart = star_of(network, 6, 0)
    assert [each.rate_bits_s for each in apart.cables[:3]] == [each.rate_bits_s for each in apart.cables[3:]]
    with pytest.raises(SimulationError, match="links of 3 hosts are known, and not of 4"):
        star_of(network, 4, 0)


def test_the_slowest_host_binds(tmp_path: Path) -> None:
    """A ring of hosts of which one is slow takes as long as one of which all are."""
    one = probed(tmp_path / "one.json", 4, lambda a, b: (0.0, 2.0 if 3 in (a, b) else 20.0))
    every = probed(tmp_path / "every.json", 4, lambda a, b: (0.0, 2.0))
    of_one, of_all = (netfold.ask("alexnet", mechanisms=["ring", "inagg+mcast"], links=each) for each in (one, every))
    for row, other in zip(of_one.rows, of_all.rows, strict=True):
        assert row.mechanism == other.mechanism and row.iteration_ms == pytest.approx(other.iteration_ms, rel=0.02)
        assert row.limited_by == "worker3's link" and other.limited_by == "the hosts' links"


def test_measured_equal_links_are_those_of_that_bandwidth(tmp_path: Path) -> None:
    values, taken = PHYSICAL.tcp_segment()
    path = probed(tmp_path / "links.json", 4, lambda a, b: (30.0, 10.0 * values / taken))
    found = netfold.ask("alexnet", links=path)
    plain = netfold.ask("alexnet", bandwidth="10gbit", latency="30us")
    assert [row.iteration_ms for row in found.rows] == pytest.approx([row.iteration_ms for row in plain.rows])
    for name in ("bandwidth", "latency"):
        assert found.assumptions[name]["source"] == f"{path}, measured by `hostlib bench --probe`"


@pytest.mark.parametrize("slow", [9.4, 2.0], ids=["alike", "unequal"])
def test_a_search_is_for_measured_links(slow: float, tmp_path: Path) -> None:
    path = probed(tmp_path / "links.json", 4, lambda a, b: (20.0, slow if 1 in (a, b) else 9.4))
    words = ["ask", "--search", "--model", "lenet", "--mechanism", "ring,inagg+mcast", "--links", str(path), "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert str(path) in found["assumptions"]["bandwidth"]["source"]
    values, taken = PHYSICAL.tcp_segment()
    # Bandwidths are those of the slowest host's link.
    assert min(found["map"]["bandwidths_bits_s"], key=lambda each: abs(each - slow * 1e9 * taken / values)) == (
        pytest.approx(slow * 1e9 * taken / values)
    )
    of_python = netfold.recommend("lenet", links=path).as_json()
    assert str(path) in of_python["assumptions"]["latency"]["source"]


def test_several_gpus_of_a_host_share_its_link(tmp_path: Path) -> None:
    path = probed(tmp_path / "links.json", 2, lambda a, b: (20.0, 9.4))
    found = netfold.ask("lenet", 8, gpus_per_host=4, links=path)
    assert found.assumptions["hosts"]["value"] == "2 hosts of 4 GPUs"


ROW: dict[str, Any] = {"first": 0, "second": 1, "latency_us": 20.0, "gbit_s": 9.4}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("no", "cannot be read"),
        ("[]", "has no links that `hostlib bench --probe` measured"),
        ('{"schema": 1, "links": []}', "has no links that `hostlib bench --probe` measured"),
        ({"schema": 2, "links": [ROW]}, "has schema 2; 1 is legal"),
        ({"links": [ROW]}, "has schema None; 1 is legal"),
        ({"schema": 1, "links": [{"first": 0}]}, "a row of links must have first, second, latency_us, gbit_s"),
        ({"schema": 1, "links": ["pair"]}, "a row of links must have first, second, latency_us, gbit_s"),
        ({"schema": 1, "links": [{**ROW, "extra": 1}]}, "and nothing else"),
        ({"schema": 1, "links": [{**ROW, "gbit_s": float("nan")}]}, "gbit_s must be a number above 0, and finite"),
        ({"schema": 1, "links": [{**ROW, "latency_us": float("inf")}]}, "latency_us must be a number at least 0"),
        ({"schema": 1, "links": [{**ROW, "gbit_s": 0}]}, "gbit_s must be a number above 0, and finite, not 0"),
        ({"schema": 1, "links": [{**ROW, "gbit_s": "9"}]}, "not '9'"),
        ({"schema": 1, "links": [{**ROW, "first": -1}]}, "-1 and 1 are not two ranks"),
        ({"schema": 1, "links": [{**ROW, "first": 1}]}, "are the same: a link is between two"),
        ({"schema": 1, "links": [ROW, {**ROW, "first": 1, "second": 0}]}, "has two links between ranks 0 and 1"),
        ({"schema": 1, "links": [ROW, {**ROW, "second": 2}]}, "no link between ranks 1 and 2; each two of its 3 ranks"),
        ({"schema": 1, "links": [{**ROW, "second": 10**12}]}, "has no link between ranks 0 and 1"),
    ],
)
def test_a_wrong_file_is_refused_in_a_line(content: object, says: str, tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(HostlibError) as caught:
        read_links(path)
    assert says in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--bandwidth 10gbit", "--bandwidth: --links has what was measured between hosts"),
        ("--search --latency 5us", "--latency: --links has what was measured between hosts"),
        ("--racks 2", "--racks: --links has what was measured between hosts"),
        (
            "--workers 8",
            "has links between 4 hosts, and 8 are asked for; --workers 4 is legal, or 4 times --gpus-per-host",
        ),
        ("--search --workers 1", "has links between 4 hosts, and 1 is asked for"),
        ("--gpus-per-host 2", "has links between 4 hosts, and 2 are asked for"),
        ("--links absent.json", "absent.json cannot be read: No such file or directory"),
    ],
)
def test_what_contradicts_measured_links_is_refused(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.simulator.play.Kernel", lambda *_: pytest.fail("is played"))
    path = probed(tmp_path / "links.json", 4, lambda a, b: (20.0, 9.4))
    done = CliRunner().invoke(
        main, ["ask", "--model", "lenet", "--links", str(path), *words.split()], standalone_mode=False
    )
    error = done.exception
    assert error is not None
    text = error.message if isinstance(error, click.ClickException) else str(error)
    assert says in text and "\n" not in text


def test_a_mix_has_hosts_of_its_own(tmp_path: Path) -> None:
    path, mix = probed(tmp_path / "links.json", 4, lambda a, b: (20.0, 9.4)), tmp_path / "mix.toml"
    mix.write_text('[[job]]\nmodel = "lenet"\nworkers = 2\nhours = 10\n')
    words = ["ask", "--search", "--mix", str(mix), "--links", str(path)]
    done = CliRunner().invoke(main, words, standalone_mode=False)
    assert "--links is of one job's hosts" in str(done.exception)
