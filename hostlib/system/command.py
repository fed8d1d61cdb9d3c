"""The class of every command: old spellings of options, examples that fit the terminal, and `--json`."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

Respelling = Callable[[str], Sequence[str] | None]


class Command(click.Command):
    """A command that also takes old spellings of its options, each with a hint on standard error.

    Args:
        renamed: old spelling of an option -> today's; its value stays.
        respelled: old spelling -> the words that option and value are today, made of the old value; None where the
            value is not of the old spelling.
    """

    def __init__(
        self,
        *args: Any,
        renamed: Mapping[str, str] | None = None,
        respelled: Mapping[str, Respelling] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.renamed = dict(renamed or {})
        self.respelled = dict(respelled or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._as_today(args))

    def _as_today(self, args: list[str]) -> list[str]:
        """Replace old spellings up to `--`; what follows that is no option."""
        end = args.index("--") if "--" in args else len(args)
        words, rest = list(args[:end]), args[end:]
        today: list[str] = []
        while words:
            word = words.pop(0)
            spelling, equals, value = word.partition("=")
            if spelling in self.renamed:
                _hint(spelling, self.renamed[spelling])
                today.append(f"{self.renamed[spelling]}{equals}{value}")
            elif spelling in self.respelled and (equals or words):
                value = value if equals else words[0]
                new = self.respelled[spelling](value)
                if new is None:
                    today.append(word)
                    continue
                if not equals:
                    words.pop(0)
                _hint(f"{spelling} {value}", " ".join(new))
                today.extend(new)
            else:
                today.append(word)
        return [*today, *rest]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_help_text(self, formatter)


def _hint(old: str, today: str) -> None:
    click.echo(f"hint: {old} is called {today} now; the old spelling goes with the next version", err=True)


def write_help_text(command: click.Command, formatter: click.HelpFormatter) -> None:
    """Write a command's help as click does, with the lines of its examples continued where the terminal ends."""
    text = inspect.cleandoc(command.help or "")
    if text:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(fitted(text, formatter.width - formatter.current_indent))


def fitted(text: str, width: int) -> str:
    r"""Continue the long lines of paragraphs that begin with \b, as a shell reads them: with a backslash at the end."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        if lines and lines[0] == "\b":
            whole = paragraph.replace(" \\\n", " ").splitlines()
            lines = [part for line in whole for part in (continued if line[:1] == " " else _wrapped)(line, width)]
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def continued(line: str, width: int) -> list[str]:
    """A command line on as many lines of a terminal as it takes; an option begins a line rather than its value."""
    start = len(line) - len(line.lstrip())
    words = line.split()
    groups: list[str] = []
    for word in words:
        if groups and not word.startswith("-") and groups[-1].startswith("--") and " " not in groups[-1]:
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    parts = [" " * start + groups[0]]
    for group in groups[1:]:
        for text in [group] if len(group) + start + 6 <= width else group.split():
            if len(parts[-1]) + 1 + len(text) + 2 <= width:
                parts[-1] += f" {text}"
            else:
                parts[-1] += " \\"
                parts.append(" " * (start + 4) + text)
    return parts


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_on_hyphens=False, break_long_words=False) or [line]


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`, which every command that prints something has."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")(command)
