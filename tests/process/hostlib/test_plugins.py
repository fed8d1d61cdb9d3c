"""What registers itself: other people's mechanisms and strategies, and what cannot be registered, in every reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hostlib.errors import OperationError, ScheduleError, SpecError, UnknownNameError
from hostlib.mechanisms import mechanism as mechanisms
from hostlib.mechanisms.mechanism import find, registered
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.checker import check
from hostlib.schedules.fabric_use import require_fit
from hostlib.schedules.schedule import Aggregate, FabricUse, Lists, Receive, Schedule, Send
from hostlib.strategies import strategy as strategies
from hostlib.strategies.strategy import choose, registered_strategies
from hostlib.strategies.strategy_spec import StrategySpec
from hostlib.system import plugins
from hostlib.train.options import TrainOptions

STAR = """
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import {imported}


def schedule(world_size):
    n, first = world_size, "worker0"
    others = [f"worker{{rank}}" for rank in range(1, n)]
    nodes = {{node: {worker} for node in others}}
    nodes[first] = (*(Receive(node, 0, True) for node in others), *(Send(node, 0) for node in others))
    return Schedule("star", n, 1, nodes)


SPEC = MechanismSpec({fields})
"""
WORKER = "(Send(first, 0), Receive(first, 0, False))"
SOON = """
from hostlib.strategies.plan import Plan
from hostlib.strategies.strategy_spec import StrategySpec


def trainer(context, options):
    from hostlib.strategies.builtin.wfbp.wfbp_trainer import WaitFree

    return WaitFree(context)


SPEC = StrategySpec("soon", "as wfbp, by somebody else", lambda trace, context, options: Plan(trace), trainer, mechanism="star")
"""


def star(
    fields: str = '"star", "worker 0 sums", schedule', worker: str = WORKER, imported: str = "Receive, Schedule, Send"
) -> str:
    return STAR.format(fields=fields, worker=worker, imported=imported)


def distribution(folder: Path, files: dict[str, str], points: str) -> None:
    """A package as pip would install it there."""
    information = folder / "elsewhere-2.5.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 2.5\n")
    (information / "entry_points.txt").write_text(points)
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> object:
    """Registries are made anew in the test, and after it."""
    caches = (mechanisms.registry, mechanisms.find, strategies.registry, strategies.find_strategy)

    def clear() -> None:
        for each in caches:
            each.cache_clear()

    clear()
    yield clear
    monkeypatch.undo()
    clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: object) -> Path:
    """A second folder of built-in mechanisms."""
    monkeypatch.setattr(mechanisms.builtin, "__path__", [*mechanisms.builtin.__path__, str(tmp_path)])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("hostlib.mechanisms.builtin.stray")]:
        del sys.modules[name]


BROKEN = {
    "misspelt field": (
        star('"stray", sumary="worker 0 sums", schedule=schedule'),
        "cannot be imported: TypeError: MechanismSpec.__init__() got an unexpected keyword argument 'sumary'",
    ),
    "no spec": ("NAME = 'stray'\n", "must have SPEC, a MechanismSpec, and has nothing of that name"),
    "wrong spec": ("SPEC = 'stray'\n", "must have SPEC, a MechanismSpec, and has a str"),
    "syntax": ("def schedule(:\n", "cannot be imported: SyntaxError: invalid syntax"),
    "missing import": ("import nowhere\n", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
    "exit": ("raise SystemExit(3)\n", "cannot be imported: SystemExit: 3"),
    "type of a field": (star('"stray", "sums", schedule, one_host="no"'), "one_host must be bool, not 'no'"),
    "name": (star('"stray one", "sums", schedule'), "name must be text without spaces, commas, colons and slashes"),
    "taken name": (star('"ring", "sums", schedule'), "the name ring is taken by hostlib/mechanisms/builtin/ring.py"),
    "list of operations": (
        star('"stray", "sums", schedule', "[Send(first, 0), Receive(first, 0, False)]"),
        "star: the operations of worker1 must be a tuple, not a list",
    ),
    "peers": (
        star('"stray", "sums", schedule', "(Aggregate([first], 0),)", "Aggregate, Receive, Schedule, Send"),
        "star: operation 1 of worker1, Aggregate(peers=['worker0'], piece=0), must have a tuple of peers, not a list",
    ),
    "operation": (
        star('"stray", "sums", schedule', "(('send', first, 0),)"),
        "star: operation 1 of worker1, ('send', 'worker0', 0), must be one of Send, Receive, Aggregate, Multicast, Compute",
    ),
    "piece": (star('"stray", "sums", schedule', "(Send(first, 1),)"), "must name a piece of 0..0"),
    "peer": (star('"stray", "sums", schedule', "(Send('switch', 0),)"), "names 'switch', which is not a node of the schedule"),
    "crash": (star('"stray", "sums", schedule', "1 / 0"), "stray: schedule() fails: ZeroDivisionError: division by zero"),
    "fabric's use": (
        star('"stray", "sums", schedule, FabricUse.SUM', imported="FabricUse, Receive, Schedule, Send"),
        "declares the fabric's use SUM, but its schedule has no switch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_a_line_that_names_it_and_no_matter_of_the_others(case: str, folder: Path) -> None:
    text, line = BROKEN[case]
    (folder / "stray.py").write_text(text)
    assert registered().keys() >= {"gloo", "inagg+mcast", "ring"}
    (broken,) = mechanisms.broken_mechanisms()
    assert broken.line.startswith("hostlib/mechanisms/builtin/stray.py: ") and line in broken.line
    assert "\n" not in broken.line
    check(find("ring").schedule(3))
    readers = (find, choose, lambda name: TrainOptions(mechanism=name), lambda name: choose(f"bsp/{name}"))
    for reader in readers:
        with pytest.raises(SpecError) as raised:
            reader("stray")
        assert str(raised.value) == broken.line


@pytest.mark.parametrize("name", ["notes.txt", "ring.py~", "old.ring.py", "data"])
def test_what_is_no_module_is_named(name: str, folder: Path) -> None:
    if name == "data":
        (folder / name).mkdir()
        (folder / name / "numbers.csv").write_text("1\n")
    else:
        (folder / name).write_text("SPEC = None\n")
    (broken,) = mechanisms.broken_mechanisms()
    assert broken.line == f"hostlib/mechanisms/builtin/{name}: is no Python module, and does not belong here"
    assert find("ring").name == "ring"


def test_what_is_hidden_or_left_behind_is_passed_over(folder: Path) -> None:
    (folder / ".stray.py.swp").write_text("")
    (folder / "_shared.py").write_text("")
    (folder / "gone" / "__pycache__").mkdir(parents=True)
    assert mechanisms.broken_mechanisms() == ()


@pytest.mark.parametrize("use", FabricUse)
def test_a_declared_use_of_the_switch_is_held_to_the_operations(use: FabricUse) -> None:
    for name in ("inagg", "inagg+mcast", "inagg+mcast:via_server", "mcast", "ring+mcast"):
        schedule = find(name).schedule(3)
        assert schedule.fabric_use is find(name).fabric_use is not None
        other = Schedule("other", 3, schedule.pieces, schedule.nodes, fabric_use=use)
        if use is schedule.fabric_use:
            require_fit(other)
        else:
            with pytest.raises(
                ScheduleError, match=f"^other: declares the fabric's use {use.name} .* but its operations"
            ):
                require_fit(other)


def test_operations_that_nobody_declared_are_only_simulated(fresh: object) -> None:
    undeclared = mechanisms.Mechanism("mine", MechanismSpec("mine", "inagg+mcast", find("inagg+mcast").build))
    assert undeclared.needs_fabric and not undeclared.runs_on_hosts
    with pytest.raises(ScheduleError, match=r"^mine cannot run on hosts: it declares no use of the switch"):
        undeclared.require_hosts()


def test_a_schedule_is_refused_as_it_is_made_or_as_a_list_of_it_is() -> None:
    with pytest.raises(OperationError, match="pieces must be a number of at least 1, not 0"):
        Schedule("test", 1, 0, {"worker0": ()})
    with pytest.raises(OperationError, match=r"operation 2 of worker0, .* must say True or False for reduce"):
        Schedule("test", 1, 1, {"worker0": (Send("worker0", 0), Receive("worker0", 0, 1))})  # type: ignore[arg-type]
    lazy = Schedule("test", 2, 1, Lists({"worker0": lambda: [Aggregate(("worker9",), 0)], "worker1": lambda: ()}))
    assert lazy.nodes["worker1"] == ()
    with pytest.raises(OperationError, match=r"test: operation 1 of worker0, .* names 'worker9'"):
        lazy.nodes["worker0"]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"plan": 3}, "plan must be a function, not 3"),
        ({"exact": "yes"}, "exact must be True or False, not 'yes'"),
        ({"only_timing": 1}, "only_timing must be True or False, not 1"),
        ({"options": dict}, "options must be a dataclass, not <class 'dict'>"),
        ({"stages": 2}, "stages must be a function, not 2"),
        ({"servers": lambda options: 1}, "servers and serve go together"),
        ({"name": ""}, "name must be text"),
        ({"mechanism": None}, "mechanism must be a name, not None"),
    ],
)
def test_a_strategy_is_checked_as_it_is_declared(fields: dict[str, object], error: str) -> None:
    good = {"name": "mine", "summary": "sums", "plan": lambda *_: None, "trainer": lambda *_: None}
    StrategySpec(**good)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=error):
        StrategySpec(**{**good, **fields})  # type: ignore[arg-type]


def test_other_peoples_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: object) -> None:
    files = {"elsewhere_star.py": star(), "elsewhere_soon.py": SOON, "elsewhere_ring.py": star('"ring", "x", schedule')}
    points = (
        "[netfold.mechanisms]\nstar = elsewhere_star:SPEC\nmissing = elsewhere_missing:SPEC\nring = elsewhere_ring\n"
        "[netfold.strategies]\nsoon = elsewhere_soon\n"
    )
    distribution(tmp_path, files, points)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"star", "ring"} <= registered().keys() and "soon" in registered_strategies()
    assert str(choose("soon")) == "soon/star"
    for world_size in range(1, 9):
        check(find("star").schedule(world_size))
    lines = [broken.line for broken in mechanisms.broken_mechanisms()]
    where = "elsewhere 2.5, entry point {0} = {1} of netfold.mechanisms: "
    assert lines == [
        where.format("missing", "elsewhere_missing:SPEC")
        + "cannot be imported: ModuleNotFoundError: No module named 'elsewhere_missing'",
        where.format("ring", "elsewhere_ring") + "the name ring is taken by hostlib/mechanisms/builtin/ring.py",
    ]
    with pytest.raises(SpecError, match=r"^elsewhere 2\.5, entry point missing"):
        find("missing")
    assert find("ring").build is not None and find("ring").summary.startswith("reduce-scatter")


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has somebody else's package."""
    files = {"elsewhere_star.py": star(), "elsewhere_soon.py": SOON}
    points = "[netfold.mechanisms]\nstar = elsewhere_star:SPEC\nodd = elsewhere_odd:SPEC\n[netfold.strategies]\nsoon = elsewhere_soon\n"
    distribution(tmp_path / "site", files, points)
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def command(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=environment, timeout=100)


def test_somebody_elses_mechanism_is_listed_proved_simulated_and_run(elsewhere: dict[str, str]) -> None:
    listed = command(["hostlib", "mechanisms", "--json"], elsewhere)
    shown = json.loads(listed.stdout)
    assert shown["mechanisms"]["star"]["summary"] == "worker 0 sums" and "soon" in shown["strategies"]
    (warning,) = listed.stderr.splitlines()
    assert warning.startswith("warning: elsewhere 2.5, entry point odd = elsewhere_odd:SPEC of netfold.mechanisms: ")
    assert json.loads(command(["hostlib", "schedule", "star", "--json"], elsewhere).stdout)["verified"] is True
    simulated = command(
        ["simulation", "run", "--model", "lenet", "--mechanism", "star", "--workers", "3", "--json"], elsewhere
    )
    assert simulated.returncode == 0, simulated.stderr
    links = json.loads(simulated.stdout)["bytes_per_link"]
    assert links["worker0"]["sent"] == 2 * links["worker1"]["sent"] > 0
    trained = command(
        ["hostlib", "train", "--mechanism", "soon/star", "--workers", "2", "--iterations", "3", "--json"], elsewhere
    )
    assert trained.returncode == 0, trained.stderr
    assert len(set(json.loads(trained.stdout)["weights_sha256"])) == 1
    for words in (["hostlib", "schedule"], ["hostlib", "train", "--mechanism"], ["simulation", "run", "--mechanism"]):
        refused = command([*words, "odd"], elsewhere)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == f"error: {warning.removeprefix('warning: ')}\n"


def test_a_registry_finds_what_is_there() -> None:
    broken = plugins.Broken(("my_file", "mine+more"), "somewhere: is broken")
    registry = plugins.Registry({"ring": find("ring").spec}, (broken,))
    assert registry.find("mechanism", "ring").name == "ring"
    for name in ("my-file", "mine+more"):
        with pytest.raises(SpecError, match="somewhere: is broken"):
            registry.find("mechanism", name)
    with pytest.raises(UnknownNameError, match="unknown mechanism 'rong'; legal are ring"):
        registry.find("mechanism", "rong")
