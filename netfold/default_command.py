"""Command groups whose `run` command need not be named."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from hostlib.system.command_group import FolderGroup

DEFAULT = "run"


class RunGroup(FolderGroup):
    """Passes its words to its command `run` unless the first word is one of the group's own commands or options."""

    def completed(self, ctx: click.Context, words: list[str]) -> list[str]:
        """Insert the command that is meant into the words."""
        if not words or words[0] in self._own_options(ctx):
            return words
        named = not words[0].startswith("-") and self.get_command(ctx, words[0]) is not None
        return words if named else [DEFAULT, *words]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.completed(ctx, args))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        meant = self.get_command(ctx, DEFAULT)
        if meant is None or not incomplete.startswith("-"):
            return found
        known = {item.value for item in found}
        inner = click.Context(meant, ctx, info_name=DEFAULT)
        return [*found, *(item for item in meant.shell_complete(inner, incomplete) if item.value not in known)]

    def _own_options(self, ctx: click.Context) -> set[str]:
        return {word for option in self.get_params(ctx) for word in option.opts}
