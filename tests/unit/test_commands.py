"""One vocabulary over all commands: one name, one kind of value, one `--json`; help that fits the terminal."""

from __future__ import annotations

import importlib
import os
from collections import defaultdict

import click
import pytest

from hostlib.text import option_types as types
from hostlib.text.option_types import words_of
from tests.commands_page import PROGRAMS, Found, commands, flag_of, meaning_of, value_of

# Flags that take different values in different commands, and why.
DIFFERENT = {
    "--output": "a file for one result, a folder for many",
    "--on": "of the two ways to have hosts that `bench` has, `emulate run` has one more: Mininet",
}
SILENT = {"netfold completion": "prints a script for a shell", "netfold mpi-shim": "prints a path for LD_PRELOAD"}
NARROW, USUAL = 60, 80
ALL = commands()


def kinds() -> dict[str, set[str]]:
    found = defaultdict(set)
    for command in ALL:
        for option in command.options:
            for flag in (*option.opts, *option.secondary_opts):
                found[flag].add(value_of(option).removesuffix(",..."))
    return found


def test_a_flag_takes_one_kind_of_value_everywhere() -> None:
    several = {flag: values for flag, values in kinds().items() if len(values) > 1}
    assert set(several) == set(DIFFERENT), several


def test_every_kind_of_value_takes_its_examples() -> None:
    for command in ALL:
        for option in command.options:
            words = words_of(option.type)
            for example in words.examples if words is not None and not option.is_flag else ():
                if not option.type.name.startswith(("file", "folder", "directory", "path")):
                    assert option.type.convert(example, None, None) is not None, f"{flag_of(option)} {example}"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (types.SIZE, "1MiB", 1 << 20),
        (types.SIZE, "64k", 1 << 16),
        (types.SIZE, "25MB", 25_000_000),
        (types.RATE, "100G", 100e9),
        (types.RATE, "25Gbit/s", 25e9),
        (types.RATE, "25gbps", 25e9),
        (types.THROUGHPUT, "4GB/s", 4e9),
        (types.THROUGHPUT, "500MBps", 5e8),
        (types.TIME, "200ms", 0.2),
        (types.TIME, "5", 5.0),
        (types.SHAPE, "3x224x224", (3, 224, 224)),
        (types.SHAPE, "224", (224,)),
    ],
)
def test_a_value_is_understood_as_people_write_it(kind: types.Value, text: str, value: object) -> None:
    assert kind.convert(text, None, None) == value
    assert kind.typed().convert(text, None, None) == text


def test_one_thing_has_one_name() -> None:
    flags = defaultdict(set)
    for command in ALL:
        for option in command.options:
            flags[meaning_of(option)[0]].add(flag_of(option))
    assert {meaning: names for meaning, names in flags.items() if len(names) > 1} == {}


def test_no_flag_is_anothers_plural_or_abbreviation() -> None:
    flags = set(kinds())
    assert {flag for flag in flags if f"{flag}s" in flags} == {"--gpu", "--port"}  # one, and so many
    assert [flag for flag in flags if len(flag) == 2] == []


@pytest.mark.parametrize("command", ALL, ids=lambda command: command.name)
def test_every_option_says_what_it_is(command: Found) -> None:
    for option in command.options:
        meaning, _ = meaning_of(option)
        assert meaning[:1].isupper() and meaning.endswith("."), f"{flag_of(option)}: {meaning!r}"
        value_of(option)  # asserts that its type is one of ours
    assert command.command.help and command.command.help.strip()[0].isupper()


@pytest.mark.parametrize("command", ALL, ids=lambda command: command.name)
def test_what_prints_something_can_print_json(command: Found) -> None:
    group = isinstance(command.command, click.Group) and not command.command.invoke_without_command
    has = any(flag_of(option) == "--json" for option in command.options)
    assert has or group or command.name in SILENT


def pages(columns: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The help of every command as a terminal of so many columns shows it."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
    found = {}
    for command in ALL:
        context = click.Context(command.command, command.context.parent, info_name=command.context.info_name)
        found[command.name] = context.get_help()
    for program in PROGRAMS:
        root = importlib.import_module(f"{program}.cli").main
        found[program] = root.make_context(program, [program], resilient_parsing=True).get_help()
    return found


def test_help_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    long = [
        f"{name}: {line}"
        for name, page in pages(NARROW, monkeypatch).items()
        for line in page.splitlines()
        if len(line) > NARROW and len(line.split()) > 1
    ]
    assert long == []


def test_no_summary_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, page in pages(USUAL, monkeypatch).items():
        _, _, listed = page.partition("\nCommands:\n")
        assert "..." not in listed, name
