"""`python -m hostlib.train`: one rank of a training run, started by torchrun, mpirun or `hostlib train`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hostlib.launch.rank_main import Tell, run_part, run_to_its_end
from hostlib.train.command_line import rank_command
from hostlib.train.options import TrainOptions
from hostlib.transport.transport_registry import find_transport

if TYPE_CHECKING:
    from hostlib.transport.launch_environment import LaunchEnvironment


def main() -> None:
    """Run this rank; under `hostlib train` events are JSON lines, else text."""
    if "NETFOLD_RANK_OPTIONS" in os.environ:
        run_part("hostlib train", _train)
    run_to_its_end(lambda: rank_command(standalone_mode=False))


def _train(options: str, here: LaunchEnvironment, tell: Tell) -> dict[str, Any]:
    from hostlib.train.loop import train  # Loads torch, so import it only after the command line was accepted.

    chosen = TrainOptions.from_json(options)
    with find_transport(chosen.transport).environment() as here:
        return train(chosen, here, tell)


if __name__ == "__main__":
    main()
