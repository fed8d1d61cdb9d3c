"""The `hostlib` command: its commands are in hostlib/commands/, a module each."""

from __future__ import annotations

import click

from hostlib import commands
from hostlib.errors import HostlibError
from hostlib.system.command_group import FolderGroup
from hostlib.system.exit_status import end_with

FIRST = (
    "train",
    "mechanisms",
    "schedule",
    "bench",
    "models",
    "profile",
    "converge",
    "poseidon",
    "ralp",
    "cgdp",
    "overlap",
)


@click.group(
    cls=FolderGroup,
    package=commands,
    first=FIRST,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def main() -> None:
    """Train with a collective mechanism, and look at what it does.

    \b
    hostlib train         train a model on several workers of this machine
    hostlib mechanisms    which mechanisms there are
    hostlib schedule      what one of them does, operation by operation
    hostlib bench         how fast mechanisms sum, here or between network namespaces with links of a given rate
    hostlib models        which networks there are, and the layers of any model
    hostlib profile       how long a model's layers compute and when its gradients are ready: a trace for `simulation`
    hostlib converge      train the same by several mechanisms and compare how fast it learns
    hostlib poseidon      which layers of a model go by parameter servers, which by sufficient factors
    hostlib ralp          whether a model's last layers had better live at a server, and from which on
    hostlib cgdp          chunks of layers that are accumulated on the host together: which, and what they cost
    hostlib overlap       how much of the communication strategies hide behind the backward pass, side by side
    hostlib doctor        whether this host, a fabric and its jobs are as they should be

    On several machines, or under your own launcher: torchrun ... -m hostlib.train --mechanism inagg+mcast
    """


def run() -> None:
    """Entry point of `hostlib`."""
    end_with(lambda: main(standalone_mode=False), HostlibError, at_once=True)
