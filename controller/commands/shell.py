"""`controller shell`: the commands that look and act, one after the other, at a prompt.

Over the API, not p4runtime-shell: that would need a P4Runtime session of its own with each switch, and with a higher
election id it would take the switch from the controller.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from controller import commands
from controller.commands.running_controller import ask, print_json, running_state
from controller.commands.state_dir import state_dir_option
from controller.errors import ControllerError
from hostlib.system.command import Command, json_option
from hostlib.system.command_group import FolderGroup

PROMPT = "controller> "
NOT_HERE = ("run", "shell", "start", "stop")  # of the commands, those that a prompt has no use for
MORE = "get PATH, as in get /v1/jobs; help; exit"


@click.command(cls=Command)
@state_dir_option
@json_option
def shell(state_dir: Path, as_json: bool) -> None:
    """Ask a controller at a prompt, or line by line from a file or pipe, which ends at the first error.

    \b
    Example
        echo "jobs --ended" | controller shell
    """
    state = running_state(state_dir)
    alone = not sys.stdin.isatty()
    if not alone:
        click.echo(f"controller at {state.http}: {_legal()}; Ctrl-D ends")
    for line in _lines(alone):
        if line in ("exit", "quit"):
            return
        try:
            obey(line, state_dir, as_json)
        except (click.ClickException, ControllerError) as error:
            if alone:
                raise
            click.echo(
                f"error: {error.format_message() if isinstance(error, click.ClickException) else error}", err=True
            )
        except (click.exceptions.Exit, SystemExit, KeyboardInterrupt):
            if alone:
                raise


def _lines(alone: bool) -> Iterator[str]:
    """Lines with something in them."""
    if alone:
        yield from filter(None, map(str.strip, sys.stdin))
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() then has a history and can be edited
    while True:
        try:
            line = input(PROMPT).strip()
        except KeyboardInterrupt:
            click.echo()
            continue
        except EOFError:
            click.echo()
            return
        if line:
            yield line


def obey(line: str, state_dir: Path, as_json: bool) -> None:
    """Run a line.

    Raises:
        ControllerError: it is no command, or the controller refused.
        click.ClickException: its options are wrong.
    """
    try:
        name, *words = shlex.split(line)
    except ValueError as error:
        raise ControllerError(f"{line!r} has an open quote ({error})") from None
    if name == "help":
        click.echo(_legal())
    elif name == "get" and len(words) == 1:
        print_json(ask(state_dir, "/" + words[0].strip("/").removeprefix("v1").strip("/")))
    elif name in _words():
        options = ["--state-dir", str(state_dir), *(["--json"] if as_json else [])]
        _words()[name].main([*options, *words], prog_name=name, standalone_mode=False)
    else:
        raise ControllerError(f"{name!r} is no command here; legal: {_legal()}")


@functools.cache
def _words() -> dict[str, click.Command]:
    """The commands of this program that a prompt has."""
    program = FolderGroup("controller", package=commands)
    context = click.Context(program)
    found = {name: program.get_command(context, name) for name in sorted(program.list_commands(context))}
    return {
        name: command
        for name, command in found.items()
        if command is not None and name not in NOT_HERE and any(param.name == "state_dir" for param in command.params)
    }


def _legal() -> str:
    return f"{', '.join(_words())} (--help after each says more); {MORE}"


PLACE = 27
COMMANDS = (shell,)
