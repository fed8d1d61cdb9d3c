"""Check that a schedule's operations match its declared use of the switches."""

from __future__ import annotations

from hostlib.errors import ScheduleError
from hostlib.schedules.schedule import FabricUse, Receive, Schedule, Send, is_host, worker


def require_fit(schedule: Schedule) -> None:
    """Check that hosts and switches can do what the schedule declares.

    Raises:
        ScheduleError: the operations match another use of the switches, or none.
    """
    declared = schedule.fabric_use
    if declared is None or (found := recognise(schedule)) is declared:
        return
    instead = "no use of the switch that hosts support" if found is None else f"{found.name}: {found.value}"
    raise ScheduleError(
        f"{schedule.mechanism}: declares the fabric's use {declared.name} ({declared.value}), "
        f"but its operations are {instead}"
    )


def recognise(schedule: Schedule) -> FabricUse | None:
    """Infer the use of the switches from the operations; None for no use, or one that hosts and switches do not
    support.
    """
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
    if not servers and _to_workers(schedule):
        return FabricUse.TO_OWNERS
    return FabricUse.VIA_SERVER if servers else FabricUse.SUM


def _to_workers(schedule: Schedule) -> bool:
    """Whether a switch sends to single workers."""
    by_switches = (operation for node in schedule.nodes if not is_host(node) for operation in schedule.nodes[node])
    return any(isinstance(operation, Send) and is_host(operation.peer) for operation in by_switches)
