"""The command `netfold`: its first page, and what is behind its names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import controller.cli
import emulation.cli
import hostlib.cli
import simulation.cli
from controller.commands import start
from emulation.experiments.runner import RunOptions
from hostlib.system.process import StartError
from netfold.cli import main
from netfold.first_page import QUESTIONS

ROOMS = {
    "simulate": simulation.cli.main,
    "emulate": emulation.cli.main,
    "controller": controller.cli.main,
}


def commands(group: click.Command | None) -> dict[str, click.Command]:
    assert isinstance(group, click.Group)
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def test_the_page_has_every_command() -> None:
    page = click.Context(main).get_help()
    assert len(commands(main)) > 15
    for name in commands(main):
        assert re.search(rf"^  {name}  +\S", page, re.M), name


def test_the_same_commands_are_behind_both_names() -> None:
    mounted = commands(main)
    for name, command in commands(hostlib.cli.main).items():
        assert mounted[name] is command
    for name, room in ROOMS.items():
        assert commands(mounted[name]) == commands(room)
    assert mounted["switch"] is commands(emulation.cli.main)["switch"]
    assert mounted.keys() == {*commands(hostlib.cli.main), *ROOMS, "ask", "suite", "switch", "completion"}


@pytest.mark.parametrize(("question", "line"), QUESTIONS)
def test_questions_are_whole_and_their_commands_parse(question: str, line: str) -> None:
    assert question[0].isupper() and question.endswith("?")
    page = click.Context(main).get_help()
    assert question in page and f"    {line}\n" in page
    program, *words = shlex.split(line)
    assert program == "netfold"
    command: click.Command = main
    context = main.make_context(program, words)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, context = found, found.make_context(name, words, parent=context)
    assert not context.args


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("simulate --size 1MiB --bogus", "netfold simulate run"),
        ("simulate run --bogus", "netfold simulate run"),
        ("simulate sweep --bogus", "netfold simulate sweep"),
        ("emulate fabric-vs-host --bogus", "netfold emulate run"),
        ("train --bogus", "netfold train"),
        ("controller start --bogus", "netfold controller start"),
        ("switch --bogus", "netfold switch"),
        ("--bogus", "netfold"),
    ],
)
def test_a_usage_error_names_the_command_that_was_typed(words: str, usage: str) -> None:
    done = CliRunner().invoke(main, shlex.split(words), prog_name="netfold")
    assert done.exit_code == 2
    assert f"Usage: {usage} [OPTIONS]" in done.output and "No such option" in done.output


def test_run_is_meant_where_nothing_is_named() -> None:
    words = ["--size", "1MiB", "--mechanism", "ring", "--json"]
    short, long = (CliRunner().invoke(main, ["simulate", *named, *words]) for named in ([], ["run"]))
    assert short.exit_code == long.exit_code == 0
    assert short.stdout.split('"wall_s"')[0] == long.stdout.split('"wall_s"')[0]
    for words in (["simulate"], ["simulate", "--help"], ["emulate", "-h"]):
        assert "Commands:" in CliRunner().invoke(main, words).output


@pytest.mark.parametrize("room", [main, *ROOMS.values(), hostlib.cli.main])
def test_all_say_their_version(room: click.Command) -> None:
    done = CliRunner().invoke(room, ["--version"], prog_name="program")
    assert re.fullmatch(r"program, version \d+\.\d+\.\d+\n", done.output)


@pytest.mark.parametrize("typed", ["controller start", "netfold controller start"])
def test_a_controller_starts_in_the_background_whichever_command_it_was(
    typed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []

    def refuse(command: list[str], *_: Any, **__: Any) -> None:
        started.append(command)
        raise StartError("not here")

    monkeypatch.setattr(start, "start_and_wait_ready", refuse)
    options = ["--elements", "64", "--state-dir", str(tmp_path)]
    program, *words = typed.split()
    monkeypatch.setattr("sys.argv", [f"/somewhere/bin/{program}", *words, *options])
    CliRunner().invoke(main if program == "netfold" else controller.cli.main, [*words, *options])
    assert [command[1:] for command in started] == [["-m", "controller", "start", *options, "--foreground"]]


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("/venv/bin/emulation run loss", "emulation run loss"),
        ("/venv/lib/emulation/__main__.py run loss", "emulation run loss"),
        ("/venv/bin/netfold emulate loss", "netfold emulate loss"),
    ],
)
def test_an_experiment_remembers_the_command_that_was_typed(
    typed: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", typed.split())
    assert RunOptions(Path("out")).command == kept
