"""Failover: how long a rank waits for a dead switch, what it records of each failure, when all ranks are through, and
how it returns to the fabric. Source: docs/failures.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from hostlib.errors import FabricError, HostlibError, JoinError, RunError
from hostlib.fabric.job_client import FabricSession, Place, Rejoin
from hostlib.transport.rank_context import RankContext

LOOK_S = 0.05  # polling interval of a waiting host
PATIENCE_REFUSED_S = 0.3  # silence that is enough if the system reports that no process listens at the switch's address
REJOIN_EVERY_S = 0.5

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of the switch, as runs report it.

    Attributes:
        after: number of completed all-reduces.
        lost_ms: from the last packet of the switch until the hosts continued.
        agreement_ms: share of lost_ms in which the hosts agreed on what each has.
        by_hosts: tensors, or messages, that the hosts have carried since.
        bytes_by_hosts: of these.
        returned: whether the hosts have returned to the switch.
        refused: why they did not, if the switch came back with another configuration; else None.
    """

    after: int
    lost_ms: float
    agreement_ms: float
    by_hosts: int = 0
    bytes_by_hosts: int = 0
    returned: bool = False
    refused: str | None = None

    @classmethod
    def seen(cls, after: int, silent_s: float, began: float) -> Failure:
        """Record a failure after a silence; `began`: when the agreement started, as time.monotonic()."""
        took_s = time.monotonic() - began
        return cls(after, round(1e3 * (silent_s + took_s), 1), round(1e3 * took_s, 1))

    def carried(self, size: int) -> Failure:
        """The same, once the hosts have carried a tensor or message of so many bytes."""
        return replace(self, by_hosts=self.by_hosts + 1, bytes_by_hosts=self.bytes_by_hosts + size)

    def as_json(self) -> dict[str, Any]:
        described = asdict(self)
        return described if self.refused is not None else {key: described[key] for key in described if key != "refused"}


class Patience:
    """How long the switch may be silent.

    Args:
        patience_s: limit if nothing indicates that the switch is gone.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._refused = self._spoiled = 0

    def begin_again(self, stats: Mapping[str, int]) -> None:
        """Start again with another switch: an engine's counters go on from one to the next."""
        self._refused, self._spoiled = stats["refused"], stats["spoiled"]

    def is_spoiled(self, stats: Mapping[str, int]) -> bool:
        """Whether the switch has stored, or added to a sum, what was damaged: it can never be right."""
        return stats["spoiled"] > self._spoiled

    def refused(self, silent_s: float, stats: Mapping[str, int]) -> bool:
        """Whether the switch's address has refused packets ever since the switch was last heard of.

        Args:
            stats: the packet engine's.
        """
        if silent_s < PATIENCE_REFUSED_S:
            self._refused = stats["refused"]
        return stats["refused"] > self._refused

    def is_over(self, silent_s: float, stats: Mapping[str, int]) -> bool:
        refused = self.refused(silent_s, stats)
        return silent_s > (min(PATIENCE_REFUSED_S, self._patience_s) if refused else self._patience_s)


def nobody_missing(context: RankContext, place: Place, away: list[int], call: str, silent_s: float) -> HostlibError:
    """Why nothing comes, though all ranks are alive.

    Args:
        away: the ranks that have not made the call; none if it is the switch that is silent.
        call: what the others wait in, as "all-reduce 7".
    """
    if away:
        names = [str(context.number(rank)) for rank in away]
        which = f"rank {names[0]} is" if len(names) == 1 else f"ranks {', '.join(names)} are"
        return RunError(
            f"{which} alive but did not join {call}: the others waited {silent_s:.0f} s "
            "(does every rank reduce the same tensors?)"
        )
    return FabricError(
        f"no answer from the switch at {place.fabric_address}:{place.fabric_port} for {silent_s:.0f} s; "
        "all ranks are alive"
    )


def failures_seen(context: RankContext, hosts: Iterable[int] | None = None) -> int:
    """The number of switch failures that one of some hosts has found; None: that a worker has found."""
    heartbeats = context.detector.heartbeats()
    signs = [heartbeats[host] for host in (range(context.world_size) if hosts is None else hosts)]
    return max((each.failures for each in signs if each is not None), default=0)


def announce_failure(context: RankContext, count: int) -> None:
    """Announce this host's failure number `count` to the others at once."""
    context.detector.publish(failures=count)
    context.detector.exchange()


def wait_until_all_have(context: RankContext, completed: int, tend: Callable[[], None]) -> None:
    """Wait until every worker has completed as many tensors: this host may hold the only copy of what another one
    lacks.

    Args:
        tend: called periodically.
    """
    give_up = time.monotonic() + context.deadline_s
    while time.monotonic() < give_up:
        context.detector.exchange()
        tend()
        heartbeats = context.detector.heartbeats()[: context.world_size]
        behind = any(each is not None and each.completed < completed for each in heartbeats)
        if not behind or context.detector.silent():
            return
        time.sleep(LOOK_S / 2)


def warn_once(context: RankContext, line: str) -> None:
    """Log a line on one rank of a user's script; commands report failures themselves."""
    if context.in_script and context.rank == 0:
        LOG.warning("netfold: %s", line)


def with_goodput(stats: Mapping[str, int], payload_bits: int) -> dict[str, int]:
    """An engine's counters, and bits per second while tensors were in progress; `payload_bits`: of one packet."""
    bits = payload_bits * stats["chunks"]
    return {**stats, "goodput_bit_s": round(1e9 * bits / stats["busy_ns"]) if stats["busy_ns"] else 0}


class OtherBlocksError(JoinError):
    """The fabric's packet or slot configuration differs from the one that the run began with."""


class Returning:
    """A thread that leaves a dead job and joins a new one as soon as the controller has a fabric again.

    It does not join a fabric with another configuration.

    Attributes:
        session: the place in the new job; None until it is joined, and after it was lost.
    """

    def __init__(self, left: FabricSession, join_again: Callable[[Rejoin], FabricSession]) -> None:
        self.session: FabricSession | None = None
        self._left, self._join = left, join_again
        self._rejoin = Rejoin()
        self._cancelled = self._rejoin.cancelled
        self._lock = threading.Lock()  # held to give up the session, or to hand it over
        self._thread = threading.Thread(target=self._run, name="return", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._left.leave()
        while not self._cancelled.is_set():
            try:
                session = self._join(self._rejoin)
            except OtherBlocksError:
                return
            except JoinError:
                self._cancelled.wait(REJOIN_EVERY_S)
                continue
            if not self._keep(session):
                session.leave()
                return
            while session.alive():
                if self._cancelled.wait(REJOIN_EVERY_S):
                    return
            # The fabric failed again before all ranks had returned to it.
            if not self._keep(None):
                return
            session.leave()

    def _keep(self, session: FabricSession | None) -> bool:
        """Whether it is still this thread that decides about the place."""
        with self._lock:
            if self._cancelled.is_set():
                return False
            self.session = session
            return True

    def adopted(self) -> FabricSession | None:
        """Hand over the session to a new owner, and stop joining; None if it has just been lost."""
        with self._lock:
            self._cancelled.set()
            return self.session

    def close(self) -> None:
        """Stop joining, and give up the place."""
        self.adopted()
        self._thread.join(timeout=5)
        if self.session is not None:
            self.session.leave()
