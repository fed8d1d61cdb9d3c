"""A command whose subcommands are the modules of a folder, loaded when they are asked for."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cached_property
from types import ModuleType
from typing import Any

import click


class FolderGroup(click.Group):
    """Each module of a package has its commands as COMMANDS; one without helps the others.

    A command is looked for in the module of its name first, so that one alone is loaded.

    Args:
        package: of the commands.
        first: names of commands in the order in which people meet them; others follow by the alphabet.
    """

    def __init__(self, *args: Any, package: ModuleType, first: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self._package, self._first = package, first

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [*self._all, *super().list_commands(ctx)]
        return sorted(names, key=lambda name: (self._first.index(name) if name in self._first else len(names), name))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._modules:
            found = self._commands_of(cmd_name)
            if cmd_name in found:
                return found[cmd_name]
        return self._all.get(cmd_name) or super().get_command(ctx, cmd_name)

    @cached_property
    def _modules(self) -> tuple[str, ...]:
        return tuple(module.name for module in pkgutil.iter_modules(self._package.__path__))

    @cached_property
    def _all(self) -> dict[str, click.Command]:
        return {name: command for module in self._modules for name, command in self._commands_of(module).items()}

    def _commands_of(self, module: str) -> dict[str, click.Command]:
        loaded = importlib.import_module(f"{self._package.__name__}.{module}")
        return {command.name or module: command for command in getattr(loaded, "COMMANDS", ())}
