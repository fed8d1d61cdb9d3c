"""`controller run`: a controller in the foreground, with the options of `controller start` in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from controller.commands.start import start
from controller.errors import ControllerError
from controller.systemd import credentials, unit
from hostlib.system.command import Command, json_option
from hostlib.system.user_file import read_text
from hostlib.text import option_types as types

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN = ("foreground", "as_json")  # of start's options, those that are no configuration


@click.command(cls=Command)
@click.option(
    "--config",
    type=types.EXISTING_FILE,
    required=True,
    help="TOML file with the options of `controller start` without their dashes: racks = 2.",
)
@click.option("--systemd-unit", is_flag=True, help="Print a systemd unit that runs this instead.")
@json_option
def run(config: Path, systemd_unit: bool, as_json: bool) -> None:
    """Run a controller in the foreground, until SIGTERM or Ctrl-C, as a service manager does.

    Paths in the file are relative to its folder.

    \b
    Example
        controller run --config controller.toml
    """
    words = options_of(config)
    if (given := credentials()) is not None:
        words.append(f"--certificates={given}")
    try:
        context = start.make_context("run", [*words, "--foreground", *(["--json"] if as_json else [])])
    except click.UsageError as error:
        raise ControllerError(f"{config}: {error.format_message()}") from error
    if systemd_unit:
        click.echo(unit(config, context.params["certificates"]), nl=False)
        return
    with context:
        start.invoke(context)


def options_of(config: Path) -> list[str]:
    """A file's keys and values as words of a command line.

    Raises:
        ControllerError: it cannot be read, or has a key that is no option; the message names the legal ones.
    """
    try:
        table = tomllib.loads(read_text(config))
    except OSError as error:
        raise ControllerError(f"{config} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ControllerError(f"{config} is not TOML: {error}") from error
    legal = {
        key(option): option for option in start.params if isinstance(option, click.Option) and option.name not in OWN
    }
    unknown = [name for name in table if name not in legal]
    if unknown:
        raise ControllerError(f"{config}: unknown key {', '.join(unknown)}; legal: {', '.join(sorted(legal))}")
    return [word for name, value in table.items() for word in _words(config, name, value, legal[name])]


def key(option: click.Option) -> str:
    """What a file calls an option."""
    return max(option.opts, key=len).lstrip("-")


def _words(config: Path, name: str, value: Any, option: click.Option) -> list[str]:
    if option.is_flag:
        if not isinstance(value, bool):
            raise ControllerError(f"{config}: {name} is {value!r}; legal: true, false")
        return [f"--{name}"] if value else []
    values = value if option.multiple and isinstance(value, list) else [value]
    words = []
    for each in values:
        if isinstance(each, bool) or not isinstance(each, str | int | float):
            raise ControllerError(f"{config}: {name} is {each!r}; legal: a number or a text")
        where = config.parent / str(each) if isinstance(option.type, types.Location) else each
        words.append(f"--{name}={where}")
    return words


PLACE = 11
COMMANDS = (run,)
