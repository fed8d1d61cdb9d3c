"""What the mechanism's collectives of a process group need to know and use."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import torch.distributed as dist

from hostlib.collectives.bootstrap import STORE_GRACE_S, gloo_maker, nccl_maker, part_maker
from hostlib.errors import HostlibError, RunError
from hostlib.fabric.admission import admitted_alike
from hostlib.fabric.slot_choice import choose_slots
from hostlib.pytorch.group_settings import GroupSettings
from hostlib.transport.failure_detector import FailureDetector
from hostlib.transport.gloo_transport import GlooConnector, GlooTransport
from hostlib.transport.rank_context import RankContext


def meet(
    settings: GroupSettings,
    host: str,
    port: int,
    name: str,
    rank: int,
    world_size: int,
    detector: FailureDetector,
    detectors: ExitStack,
) -> RankContext:
    """Meet the group's other ranks; all of them make this call.

    Args:
        host, port: of the torch store.
        name: unique among all that meet at the store.
        detectors: see part_maker.

    Raises:
        RuntimeError: a rank is missing.
    """
    # Its own connection: a wait for another rank's key would block everybody else's.
    # To reach the store takes no other rank, so a machine that pauses is no reason to name one.
    patience = timedelta(seconds=settings.deadline_s + STORE_GRACE_S)
    tcp = dist.TCPStore(host, port, is_master=False, timeout=patience, wait_for_workers=False)
    tcp.set_timeout(timedelta(seconds=settings.deadline_s))
    store = dist.PrefixStore(name, tcp)
    another_gloo = gloo_maker(store, rank, world_size, settings.deadline_s)
    # Threads send in their own order, so each has a Gloo group of its own.
    gloo = another_gloo()
    context = RankContext(
        rank,
        world_size,
        gloo,
        detector,
        settings.deadline_s,
        another_gloo,
        nccl_maker(store, rank, world_size, settings.deadline_s),
        GlooTransport(gloo),
        another_transport=lambda: GlooTransport(another_gloo()),
        slots=choose_slots(gloo, rank, settings.mechanism, settings.controller, settings.lanes, settings.slots),
        patience_s=settings.patience_s,
        admitted=admitted_alike(gloo, world_size),
        in_script=True,
    )
    return replace(context, among=part_maker(context, host, port, name, store, GlooConnector(), detectors))


def nobody_missing(waited_s: float, what: str) -> HostlibError:
    """Why the ranks did not meet, though all are alive; `what`: they were to begin."""
    return RunError(
        f"not every rank began its {what}: the others waited {waited_s:.0f} s (does every rank reduce the same tensors?)"
    )
