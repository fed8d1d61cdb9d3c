"""Create a rank's collective for a mechanism."""

from __future__ import annotations

from hostlib.collectives.scheduled_collective import DEFAULT_FALLBACK, ScheduledCollective
from hostlib.collectives.vendor import LibraryCollective, library_collective
from hostlib.errors import RunError
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.transport.rank_context import RankContext


def create_collective(
    mechanism: Mechanism,
    context: RankContext,
    controller: str,
    job: str,
    address: str = "127.0.0.1",
    fallback: str = DEFAULT_FALLBACK,
    lanes: int = 1,
) -> ScheduledCollective | LibraryCollective:
    """Create a mechanism's collective for a group of ranks; joins the controller's job if it needs the switch.

    Raises:
        JoinError: see hostlib.fabric.job_client.
        UnknownNameError: there is no such fallback.
        HostlibError: the mechanism is a library's, and the library is missing.
        RunError: the mechanism needs servers, and the group has none.
    """
    if mechanism.servers > context.servers:
        raise RunError(
            f"{mechanism.name} needs servers beside the ranks, as `hostlib train` and python -m hostlib.train have them"
        )
    if mechanism.build is None:
        return library_collective(mechanism, context, job)
    return ScheduledCollective(mechanism, context, controller, job, address, fallback, lanes)
