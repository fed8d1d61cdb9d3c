"""The event log: what happened to jobs, ranks and switches, with the time."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from controller.events.json_lines import JsonLines

Kind = Literal[
    "controller-started",
    "controller-stopped",
    "job-queued",
    "job-waiting",
    "job-ready",
    "job-ended",
    "join-refused",
    "rank-lost",
    "rank-back",
    "port-wrong",
    "port-right",
    "switch-down",
    "switch-up",
    "cable-wrong",
    "cable-right",
    "drain",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_EVENTS, MOST_ENDED = 2000, 500
FLOOD_EVENTS, FLOOD_S = 20, 10.0  # more refusals than this, from whomever, are only counted


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        id: counts events, also across restarts of the controller.
        time_s: since 1970.
        text: a sentence for people.
    """

    id: int
    time_s: float
    kind: Kind
    text: str
    job: str | None = None
    rank: int | None = None
    switch: str | None = None


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that is over. Times are seconds since 1970; `ready_s` is None if it was never complete."""

    name: str
    policy: str
    world_size: int
    slots: int
    began_s: float
    ready_s: float | None
    ended_s: float
    why: str
    positions: dict[str, int]


class EventLog:
    """Events and ended jobs: the last ones in memory, more in files. Threads may share it.

    Args:
        folder: of events.jsonl and history.jsonl, which are read first; None keeps nothing.
        now: seconds since 1970.
        may_write: whether the files are still this process's.
        clock: monotonic seconds, for limits that must not depend on how the clock is set.

    Attributes:
        closed: set when the controller ends, and readers that wait for events should go.
    """

    def __init__(
        self,
        folder: Path | None,
        now: Callable[[], float],
        may_write: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now = now
        self._may_write = may_write
        self._clock = clock
        self.closed = threading.Event()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._events_file = JsonLines(folder / "events.jsonl" if folder else None)
        self._history_file = JsonLines(folder / "history.jsonl" if folder else None)
        self._events = deque(_revived(Event, self._events_file.read()), MOST_EVENTS)
        self._ended = deque(_revived(EndedJob, self._history_file.read()), MOST_ENDED)
        self._last_id = self._events[-1].id if self._events else 0
        self._refused: deque[float] = deque(maxlen=FLOOD_EVENTS)
        self._unlisted = 0

    @property
    def last_id(self) -> int:
        return self._last_id

    @property
    def failed(self) -> str | None:
        """Why the files cannot be written; None if they can."""
        return self._events_file.failed or self._history_file.failed

    def append(
        self, kind: Kind, text: str, job: str | None = None, rank: int | None = None, switch: str | None = None
    ) -> None:
        with self._lock:
            self._append(kind, text, job, rank, switch)

    def _append(self, kind: Kind, text: str, job: str | None, rank: int | None, switch: str | None) -> None:
        self._last_id += 1
        self.counts[kind] += 1
        event = Event(self._last_id, round(self.now(), 3), kind, text, job, rank, switch)
        self._events.append(event)
        if self._may_write():
            self._events_file.append({key: value for key, value in asdict(event).items() if value is not None})

    def refused(self, text: str, job: str | None, rank: int | None) -> None:
        """Record a refused join, unless there are too many of them."""
        with self._lock:
            now = self._clock()
            if len(self._refused) == FLOOD_EVENTS and now - self._refused[0] < FLOOD_S:
                self._unlisted += 1
                self.counts["join-refused"] += 1
                return
            self._refused.append(now)
            more, self._unlisted = self._unlisted, 0
            self._append(
                "join-refused", text + (f" (and {more} refusals that are not listed)" if more else ""), job, rank, None
            )

    def ended(self, job: EndedJob) -> None:
        with self._lock:
            self._ended.append(job)
            if self._may_write():
                self._history_file.append(asdict(job))

    def after(self, number: int, most: int) -> list[Event]:
        """The first events after one, oldest first."""
        with self._lock:
            return list(islice((event for event in self._events if event.id > number), most))

    def last(self, most: int) -> list[Event]:
        """The last events, oldest first."""
        with self._lock:
            return list(self._events)[-most:]

    def history(self, most: int) -> list[EndedJob]:
        """Jobs that have ended, the last one first."""
        with self._lock:
            return list(islice(reversed(self._ended), most))


def _revived(cls: type[Any], records: list[dict[str, Any]]) -> list[Any]:
    """Records of a file, without those that another version wrote."""
    found = []
    for record in records:
        try:
            found.append(cls(**record))
        except TypeError:
            continue
    return found
