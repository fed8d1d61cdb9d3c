"""Old spellings of options work for one version, and say what they are called now."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from hostlib.cli import main
from hostlib.system.renamed_options import CommandWithRenamedOptions

ROOMS = ("controller", "emulation", "hostlib", "simulation")


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from commands(found) if isinstance(found, click.Group) else [found]


def renamed() -> list[CommandWithRenamedOptions]:
    every = [each for room in ROOMS for each in commands(importlib.import_module(f"{room}.cli").main)]
    return [each for each in every if isinstance(each, CommandWithRenamedOptions)]


@pytest.mark.parametrize("command", renamed(), ids=lambda command: command.name)
def test_what_is_renamed_is_there_by_its_new_name_alone(command: CommandWithRenamedOptions) -> None:
    spellings = {spelling for parameter in command.params for spelling in parameter.opts}
    assert command.renamed
    assert set(command.renamed.values()) <= spellings
    assert not set(command.renamed) & spellings


@pytest.mark.parametrize("as_one_word", [False, True])
def test_an_old_spelling_works_and_is_named(as_one_word: bool) -> None:
    asked = ["bench", "--sizes=16MX"] if as_one_word else ["bench", "--sizes", "16MX"]
    old, new = CliRunner().invoke(main, asked), CliRunner().invoke(main, ["bench", "--size", "16MX"])
    assert str(old.exception) == str(new.exception) and "16MX" in str(new.exception)
    assert old.stderr == "hint: --sizes is called --size now; the next version drops the old spelling\n"
    assert new.stderr == ""


def test_what_is_no_option_is_left_as_it_is() -> None:
    @click.command(cls=CommandWithRenamedOptions, renamed={"--old": "--new"})
    @click.option("--new", default="")
    @click.argument("rest", nargs=-1)
    def command(new: str, rest: tuple[str, ...]) -> None:
        click.echo(json.dumps([new, rest]))

    done = CliRunner().invoke(command, ["--old", "1", "old", "--", "--old"])
    assert json.loads(done.stdout) == ["1", ["old", "--old"]]
