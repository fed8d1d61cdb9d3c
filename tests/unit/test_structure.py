"""The house keeps its shape: imports go one way, generated files fit their source, artifacts fit their lock."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from functools import cache
from pathlib import Path

import click
import pytest

from hostlib.system.command_group import FolderGroup
from tests import generated_pages
from tests.conftest import ROOT

ROOMS = ("controller", "hostlib", "emulation", "simulation", "netfold")

# Which packages of the others a room may import, as docs/structure.md says; a prefix stands for what is in it.
ARROWS: dict[str, tuple[str, ...]] = {
    "controller": ("hostlib.protocol", "hostlib.system", "hostlib.text", "hostlib.topology"),
    "hostlib": (),
    "emulation": ("hostlib", "controller", "simulation"),
    "simulation": (
        "hostlib.errors",
        "hostlib.system.plot_file",
        "hostlib.mechanisms",
        "hostlib.models.layer_info",
        "hostlib.models.users_model",
        "hostlib.models.zoo.catalogue",
        "hostlib.pipelines.partitioner",
        "hostlib.pipelines.pass_order",
        "hostlib.pipelines.pipeline_options",
        "hostlib.models.zoo.variants",
        "hostlib.protocol",
        "hostlib.schedules",
        "hostlib.strategies",
        "hostlib.system",
        "hostlib.text",
        "hostlib.topology",
        "hostlib.traces",
    ),
    "netfold": ("controller", "hostlib", "emulation", "simulation"),
}
# A package of hostlib imports those of the lines above its own, and itself; a module named here has a place of its own.
ORDER = [
    "errors",
    "protocol system text",
    "topology",
    "schedules transport",
    "mechanisms",
    "fabric staging",
    "collectives",
    "launch",
    "pytorch",
    "models",
    "datasets traces",
    "pipelines",
    "strategies",
    "pytorch.backend",
    "mpi_shim train",
    "bench",
    "commands",
    "cli",
    "__main__",
]
MOST_MODULES = 20
STARTERS = {
    "hostlib/bench/local_fabric.py",
    "controller/switches/embedded.py",
}


def name_of(path: Path) -> str:
    """A module's dotted name; a package's is its folder's."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@cache
def graph() -> dict[str, set[str]]:
    """What each module of the rooms imports of them: at the top, within functions, and for types alone."""
    known = {name_of(path): path for room in ROOMS for path in modules(room)}
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        edges = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                edges |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                edges |= whole & known.keys()
                if whole - known.keys():
                    edges.add(node.module)
        found[name] = (edges & known.keys()) - {name}
    return found


def cycles() -> set[tuple[str, ...]]:
    """The modules that import each other, by way of others or not (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found = set()

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        path.append(name)
        for other in graph()[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in path:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component = path[path.index(name) :]
            del path[path.index(name) :]
            if len(component) > 1:
                found.add(tuple(sorted(component)))

    for name in graph():
        if name not in index:
            visit(name)
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    upwards = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in others
        if name.split(".")[0] == room != other.split(".")[0]
        and not any(other == allowed or other.startswith(allowed + ".") for allowed in ARROWS[room])
    ]
    assert modules(room), f"{room}/ holds no module"
    assert upwards == []


def test_packages_of_hostlib_import_those_above_them() -> None:
    level = {package: number for number, line in enumerate(ORDER) for package in line.split()}

    def place(name: str) -> str:
        inner = name.removeprefix("hostlib.")
        return inner if inner in level else inner.split(".")[0]

    packages = {place(name) for name in graph() if name.startswith("hostlib.")}
    assert packages == level.keys(), "every package has its place in ORDER"
    upwards = set()
    for name, others in graph().items():
        for other in others:
            if name.startswith("hostlib.") and other.startswith("hostlib."):
                mine, its = place(name), place(other)
                if mine != its and level[its] >= level[mine]:
                    upwards.add((name, other))
    assert upwards == set()


def test_the_page_has_the_same_order() -> None:
    page = (ROOT / "docs" / "structure.md").read_text()
    block = re.findall(r"^ {4}(\S.*)$", page[: page.index("## I want to")], re.M)
    assert [line.partition("#")[0].replace(",", "").strip() for line in block] == ORDER


def test_no_modules_import_each_other() -> None:
    assert cycles() == set()


@pytest.mark.parametrize("room", ROOMS)
def test_a_modules_name_stands_for_one_module_of_its_room(room: str) -> None:
    count = Counter(path.stem for path in modules(room) if not path.stem.startswith("__"))
    assert [name for name, times in count.items() if times > 1] == []


def test_folders_can_be_taken_in_at_a_glance() -> None:
    count: Counter[str] = Counter()
    for top in (*ROOMS, "p4", "tests"):
        count.update(str(path.parent.relative_to(ROOT)) for path in modules(top) if path.stem != "__init__")
    assert {folder for folder, times in count.items() if times > MOST_MODULES} == set()


def test_no_command_line_goes_up_either() -> None:
    """`python -m controller` and the like, in a list of words."""
    starting = re.compile(rf'"-m",\s*"({"|".join(ROOMS)})[".]')
    found = set()
    for room in ROOMS:
        for path in modules(room):
            for other in starting.findall(path.read_text()):
                if other != room and other not in ARROWS[room]:
                    found.add(str(path.relative_to(ROOT)))
    assert found <= STARTERS


@pytest.mark.parametrize("room", ROOMS)
def test_a_rooms_commands_are_the_modules_of_its_folder(room: str) -> None:
    group = importlib.import_module(f"{room}.cli").main
    assert isinstance(group, FolderGroup) and not group.commands, "a command is a module of commands/"
    page = click.Context(group).get_help()
    if room == "netfold":  # before its commands it has questions, which are data: tests/unit/netfold/test_first_page.py
        page = page[page.index("\nCommands:") :]
    for path in sorted((ROOT / room / "commands").glob("*.py")):
        for command in getattr(importlib.import_module(name_of(path)), "COMMANDS", ()):
            assert re.search(rf"^  {command.name}  +\S", page, re.M), f"{command.name} is not on the first page"
            assert page.count(f"{room} {command.name}") == 0, "the first page is made of the commands alone"


def test_no_module_prints_or_exits_outside_the_commands() -> None:
    found = []
    for path in (p for room in ROOMS for p in modules(room)):
        if path.stem in ("cli", "__main__") or path.parent.name == "commands":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.exit"):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node.func)}")
    assert found == []


@pytest.mark.parametrize("part", generated_pages.PARTS, ids=lambda part: part.source)
def test_what_pages_repeat_is_what_the_code_says(part: generated_pages.Generated) -> None:
    page = part.page.read_text()
    assert part.renewed(page) == page, "python -m tests.generated_pages writes it"


def test_the_page_says_where_things_are() -> None:
    page = (ROOT / "docs/structure.md").read_text()
    named = re.findall(rf"`((?:{'|'.join((*ROOMS, 'p4', 'tests', 'docs'))})/[\w./-]*)`", page)
    assert len(named) > 60 and [path for path in named if not (ROOT / path).exists()] == []
