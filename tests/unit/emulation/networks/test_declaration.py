"""Networks as declarations: what they mean, and one line for each that cannot be."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomllib
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from controller.topology import Topology as Switches
from emulation.cli import main
from emulation.networks import addressing
from emulation.networks.addressing import Started
from emulation.networks.limits import require_realisable
from emulation.networks.links import window_bytes
from hostlib.topology import builtin, topology_kinds
from hostlib.topology.builtin.leaf_spine import leaf_spine
from hostlib.topology.builtin.star import star
from hostlib.topology.topology import Cable, Topology, TopologyError
from hostlib.topology.topology_kinds import declare, kinds
from hostlib.topology.topology_table import TopologyTable, read_table
from simulation.experiments.experiment_file import ROOT_KEYS

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


def test_windows_of_tcp_find_room_in_the_queue_to_one_host() -> None:
    """When all others send to it at once: 1,000 frames, of which 1,448 or 8,948 bytes are a stream's."""
    assert star(8, servers=1).tcp_window_bytes == 131072
    assert star(32).tcp_window_bytes == 1000 * 1448 // 31
    assert replace(star(32), elements=2048).tcp_window_bytes == 131072
    assert star(1).tcp_window_bytes == 131072


def test_to_a_server_all_workers_send_in_several_streams() -> None:
    """Four of each: together they fill three quarters of 1,000 frames."""
    assert [window_bytes(star(workers, 1), "server0") for workers in (1, 4, 8)] == [65536, 65536, 750 * 1448 // 32]
    assert window_bytes(star(8, 1), "worker0") == star(8, 1).tcp_window_bytes
    assert window_bytes(replace(star(8, 1), elements=2048), "server0") == 65536
    assert window_bytes(star(8, 1, delay_ns=1000), "server0") == 131072


def test_a_star() -> None:
    made = declare({"delay": "10us", "loss": 0.1, "queue": 7, "mark": "2:5"}, 2, 1, 1e9)
    assert made.hosts == ("worker0", "worker1", "server0")
    assert (made.switches, made.root) == (("switch",), "switch")
    assert made.cables == tuple(Cable(name, "switch", 1e9, 10_000, 0.1, 7, mark=(2, 5)) for name in made.hosts)
    assert made == star(2, 1, 1e9, 10_000, 0.1, 7, (2, 5))


def test_a_leaf_spine_spreads_workers_evenly_and_keeps_servers_at_the_root() -> None:
    made = declare({"kind": "leaf-spine", "leaves": 3, "oversubscription": 2}, 7, 1, 1e9)
    assert made == leaf_spine(7, 3, 1, 1e9, 2.0)
    below = [[cable.lower for cable in made.below(f"leaf{n}")] for n in range(3)]
    assert below == [["worker0", "worker1", "worker2"], ["worker3", "worker4"], ["worker5", "worker6"]]
    assert [cable.rate_bits_s for cable in made.below("spine")] == [1.5e9, 1.5e9, 1.5e9, 1e9]


def test_a_tree_of_ones_own() -> None:
    made = declare({"kind": "custom", **tomllib.loads(CUSTOM)}, 3, 1, 1e9)
    assert made.cables == (
        Cable("pod0", "core", 2e9, 5000),
        Cable("pod1", "core", 2e9, 5000),
        Cable("rack0", "pod1", 100e6, 5000, 0.01),
        Cable("worker0", "pod0", 1e9, 5000),
        Cable("worker1", "pod0", 1e9, 5000),
        Cable("worker2", "rack0", 1e9, 5000, 0.0, 10),
        Cable("server0", "core", 1e9, 5000),
    )


def test_a_link_has_marks_of_its_own() -> None:
    made = declare({"kind": "leaf-spine", "leaves": 2, "mark": "30:90"}, 2, 0, 1e9)
    assert {cable.mark for cable in made.cables} == {(30, 90)}
    assert [cable["mark"] for cable in made.as_json()["links"]] == [(30, 90)] * 4
    links = [{"lower": "worker0", "upper": "switch", "mark": "1:2"}, {"lower": "worker1", "upper": "switch"}]
    own = declare({"kind": "custom", "links": links, "mark": "30:90"}, 2, 0, 1e9)
    assert [cable.mark for cable in own.cables] == [(1, 2), (30, 90)]
    assert "mark" not in star(1).as_json()["links"][0]
    with pytest.raises(TopologyError, match=r"^link worker0-switch: mark needs a rate: nothing waits for a link"):
        star(2, mark=(30, 90))


def test_dilated_links_are_slower_and_longer() -> None:
    made = star(2, rate_bits_s=1e9, delay_ns=100).dilated(10)
    assert made.cables[0] == Cable("worker0", "switch", 1e8, 1000)
    assert star(2).dilated(10) == star(2)
    for factor in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(TopologyError, match="dilation must be above 0, not"):
            star(2).dilated(factor)


WRONG_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "ring"}, f"unknown kind 'ring'; legal are {', '.join(kinds())}"),
    ({"leaves": 2}, "topology of kind star has no key 'leaves'; legal are kind, delay, loss, queue, mark, elements"),
    ({"loss": 1}, r"link worker0-switch: loss 1.0 is not a probability in \[0, 1\)"),
    ({"loss": "some"}, "topology: loss 'some' is not a number"),
    ({"loss": float("nan")}, "loss nan is not a probability"),
    ({"delay": "soon"}, "topology: delay 'soon' is not a number and one of ns, us, ms, s"),
    ({"delay": 3}, "delay '3' is not a number and one of"),
    ({"queue": 0}, "queue must be at least 1 frame, not 0"),
    ({"mark": 30}, "mark '30' is not two numbers of frames, FROM:TO"),
    ({"mark": [30, 90]}, r"mark '\[30, 90\]' is not two numbers of frames"),
    ({"mark": "90:30"}, "mark '90:30' is not FROM:TO with FROM at least 1, TO at least FROM"),
    ({"queue": 1.5}, "queue 1.5 is not a whole number of frames"),
    ({"kind": "leaf-spine", "leaves": 9}, "9 leaves for 3 workers: at least 1, and a worker on each"),
    ({"kind": "leaf-spine", "leaves": True}, "leaves True is not a whole number"),
    ({"kind": "leaf-spine", "oversubscription": 0}, "oversubscription must be above 0, not 0.0"),
    ({"kind": "custom", "links": 3}, "links is not a list of tables"),
    ({"kind": "custom", "switches": "one"}, "switches 'one' is not a list of names"),
    ({"kind": "custom", "switches": ["a b"]}, "a switch cannot be called 'a b'"),
    ({"kind": "custom", "switches": ["control"]}, "a switch cannot be called 'control'"),
    ({"kind": "custom", "switches": []}, "at least 1 switch is needed, the root"),
    ({"kind": "custom", "links": [{"lower": "worker0"}]}, "a link needs lower .* and upper"),
    (
        {"kind": "custom", "links": [{"upper": "switch", "speed": 1}]},
        "a link has no key 'speed'; legal are lower, upper",
    ),
    ({"kind": "custom", "links": [{"lower": "x", "upper": "switch"}]}, "there is no x; there are worker0..2"),
    ({"kind": "custom", "links": [{"lower": "worker0", "upper": "worker1"}]}, "its upper end is not a switch"),
    ({"kind": "custom", "links": [{"lower": ["worker0"] * 2, "upper": "switch"}]}, "worker0 has two links up"),
    (
        {"kind": "custom", "links": [{"lower": "worker0", "upper": "switch", "rate": -1}]},
        "rate must be above 0 times a host's, not -1",
    ),
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
    return Topology(1, servers, ("a", "b", "c"), tuple(Cable(*ends) for ends in links))


def test_what_is_no_tree_is_refused() -> None:
    assert tree(("worker0", "c"), ("c", "b"), ("b", "a")).root == "a"
    with pytest.raises(TopologyError, match="a is the first switch, so the root, and has no link up"):
        tree(("worker0", "c"), ("c", "b"), ("b", "c"), ("a", "b"))
    with pytest.raises(TopologyError, match="b comes before its parent c: name parents first"):
        tree(("worker0", "c"), ("c", "b"), ("b", "c"))
    with pytest.raises(TopologyError, match="server0 is on b; servers are on the root, a"):
        require_realisable(tree(("worker0", "c"), ("c", "a"), ("b", "a"), ("server0", "b"), servers=1))


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(TopologyError, match="at least 1 worker and 0 servers are needed, not 0 and 0"):
        star(0)
    with pytest.raises(TopologyError, match="at most 512 together"):
        require_realisable(star(513))
    with pytest.raises(TopologyError, match="switch has 33 workers and switches below it; a switch sums at most 32"):
        require_realisable(star(33))
    assert len(star(32, 4).cables) == 36
    for rate in (0.0, float("nan"), float("inf")):
        with pytest.raises(TopologyError, match="rate must be at least 1 bit/s"):
            Cable("worker0", "switch", rate)
    with pytest.raises(TopologyError, match=r"delay must be in .* ns \(an hour\), not -1"):
        Cable("worker0", "switch", None, -1)


def test_the_controller_takes_every_network() -> None:
    """And knows, on each switch, the port that leads to each host."""
    for made in (star(2, 1), leaf_spine(5, 2, 1), declare({"kind": "custom", **tomllib.loads(CUSTOM)}, 3, 1)):
        started = {name: Started(f"127.0.0.1:{n}", 1) for n, name in enumerate(made.switches, 1)}
        switches = Switches.of_json(addressing.for_controller(made, started)["switches"])
        for switch in made.switches:
            ways = switches.forwarding(switch)
            assert ways.keys() == {addressing.mac(made, host) for host in made.hosts}
            for host in made.hosts:
                assert ways[addressing.mac(made, host)] == way(made, switch, host)


def way(topology: Topology, switch: str, host: str) -> int:
    """By walking up from the host."""
    link = topology.above(host)
    while link is not None and link.upper != switch:
        link = topology.above(link.upper)
    return addressing.uplink(topology, switch) if link is None else addressing.port(topology, link)


def test_the_command_says_what_a_file_means(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text('title = "not of the network"\n[topology]\nkind = "leaf-spine"\nleaves = 2\nloss = 0.01\n')
    asked = ["topology", str(file), "--workers", "4", "--bandwidth", "25gbit", "--dilation", "10"]
    done = CliRunner().invoke(main, [*asked, "--json"], catch_exceptions=False)
    described = json.loads(done.output)
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
    with pytest.raises(TopologyError, match="unknown key 'toplogy'; legal is topology"):
        read_table(path, ROOT_KEYS)
    path.write_text('title = "an experiment"\n[cells]\n[topology]\nkind = "leaf-spine"\n')
    assert read_table(path, ROOT_KEYS) == {"kind": "leaf-spine"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["1gbit", "5us"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
LINK_KEYS = st.sampled_from(["lower", "upper", "rate", "delay", "loss", "queue", "speed"])
LINKS = st.lists(st.dictionaries(LINK_KEYS, st.sampled_from(["worker0", "switch", ["worker1"]]) | VALUES, max_size=5))
KINDS = st.sampled_from(["star", "leaf-spine", "custom", "ring", 3])
KEYS = st.sampled_from(["delay", "loss", "queue", "leaves", "oversubscription", "switches", "hosts"])


@given(st.dictionaries(KEYS, VALUES, max_size=3), KINDS, LINKS | VALUES)
def test_whatever_a_table_says_it_is_a_network_or_one_line(table: dict[str, Any], kind: Any, links: Any) -> None:
    extra = {"links": links} if kind == "custom" else {}
    try:
        assert declare({**table, "kind": kind, **extra}, 2, 0, 1e9).workers == 2
    except TopologyError as refused:
        assert str(refused) and "\n" not in str(refused)


def test_another_kind_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the others registers itself; one that is none is named."""
    (tmp_path / "chain.py").write_text(
        "from hostlib.topology.topology import Cable, Topology\n"
        "from hostlib.topology.topology_table import TopologyTable\n"
        "NAME, SUMMARY = 'chain', 'two switches'\n"
        "class Table(TopologyTable):\n"
        "    def topology(self, workers, servers, rate_bits_s):\n"
        "        cables = [Cable('b', 'a'), *(Cable(f'worker{n}', 'b', rate_bits_s) for n in range(workers))]\n"
        "        return Topology(workers, 0, ('a', 'b'), tuple(cables))\n"
    )
    monkeypatch.setattr(builtin, "__path__", [*builtin.__path__, str(tmp_path)])
    topology_kinds.kinds.cache_clear()
    try:
        assert declare({"kind": "chain"}, 2, 0, 1e9).tree.path("b") == ["b", "a"]
        (tmp_path / "stray.py").write_text("")
        topology_kinds.kinds.cache_clear()
        with pytest.raises(
            TopologyError, match=r"stray.py is not a kind of topology: it needs NAME, SUMMARY and Table"
        ):
            declare({}, 2)
        (tmp_path / "stray.py").unlink()
        topology_kinds.kinds.cache_clear()
        listed = CliRunner().invoke(main, ["topology", "--kinds"]).stdout
        assert "two switches" in listed and all(kind in listed for kind in kinds())
        printed = json.loads(CliRunner().invoke(main, ["topology", "--kinds", "--json"]).stdout)
        assert printed["chain"] == {"summary": "two switches", "keys": ["delay", "loss", "queue", "mark", "elements"]}
        assert printed["leaf-spine"]["keys"][:2] == ["leaves", "oversubscription"]
    finally:
        topology_kinds.kinds.cache_clear()
        for name in ("chain", "stray"):
            sys.modules.pop(f"{builtin.__name__}.{name}", None)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"NAME": 3}, "name must be text without spaces, commas, colons and slashes, not 3"),
        ({"NAME": "two words"}, "name must be text without spaces"),
        ({"SUMMARY": ""}, "summary must be a line of text, not ''"),
        ({"SUMMARY": "two\nlines"}, "summary must be a line of text"),
        ({"SUMMARY": None}, "summary must be a line of text, not None"),
        ({"Table": dict}, "Table must be a class of TopologyTable's, not <class 'dict'>"),
        ({"NAME": "star"}, "the name star is taken by another"),
    ],
)
def test_what_a_kind_says_of_itself_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], says: str
) -> None:
    (tmp_path / "zigzag.py").write_text("")
    monkeypatch.setattr(builtin, "__path__", [*builtin.__path__, str(tmp_path)])
    module = ModuleType(f"{builtin.__name__}.zigzag")
    module.__dict__.update({"NAME": "zigzag", "SUMMARY": "to and fro", "Table": TopologyTable, **fields})
    module.__file__ = "zigzag.py"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    topology_kinds.kinds.cache_clear()
    try:
        with pytest.raises(TopologyError, match=f"^zigzag.py is not a kind of topology: {re.escape(says)}"):
            kinds()
    finally:
        topology_kinds.kinds.cache_clear()


def test_kinds_are_asked_for_without_a_file_and_networks_with_one(tmp_path: Path) -> None:
    for words in (["topology"], ["topology", "--kinds", str(tmp_path / "network.toml")]):
        refused = CliRunner().invoke(main, words)
        assert refused.exit_code == 2 and "FILE" in refused.output and "--kinds" in refused.output
