"""Networks as declarations: what they mean, and one line for each that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomllib
from click.testing import CliRunner

from controller.topology import Topology as Switches
from emulation.cli import main
from emulation.topology import cabling
from emulation.topology.cabling import Started
from emulation.topology.declaration import Link, Topology, TopologyError, declare, leaf_spine, read_table, star

CUSTOM = """
switches = ["core", "pod0", "pod1", "rack0"]
delay = "5us"
[[links]]
lower = ["pod0", "pod1"]
upper = "core"
rate = 2
[[links]]
lower = "rack0"
upper = "pod1"
rate = "100mbit"
loss = 0.01
[[links]]
lower = ["worker0", "worker1"]
upper = "pod0"
[[links]]
lower = "worker2"
upper = "rack0"
queue = 10
[[links]]
lower = "server0"
upper = "core"
"""


def test_a_star() -> None:
    made = declare({"delay": "10us", "loss": 0.1, "queue": 7}, 2, 1, 1e9)
    assert made.hosts == ("worker0", "worker1", "server0")
    assert (made.switches, made.root) == (("switch",), "switch")
    assert made.links == tuple(Link(name, "switch", 1e9, 10_000, 0.1, 7) for name in made.hosts)
    assert made == star(2, 1, 1e9, 10_000, 0.1, 7)


def test_a_leaf_spine_spreads_workers_evenly_and_keeps_servers_at_the_root() -> None:
    made = declare({"kind": "leaf-spine", "leaves": 3, "oversubscription": 2}, 7, 1, 1e9)
    assert made == leaf_spine(7, 3, 1, 1e9, 2.0)
    below = [[link.lower for link in made.below(f"leaf{n}")] for n in range(3)]
    assert below == [["worker0", "worker1", "worker2"], ["worker3", "worker4"], ["worker5", "worker6"]]
    assert [link.rate_bits_s for link in made.below("spine")] == [1.5e9, 1.5e9, 1.5e9, 1e9]


def test_a_tree_of_ones_own() -> None:
    made = declare({"kind": "custom", **tomllib.loads(CUSTOM)}, 3, 1, 1e9)
    assert made.links == (
        Link("pod0", "core", 2e9, 5000),
        Link("pod1", "core", 2e9, 5000),
        Link("rack0", "pod1", 100e6, 5000, 0.01),
        Link("worker0", "pod0", 1e9, 5000),
        Link("worker1", "pod0", 1e9, 5000),
        Link("worker2", "rack0", 1e9, 5000, 0.0, 10),
        Link("server0", "core", 1e9, 5000),
    )


def test_dilated_links_are_slower_and_longer() -> None:
    made = star(2, rate_bits_s=1e9, delay_ns=100).dilated(10)
    assert made.links[0] == Link("worker0", "switch", 1e8, 1000)
    assert star(2).dilated(10) == star(2)
    for factor in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(TopologyError, match="is not above 0"):
            star(2).dilated(factor)


WRONG_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "ring"}, "there is no kind 'ring'; there are star, leaf-spine, custom"),
    ({"leaves": 2}, "topology of kind star has no 'leaves'; it has kind, delay, loss, queue"),
    ({"loss": 1}, r"link worker0-switch: loss 1.0 is not a probability in \[0, 1\)"),
    ({"loss": "some"}, "topology: loss 'some' is not a number"),
    ({"loss": float("nan")}, "loss nan is not a probability"),
    ({"delay": "soon"}, "topology: delay 'soon' is not a number and one of ns, us, ms, s"),
    ({"delay": 3}, "delay '3' is not a number and one of"),
    ({"queue": 0}, "a queue of 0 frames is not at least 1"),
    ({"queue": 1.5}, "queue 1.5 is not a whole number of frames"),
    ({"kind": "leaf-spine", "leaves": 9}, "9 leaves for 3 workers: at least 1, and a worker on each"),
    ({"kind": "leaf-spine", "leaves": True}, "leaves True is not a whole number"),
    ({"kind": "leaf-spine", "oversubscription": 0}, "an oversubscription of 0.0 is not above 0"),
    ({"kind": "custom", "links": 3}, "links is not a list of tables"),
    ({"kind": "custom", "switches": "one"}, "switches 'one' is not a list of names"),
    ({"kind": "custom", "switches": ["a b"]}, "a switch cannot be called 'a b'"),
    ({"kind": "custom", "switches": ["control"]}, "a switch cannot be called 'control'"),
    ({"kind": "custom", "switches": []}, "0 switches are not in"),
    ({"kind": "custom", "links": [{"lower": "worker0"}]}, "a link has lower, .*, and upper"),
    ({"kind": "custom", "links": [{"upper": "switch", "speed": 1}]}, "a link has no 'speed'; it has lower, upper"),
    ({"kind": "custom", "links": [{"lower": "x", "upper": "switch"}]}, "there is no x; there are worker0..2"),
    ({"kind": "custom", "links": [{"lower": "worker0", "upper": "worker1"}]}, "its upper end is no switch"),
    ({"kind": "custom", "links": [{"lower": ["worker0"] * 2, "upper": "switch"}]}, "worker0 has two links up"),
    ({"kind": "custom", "links": [{"lower": "worker0", "upper": "switch", "rate": -1}]}, "is not above 0"),
    ({"kind": "custom", "links": [{"lower": "worker0", "upper": "switch", "rate": "1"}]}, "rate '1' is not a number"),
    ({"kind": "custom"}, "worker0 has no link up to a switch"),
    ({"kind": "custom", "switches": ["a", "a"]}, "two nodes are called a"),
]


@pytest.mark.parametrize(("table", "says"), WRONG_TABLES)
def test_a_table_that_cannot_be_is_refused_in_one_line(table: dict[str, Any], says: str) -> None:
    with pytest.raises(TopologyError, match=says) as refused:
        declare(table, 3, 0, 1e9)
    assert "\n" not in str(refused.value)


def tree(*links: tuple[str, str], servers: int = 0) -> Topology:
    return Topology(1, servers, ("a", "b", "c"), tuple(Link(*ends) for ends in links))


def test_what_is_no_tree_is_refused() -> None:
    assert tree(("worker0", "c"), ("c", "b"), ("b", "a")).root == "a"
    with pytest.raises(TopologyError, match="a is the first switch, so the root, and has no link up"):
        tree(("worker0", "c"), ("c", "b"), ("b", "c"), ("a", "b"))
    with pytest.raises(TopologyError, match="b comes before its parent c: name parents first"):
        tree(("worker0", "c"), ("c", "b"), ("b", "c"))
    with pytest.raises(TopologyError, match="server0 is on b; servers are on the root, a"):
        tree(("worker0", "c"), ("c", "a"), ("b", "a"), ("server0", "b"), servers=1)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(TopologyError, match="0 workers and 0 servers: at least 1 worker"):
        star(0)
    with pytest.raises(TopologyError, match="at most 512 together"):
        star(513)
    with pytest.raises(TopologyError, match="switch has 33 workers and switches below it; a switch sums at most 32"):
        star(33)
    assert len(star(32, 4).links) == 36
    for rate in (0.0, float("nan"), float("inf")):
        with pytest.raises(TopologyError, match="bit/s is not at least 1"):
            Link("worker0", "switch", rate)
    with pytest.raises(TopologyError, match="a delay of -1 ns is not in"):
        Link("worker0", "switch", None, -1)


def test_the_controller_takes_every_network() -> None:
    """And knows, on each switch, the port that leads to each host."""
    for made in (star(2, 1), leaf_spine(5, 2, 1), declare({"kind": "custom", **tomllib.loads(CUSTOM)}, 3, 1)):
        started = {name: Started(f"127.0.0.1:{n}", 1) for n, name in enumerate(made.switches, 1)}
        switches = Switches.of_json(cabling.for_controller(made, started)["switches"])
        for switch in made.switches:
            ways = switches.forwarding(switch)
            assert ways.keys() == {cabling.mac(made, host) for host in made.hosts}
            for host in made.hosts:
                assert ways[cabling.mac(made, host)] == way(made, switch, host)


def way(topology: Topology, switch: str, host: str) -> int:
    """By walking up from the host."""
    link = topology.above(host)
    while link is not None and link.upper != switch:
        link = topology.above(link.upper)
    return cabling.UPLINK if link is None else cabling.port(topology, link)


def test_the_command_says_what_a_file_means(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text('title = "not of the network"\n[topology]\nkind = "leaf-spine"\nleaves = 2\nloss = 0.01\n')
    asked = ["topology", str(file), "--workers", "4", "--bandwidth", "25gbit", "--dilation", "10"]
    said = CliRunner().invoke(main, [*asked, "--json"], catch_exceptions=False)
    described = json.loads(said.output)
    assert described["switches"] == ["spine", "leaf0", "leaf1"]
    assert described["links"][0] == {
        **{"lower": "leaf0", "upper": "spine", "rate_bits_s": 5e9},
        **{"delay_ns": 0, "loss": 0.01, "queue": 1000},
    }
    shown = CliRunner().invoke(main, asked, catch_exceptions=False).output
    assert "worker3 - leaf1" in shown and "2.5 Gbit/s" in shown and "1.00%" in shown
    file.write_text("topology = 3")
    with pytest.raises(TopologyError, match="is not a table"):
        CliRunner().invoke(main, asked, catch_exceptions=False)


def test_a_misspelt_table_is_no_star(tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text('[toplogy]\nkind = "leaf-spine"\n')
    with pytest.raises(TopologyError, match="there is no 'toplogy' in a network's file; there is topology"):
        read_table(path)
    path.write_text('title = "an experiment"\n[cells]\n[topology]\nkind = "leaf-spine"\n')
    assert read_table(path) == {"kind": "leaf-spine"}
