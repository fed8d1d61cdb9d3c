"""A command group whose subcommands are the modules of a folder, imported on demand.

A module has:

- COMMANDS: its commands; a module without it only holds helpers.
- PLACE: a number that orders commands in the help; modules without it come last, alphabetically.
"""

from __future__ import annotations

import difflib
import importlib
import math
import pkgutil
from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

import click

from hostlib.system.command import write_help_text

WHOLE = 1000  # characters: more than any sentence has


class Group(click.Group):
    """A group whose help shows each command's whole first sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, each.get_short_help_str(WHOLE)) for name, each in found if each is not None and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_help_text(self, formatter)


class FolderGroup(Group):
    """A group of the commands of a package's modules.

    A command is first looked up in the module of its own name, so that only that module is imported.

    Args:
        package: the package of commands.
        also: packages with further commands. If two commands share a name, the first one counts.
    """

    def __init__(self, *args: Any, package: ModuleType, also: Sequence[ModuleType] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self._package, self._also = package, also

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._all, *super().list_commands(ctx)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            alike = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not alike:
                raise
            raise click.UsageError(f"No such command '{args[0]}' (did you mean '{alike[0]}'?)", ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._modules:
            found = self._commands_of(cmd_name)
            if cmd_name in found:
                return found[cmd_name]
        return self._all.get(cmd_name) or super().get_command(ctx, cmd_name)

    @cached_property
    def _modules(self) -> dict[str, str]:
        """Module name -> its fully qualified name."""
        return {
            module.name: f"{package.__name__}.{module.name}"
            for package in (*reversed(self._also), self._package)
            for module in pkgutil.iter_modules(package.__path__)
        }

    @cached_property
    def _all(self) -> dict[str, click.Command]:
        """All commands in order; those of one module in its own order."""
        modules = sorted(self._modules, key=lambda name: (getattr(self._loaded(name), "PLACE", math.inf), name))
        return {name: command for module in modules for name, command in self._commands_of(module).items()}

    def _commands_of(self, module: str) -> dict[str, click.Command]:
        return {command.name or module: command for command in getattr(self._loaded(module), "COMMANDS", ())}

    def _loaded(self, module: str) -> ModuleType:
        return importlib.import_module(self._modules[module])


def program(
    package: ModuleType, cls: type[FolderGroup] = FolderGroup, **options: Any
) -> Callable[[Callable[[], None]], click.Group]:
    """Decorate a function, whose docstring is the help's first page, as a program with the commands of a package.

    Args:
        options: of the group.
    """

    def decorate(page: Callable[[], None]) -> click.Group:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        group = click.group(cls=cls, package=package, context_settings=settings, **options)
        return group(click.version_option(package_name="netfold")(page))

    return decorate
