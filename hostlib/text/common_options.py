"""Options that commands of several rooms share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hostlib.text import option_types as types

FAULTS = {
    "--loss": "Probability that a switch port loses a packet, per direction [default: 0].",
    "--duplicate": "Probability that a packet arrives twice [default: 0].",
    "--reorder": "Probability that a packet is held back for 0.2 to 2 ms [default: 0].",
    "--corrupt": "Probability that one bit of a packet is flipped [default: 0].",
}


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def faults(*flags: str) -> Callable[[Any], Any]:
    """Options for what the embedded switch does to packets on purpose."""
    return together(*(click.option(flag, type=types.PROBABILITY, default=0.0, help=FAULTS[flag]) for flag in flags))


def input_option(help: str = "Shape of one example [default: what the model takes].") -> Callable[[Any], Any]:
    """`--input`."""
    return click.option("--input", "shape", type=types.SHAPE, help=help)
