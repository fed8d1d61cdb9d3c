"""Options that were called otherwise one version ago: the old spelling works, and says what it is called now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


class CommandWithRenamedOptions(click.Command):
    """A command that takes old spellings of its options, each with a line on standard error.

    Args:
        renamed: old spelling -> today's.
    """

    def __init__(self, *args: Any, renamed: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.renamed = dict(renamed)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._as_today(args))

    def _as_today(self, args: list[str]) -> list[str]:
        """What comes after `--` is no option. A value that is spelt as an old option would be one, too; none is."""
        end = args.index("--") if "--" in args else len(args)
        return [*(self._word_as_today(word) for word in args[:end]), *args[end:]]

    def _word_as_today(self, word: str) -> str:
        spelling, equals, value = word.partition("=")
        if spelling not in self.renamed:
            return word
        today = self.renamed[spelling]
        click.echo(f"hint: {spelling} is called {today} now; the old spelling goes with the next version", err=True)
        return f"{today}{equals}{value}"
