"""Identity of a process within a run, as given by whoever started it. Torch-free."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hostlib.errors import RunError
from hostlib.transport.transport import Connector


@dataclass(frozen=True, slots=True)
class LaunchEnvironment:
    """What torchrun, the launcher or mpirun tells a process.

    Attributes:
        world_size: number of processes, including servers, which are the last ones.
        host, port: of the torch store.
        connector: makes messages between the processes; None for Gloo.
    """

    rank: int
    world_size: int
    host: str
    port: int
    connector: Connector | None = None

    @classmethod
    def from_environment(cls) -> LaunchEnvironment:
        """Read torchrun's variables. Raises RunError if the process was started by hand."""
        try:
            here = cls(
                int(os.environ["RANK"]),
                int(os.environ["WORLD_SIZE"]),
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
            )
        except KeyError as absent:
            raise RunError(f"{absent.args[0]} is not set: run this under torchrun, or use `hostlib train`") from absent
        except ValueError as error:
            raise RunError(f"RANK, WORLD_SIZE and MASTER_PORT must be numbers: {error}") from error
        if not 0 <= here.rank < here.world_size:
            raise RunError(
                f"rank {here.rank} is not in 0..{here.world_size - 1}, the ranks of world size {here.world_size}"
            )
        return here
