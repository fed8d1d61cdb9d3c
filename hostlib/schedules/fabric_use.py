"""Whether a schedule's operations are what it declares to want of the switches."""

from __future__ import annotations

from hostlib.errors import ScheduleError
from hostlib.schedules.schedule import FabricUse, Receive, Schedule, Send, is_host, worker


def require_fit(schedule: Schedule) -> None:
    """That hosts and switches can do together what is declared.

    Raises:
        ScheduleError: it declares one use of the switches, and its operations are another's or none.
    """
    declared = schedule.fabric_use
    if declared is None or (found := recognise(schedule)) is declared:
        return
    instead = "no use of the switch that hosts know" if found is None else f"{found.name}: {found.value}"
    raise ScheduleError(
        f"{schedule.mechanism}: declares the fabric's use {declared.name} ({declared.value}), "
        f"but its operations are {instead}"
    )


def recognise(schedule: Schedule) -> FabricUse | None:
    """What the operations want of the switches; None for nothing, or for what hosts and switches cannot do together."""
    if not schedule.needs_fabric:
        return None
    servers = set(schedule.servers)
    if sources := set(schedule.multicast_sources.values()):
        return FabricUse.MULTICAST if not servers or sources <= servers else None
    operations = [operation for rank in range(schedule.world_size) for operation in schedule.nodes[worker(rank)]]
    to_hosts = {is_host(operation.peer) for operation in operations if isinstance(operation, Send)}
    from_hosts = {is_host(operation.peer) for operation in operations if isinstance(operation, Receive)}
    if to_hosts != {False} or len(from_hosts) != 1:
        return None
    if from_hosts == {True}:
        return FabricUse.TO_SERVER
    return FabricUse.VIA_SERVER if servers else FabricUse.SUM
