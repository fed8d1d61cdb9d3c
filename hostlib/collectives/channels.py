"""This host's executors of a mechanism, and its endpoint for the switch's multicast."""

from __future__ import annotations

from hostlib.collectives.mechanism_executor import MechanismExecutor
from hostlib.collectives.message_requests import MessageRequests
from hostlib.collectives.schedule_executor import SwitchSum
from hostlib.fabric.multicast import Streams, SwitchMulticast
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.schedules.schedule import FabricUse
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import MulticastTransport


def channels(
    mechanism: Mechanism,
    context: RankContext,
    fabric: SwitchSum | None = None,
    multicast: MulticastTransport | None = None,
) -> list[MechanismExecutor]:
    """This host's executors of a mechanism, which share the all-reduces; a fabric has one order, hence one executor."""
    count = channel_count(mechanism, context)
    size, host = context.world_size, context.rank
    requests = MessageRequests() if host >= size else None
    return [
        MechanismExecutor(
            mechanism,
            size,
            host,
            context.transport,
            fabric,
            channel,
            count,
            multicast,
            requests,
            context.segment_bytes,
        )
        for channel in range(count)
    ]


def channel_count(mechanism: Mechanism, context: RankContext) -> int:
    """How many all-reduces each host of a mechanism executes at a time."""
    return max(1, min(mechanism.channels, context.transport.channels))


def join_multicast(
    mechanism: Mechanism, context: RankContext, controller: str, job: str, address: str
) -> SwitchMulticast | None:
    """Join the switch's multicast of what a mechanism's hosts have summed; None if the mechanism has none.

    Raises:
        JoinError: see hostlib.fabric.job_client.
    """
    schedule = None if mechanism.build is None else mechanism.schedule(context.world_size)
    if schedule is None or schedule.fabric_use is not FabricUse.MULTICAST:
        return None
    if schedule.servers:
        streams = Streams.of_server(context.world_size, channel_count(mechanism, context), context.slots)
    else:
        streams = Streams.of_workers(context.world_size, context.slots)
    return SwitchMulticast(context, controller, job, address, streams)
