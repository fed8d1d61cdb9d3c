"""Create a rank's collective for a mechanism."""

from __future__ import annotations

from hostlib.collectives.collective import Collective
from hostlib.collectives.host_levels import HostLevelsCollective
from hostlib.collectives.host_memory import find_hosts
from hostlib.collectives.scheduled_collective import DEFAULT_FALLBACK, ScheduledCollective
from hostlib.collectives.shared_memory import SharedMemoryCollective
from hostlib.collectives.vendor import LibraryCollective, library_collective
from hostlib.errors import RunError
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.transport.rank_context import RankContext

MechanismCollective = ScheduledCollective | HostLevelsCollective | LibraryCollective


def create_collective(
    mechanism: Mechanism,
    context: RankContext,
    controller: str,
    job: str,
    address: str = "127.0.0.1",
    fallback: str = DEFAULT_FALLBACK,
    lanes: int = 1,
) -> MechanismCollective:
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
    if mechanism.same_host:
        hosts = find_hosts(context)
        if len(hosts.ranks) == 1:
            return SharedMemoryCollective(context, job)
        if len(hosts.ranks) < context.world_size:

            def between(context: RankContext, job: str) -> Collective:
                return ScheduledCollective(mechanism, context, controller, job, address, fallback, lanes)

            return HostLevelsCollective(mechanism, context, hosts, job, between)
    return ScheduledCollective(mechanism, context, controller, job, address, fallback, lanes)
