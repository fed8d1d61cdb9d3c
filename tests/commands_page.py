"""docs/commands.md: every command, its options, and the tables of flags and units, made of what click knows."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from hostlib.system.command import Command
from hostlib.text.option_types import Words, words_of

PROGRAMS = ("netfold", "hostlib", "simulation", "emulation", "controller")
DEFAULT = re.compile(r"\s*\[default(?:, (?P<where>[^\]:]*))?: (?P<value>[^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Found:
    """A command and what it is called; the shortest name of `netfold`'s first, and then the other programs'."""

    names: tuple[str, ...]
    command: click.Command
    context: click.Context

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def options(self) -> list[click.Option]:
        return [
            each
            for each in self.command.params
            if isinstance(each, click.Option) and not each.hidden and each.name not in ("help", "version")
        ]


def commands() -> list[Found]:
    """All commands and groups of the five programs but the programs themselves, in the order of the help."""
    seen: dict[int, list[tuple[str, click.Command, click.Context]]] = {}

    def walk(group: click.Command, context: click.Context) -> None:
        assert isinstance(group, click.Group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            inner = click.Context(command, context, info_name=name)
            seen.setdefault(id(command), []).append((inner.command_path, command, inner))
            if isinstance(command, click.Group):
                walk(command, inner)

    for program in PROGRAMS:
        root = importlib.import_module(f"{program}.cli").main
        walk(root, root.make_context(program, [program], resilient_parsing=True))
    found = []
    for ways in seen.values():
        own = sorted((way for way in ways if way[0].startswith("netfold ")), key=lambda way: len(way[0].split()))
        others = [way for way in ways if way not in own]
        _, command, context = (own or others)[0]
        found.append(Found(tuple(name for name, _, _ in (*own, *others)), command, context))
    return found


def value_of(option: click.Option) -> str:
    """What an option takes, as the tables call it; empty for a flag."""
    if option.is_flag:
        return ""
    words = words_of(option.type)
    if words is not None:
        return words.metavar
    assert isinstance(option.type, click.Choice), f"{option.opts[0]} has no type of hostlib.text.option_types"
    return "|".join(option.type.choices)


def flag_of(option: click.Option) -> str:
    """Its spellings."""
    return " / ".join((*option.opts, *option.secondary_opts))


def meaning_of(option: click.Option) -> tuple[str, str]:
    """What an option does, and its default, which help texts have in brackets where it is no value."""
    help = " ".join((option.help or "").split())
    found = DEFAULT.search(help)
    if found is not None:
        where = f" ({found['where']})" if found["where"] else ""
        return help.replace(found[0], ""), found["value"] + where
    if option.required:
        return help, "required"
    told = not (option.is_flag or option.multiple) and isinstance(option.default, str | int | float | Path)
    return help, str(option.default) if told and "UNSET" not in str(option.default) else ""


def reference() -> str:
    """Every command with its usage and options."""
    parts = []
    for found in commands():
        if found.name.split()[0] != "netfold":
            continue  # a group that netfold mounts as its own
        depth = "##" if len(found.name.split()) == 2 else "###"
        parts.append(f"{depth} `{found.name}`\n")
        others = [f"`{name}`" for name in found.names[1:]]
        if others:
            parts.append(f"Also {' and '.join(others)}.\n")
        parts.append(_help(found.command))
        if not (isinstance(found.command, click.Group) and not found.command.invoke_without_command):
            usage = " ".join([found.name, *found.command.collect_usage_pieces(found.context)])
            parts.append(f"```text\n{usage}\n```\n")
        if found.options:
            parts.append(_table(("option", "what it does", "default"), map(_row, found.options)))
    return "\n".join(parts)


def flags() -> str:
    """A row for each flag and meaning."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for found in commands():
        for option in found.options:
            row = (flag_of(option), value_of(option), meaning_of(option)[0])
            rows.setdefault(row, []).append(found.name.removeprefix("netfold "))
    return _table(
        ("flag", "what it does", "commands"),
        (
            (f"`{flag}` {_code(value)}".strip(), _cell(meaning), ", ".join(dict.fromkeys(names)))
            for (flag, value, meaning), names in sorted(rows.items())
        ),
    )


def units() -> str:
    """A row for each kind of value."""
    kinds: dict[str, tuple[Words, set[str]]] = {}
    for found in commands():
        for option in found.options:
            words = words_of(option.type)
            if words is not None and not option.is_flag:
                name = words.metavar.removesuffix(",...")
                kinds.setdefault(name, (words, set()))[1].add(option.opts[0])
    return _table(
        ("value", "what it is", "spellings", "for example", "flags"),
        (
            (
                _code(name),
                _cell(words.meaning),
                _cell(words.spellings),
                ", ".join(_code(example) for example in words.examples),
                ", ".join(_code(flag) for flag in sorted(of)),
            )
            for name, (words, of) in sorted(kinds.items())
        ),
    )


def old_spellings() -> str:
    """A row for each option that is called otherwise now."""
    rows: dict[tuple[str, str], list[str]] = {}
    for found in commands():
        if isinstance(found.command, Command):
            for old, new in found.command.renamed.items():
                rows.setdefault((old, new), []).append(found.name.removeprefix("netfold "))
    return _table(
        ("old", "today", "commands"),
        ((_code(old), _code(new), ", ".join(dict.fromkeys(names))) for (old, new), names in sorted(rows.items())),
    )


def _row(option: click.Option) -> tuple[str, ...]:
    """The flag with its value, first of all what it does, so that a phone shows both."""
    meaning, default = meaning_of(option)
    return f"`{flag_of(option)}` {_code(value_of(option))}".strip(), _cell(meaning), _cell(default)


def _help(command: click.Command) -> str:
    """Paragraphs; examples as they are."""
    paragraphs = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            paragraphs.append(f"```text\n{paragraph[2:]}\n```")
        else:
            paragraphs.append(_cell(" ".join(paragraph.split())))
    return "\n\n".join(paragraphs) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"
