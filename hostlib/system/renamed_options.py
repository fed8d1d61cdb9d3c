"""Renamed options: the old spelling still works for one version and prints a hint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


class CommandWithRenamedOptions(click.Command):
    """A command that accepts old spellings of its options, with a hint on standard error for each.

    Args:
        renamed: old spelling -> current spelling.
    """

    def __init__(self, *args: Any, renamed: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.renamed = dict(renamed)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._as_today(args))

    def _as_today(self, args: list[str]) -> list[str]:
        """Replace old spellings, up to `--`. A value spelt like an old option would be replaced, too; there is none."""
        end = args.index("--") if "--" in args else len(args)
        return [*(self._word_as_today(word) for word in args[:end]), *args[end:]]

    def _word_as_today(self, word: str) -> str:
        spelling, equals, value = word.partition("=")
        if spelling not in self.renamed:
            return word
        today = self.renamed[spelling]
        click.echo(f"hint: {spelling} is called {today} now; the next version drops the old spelling", err=True)
        return f"{today}{equals}{value}"
