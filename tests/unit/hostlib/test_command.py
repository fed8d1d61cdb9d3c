"""Old spellings of options work for one version, and say what they are called now."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from hostlib.cli import main
from hostlib.system.command import Command, fitted

ROOMS = ("controller", "emulation", "hostlib", "simulation")


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from commands(found) if isinstance(found, click.Group) else [found]


def renamed() -> list[Command]:
    every = [each for room in ROOMS for each in commands(importlib.import_module(f"{room}.cli").main)]
    return [each for each in every if isinstance(each, Command) and (each.renamed or each.respelled)]


@pytest.mark.parametrize("command", renamed(), ids=lambda command: command.name)
def test_what_is_renamed_is_there_by_its_new_name_alone(command: Command) -> None:
    spellings = {spelling for parameter in command.params for spelling in parameter.opts}
    spellings |= {spelling for parameter in command.params for spelling in parameter.secondary_opts}
    assert set(command.renamed.values()) <= spellings
    assert not set(command.renamed) & spellings


@pytest.mark.parametrize("as_one_word", [False, True])
def test_an_old_spelling_works_and_is_named(as_one_word: bool) -> None:
    asked = ["bench", "--sizes=16MX"] if as_one_word else ["bench", "--sizes", "16MX"]
    old, new = CliRunner().invoke(main, asked), CliRunner().invoke(main, ["bench", "--size", "16MX"])
    hint = "hint: --sizes is called --size now; the old spelling goes with the next version\n"
    assert old.exit_code == new.exit_code != 0 and "16MX" in new.stderr
    assert old.stderr == hint + new.stderr


def test_what_is_no_option_is_left_as_it_is() -> None:
    @click.command(cls=Command, renamed={"--old": "--new"})
    @click.option("--new", default="")
    @click.argument("rest", nargs=-1)
    def command(new: str, rest: tuple[str, ...]) -> None:
        click.echo(json.dumps([new, rest]))

    done = CliRunner().invoke(command, ["--old", "1", "old", "--", "--old"])
    assert json.loads(done.stdout) == ["1", ["old", "--old"]]


# The command, old words, and those of today; None where the words are no old spelling.
RESPELLED = [
    ("hostlib train", "--bucket-mb 0.05", "--bucket 0.05MiB"),
    ("hostlib overlap", "--bucket-mb=4", "--bucket 4MiB"),
    ("hostlib bench", "--hosts netns:8", "--on netns --workers 8"),
    ("hostlib bench", "--hosts local", "--on loopback"),
    ("hostlib cgdp model", "--sync-us 30", "--sync 30us"),
    ("hostlib cgdp model", "--accumulation 4", "--accumulation 4GB/s"),
    ("hostlib cgdp model", "--accumulation 4GB/s", None),
    ("simulation run", "--slots 64KiB", "--slots 64"),
    ("simulation run", "--slots 100b", "--slots 1"),
    ("simulation run", "--slots 64", None),
    ("simulation run", "--pipelined yes", "--pipelined"),
    ("simulation run", "--pipelined no", "--no-pipelined"),
    ("simulation run", "--pipelined --json", None),
    ("controller start", "--tree 0", "--racks 1"),
    ("controller start", "--tree 2", "--racks 2"),
]


@pytest.mark.parametrize(("path", "old", "today"), RESPELLED)
def test_an_old_value_is_made_todays(
    path: str, old: str, today: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    room, *names = path.split()
    command: click.Command = importlib.import_module(f"{room}.cli").main
    for name in names:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    assert isinstance(command, Command)
    assert command._as_today(old.split()) == (old if today is None else today).split()
    hint = f"hint: {old.replace('=', ' ')} is called {today} now; the old spelling goes with the next version\n"
    assert capsys.readouterr().err == ("" if today is None else hint)


def test_examples_are_continued_where_the_terminal_ends() -> None:
    text = "\b\nExample: of a command that is long\n    hostlib bench --mechanism ring --workers 2\n\nNot an example, however long this line may be."
    assert fitted(text, 30).splitlines() == [
        "\b",
        "Example: of a command that is",
        "long",
        "    hostlib bench \\",
        "        --mechanism ring \\",
        "        --workers 2",
        "",
        "Not an example, however long this line may be.",
    ]
