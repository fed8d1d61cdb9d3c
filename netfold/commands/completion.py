"""`netfold completion`: words that a shell completes."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from hostlib.system.command import Command

SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes the commands and options of netfold in a shell.

    \b
    Examples
        netfold completion bash >> ~/.bashrc
        netfold completion zsh >> ~/.zshrc
        netfold completion fish > ~/.config/fish/completions/netfold.fish
    """
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None, f"click has no completion for {shell}"
    click.echo(kind(root, {}, "netfold", "_NETFOLD_COMPLETE").source())


PLACE = 120
COMMANDS = (completion,)
