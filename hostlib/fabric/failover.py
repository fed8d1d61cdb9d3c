"""What a rank does when the switch dies, whatever it had of it: how long it waits, what it keeps of each failure, when all
are through, and how it comes back. Source: docs/failures.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hostlib.errors import JoinError
from hostlib.fabric.job_client import FabricSession
from hostlib.transport.rank_context import RankContext

LOOK_S = 0.05  # how often a host that waits looks around
PATIENCE_S = 2.0  # without anything from the switch that should come: it is taken for dead
PATIENCE_REFUSED_S = 0.3  # the same, when the system says that nobody listens at the switch's address
REJOIN_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of the switch, as runs report it.

    Attributes:
        after: all-reduces that were complete.
        lost_ms: from the last sign of the switch until the hosts went on.
        agreement_ms: of them, how long the hosts took to agree on what each has.
        by_hosts: tensors, or messages, that the hosts have brought since.
        returned: whether the hosts have gone back to the switch.
        refused: why they did not, where the switch that came back was another; None else.
    """

    after: int
    lost_ms: float
    agreement_ms: float
    by_hosts: int = 0
    returned: bool = False
    refused: str | None = None

    @classmethod
    def seen(cls, after: int, silent_s: float, began: float) -> Failure:
        """After so much silence; `began`: to agree, as time.monotonic() has it."""
        took_s = time.monotonic() - began
        return cls(after, round(1e3 * (silent_s + took_s), 1), round(1e3 * took_s, 1))

    def as_json(self) -> dict[str, Any]:
        described = asdict(self)
        return described if self.refused is not None else {key: described[key] for key in described if key != "refused"}


class Patience:
    """How long the switch may be silent.

    Args:
        patience_s: where nothing says that it is gone.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._refused = 0

    def begin_again(self, stats: Mapping[str, int]) -> None:
        """With another switch."""
        self._refused = stats["refused"]

    def refused(self, silent_s: float, stats: Mapping[str, int]) -> bool:
        """Whether nobody has listened at the switch's address since it last was heard of.

        Args:
            stats: the packet engine's.
        """
        if silent_s < PATIENCE_REFUSED_S:
            self._refused = stats["refused"]
        return stats["refused"] > self._refused

    def is_over(self, silent_s: float, stats: Mapping[str, int]) -> bool:
        refused = self.refused(silent_s, stats)
        return silent_s > (PATIENCE_REFUSED_S if refused else self._patience_s)


def failures_seen(context: RankContext) -> int:
    """How many failures of the switch some worker has found."""
    heartbeats = context.detector.heartbeats()[: context.world_size]
    return max((each.failures for each in heartbeats if each is not None), default=0)


def announce_failure(context: RankContext, count: int) -> None:
    """Tell the others at once of this host's `count`-th."""
    context.detector.publish(failures=count)
    context.detector.exchange()


def wait_until_all_have(context: RankContext, completed: int, tend: Callable[[], None]) -> None:
    """Stay until every worker has completed as many: what one lacks, this host may be the only one to have.

    Args:
        tend: called now and then.
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


def with_goodput(stats: Mapping[str, int], payload_bits: int) -> dict[str, int]:
    """An engine's counters, and the bits per second while something was under way; `payload_bits`: of a packet."""
    bits = payload_bits * stats["chunks"]
    return {**stats, "goodput_bit_s": round(1e9 * bits / stats["busy_ns"]) if stats["busy_ns"] else 0}


class OtherBlocksError(JoinError):
    """The fabric's packets or slots are not those that a run began with."""


class Returning:
    """A thread that leaves a dead job, and joins a new one as soon as the controller has a fabric again, unless that would
    be another fabric.

    Attributes:
        session: the place in the new job; None while there is none, or no longer.
    """

    def __init__(self, left: FabricSession, join_again: Callable[[threading.Event], FabricSession]) -> None:
        self.session: FabricSession | None = None
        self._left, self._join = left, join_again
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="return", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._left.leave()
        while not self._cancelled.is_set():
            try:
                session = self._join(self._cancelled)
            except OtherBlocksError:
                return
            except JoinError:
                self._cancelled.wait(REJOIN_EVERY_S)
                continue
            self.session = session
            while session.alive():
                if self._cancelled.wait(REJOIN_EVERY_S):
                    return
            # The fabric was gone again before all ranks had come to use it.
            self.session = None
            session.leave()

    def adopted(self) -> None:
        """The session is another's from now on."""
        self._cancelled.set()

    def close(self) -> None:
        """Give up, and give the place back."""
        self._cancelled.set()
        self._thread.join(timeout=5)
        if self.session is not None:
            self.session.leave()
