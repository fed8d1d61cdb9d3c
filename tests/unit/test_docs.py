"""What README and docs tell people to type exists, with those options; links lead somewhere."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from netfold.default_command import RunGroup
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(
    r"(?:^ {4}|`|&& |\$\()((?:controller|hostlib|emulation|netfold|simulation) [a-z][^`|\n&)#]*)", re.M
)


def commands() -> list[tuple[str, str]]:
    # A `\` of prose broken over two lines is still one command.
    return sorted(
        {
            (page.name, " ".join(found.split()))
            for page in PAGES
            if page.name != "commands.md"  # the commands themselves, without what they are of
            for found in COMMAND.findall(page.read_text())
        }
    )


def test_there_are_commands_to_check() -> None:
    assert ("README.md", "controller start") in commands()
    assert len(commands()) >= 8


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_parse(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, *words = shlex.split(re.sub(r"\s\d?>\s.*", "", line))  # without where its output goes
    if own := [word for word in words if re.fullmatch(r"[\w-]+\.json", word)]:  # files from the lines before
        monkeypatch.chdir(tmp_path)
        for file in own:
            Path(file).touch()
    command: click.Command = importlib.import_module(f"{room}.cli").main
    while isinstance(command, click.Group) and not (command.invoke_without_command and words[0].startswith("-")):
        if isinstance(command, RunGroup):
            words = command.completed(click.Context(command), words)
        found = command.get_command(click.Context(command), words.pop(0)) if words else None
        assert found is not None, f"{page}: {line}"
        command = found
    command.make_context(line, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize(
    ("index", "folder"), [("index.md", "."), ("measurements/index.md", "measurements"), ("adr/index.md", "adr")]
)
def test_an_index_has_every_page_of_its_folder(index: str, folder: str) -> None:
    docs = ROOT / "docs"
    linked = {(docs / index).parent / target for target in re.findall(r"\]\(([^)#]+\.md)", (docs / index).read_text())}
    assert sorted(set((docs / folder).glob("*.md")) - linked - {docs / index}) == []


# What users write themselves, and other people's.
NOT_OURS = {
    "jobs.toml", "controller.toml", "standby.toml",
    "my_models.py", "my_training.py", "kill_switch.py", "contribute.py", "rules.py",
    "counters.py", "script.py", "network.toml", "experiment.toml",
    "my-mechanisms/chain.py", "my-mechanisms/pyproject.toml", "simple_switch.cpp", "tna.p4",
}  # fmt: skip
FILE = re.compile(r"(?<![*\w/.-])\w[\w./-]*\.(?:py|cpp|h|p4|toml)\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    """Whole paths, or their ends."""
    rooms = (
        ROOT / room for room in ("hostlib", "controller", "emulation", "simulation", "netfold", "p4", "tests", ".ci")
    )
    files = [f"/{path.relative_to(ROOT)}" for room in rooms for path in room.rglob("*.*")]
    files += [f"/{path.name}" for path in ROOT.iterdir()]
    named = {name for name in FILE.findall(page.read_text()) if "NAME" not in name} - NOT_OURS
    assert [name for name in sorted(named) if not any(file.endswith(f"/{name}") for file in files)] == []


def test_the_two_commands_are_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^ {4}make (\w+)", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


IMPORT = re.compile(r"^\s*from ((?:controller|emulation|hostlib|netfold|simulation)[\w.]*) import ([\w, ]+)", re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_examples_import_exists(page: Path) -> None:
    for module, names in IMPORT.findall(page.read_text()):
        found = importlib.import_module(module)
        assert [name for name in names.split(", ") if not hasattr(found, name.strip())] == [], module


# Numbers that pages repeat of the sources: page, what it says there, the source, and what that says.
REPEATED = [
    (
        "protocol.md",
        r"\(1/(\d) ms, or half of the round trip",
        "round_trip.h",
        r"REORDERING_NS = MILLISECOND_NS / (\d);",
    ),
    (
        "protocol.md",
        r"doubled up to 0\.(\d) s\)",
        "timeouts.h",
        r"LONGEST_STREAM_TIMEOUT_NS = (\d)00 \* MILLISECOND_NS",
    ),
]


@pytest.mark.parametrize(("page", "sentence", "source", "declared"), REPEATED)
def test_pages_repeat_what_the_retransmission_rule_is(page: str, sentence: str, source: str, declared: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    code = (ROOT / "hostlib/native/retransmission" / source).read_text()
    assert re.findall(sentence, text) == re.findall(declared, code) != []
