"""Run completions one at a time, in the order in which they are submitted, also if one waits for a later one.

A completion runs its future's callbacks, which are the user's. One that waits for a collective that it has just begun
waits for a later completion: its thread then passes the turn on to another thread, and gets it back, before any other
completion, as soon as what it waits for is there. So callbacks run one at a time, and begin in the order of their sums, on
every rank. Whether a callback that waits goes on before or after the next one begins may differ between ranks, where a
script and callbacks begin sums at the same time.

A callback that is attached late has its place right behind the completion of its future, not behind all completions
that wait by then: how many do differs from rank to rank (see `behind_this_job`).

A job that waits for what threads of another name complete (see `expect`) keeps its turn.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

Job = Callable[[], None]
Notify = Callable[[Job], object]  # calls the function that it is given once what is waited for is there

STUCK_S = 1.0  # a callback that uses no processor for so long waits for what this module cannot see
LONG_STUCK_S = 10.0  # or for a callback of other threads, which may wait for this one's
IDLE_S = 1e-3  # the time on a processor that a waiting thread may use meanwhile
SPARES = 2  # threads that are kept for the next turn

_here = threading.local()  # `turn`: this thread's, if it runs completions


class _Turn:
    """A thread's right to run completions; it has it while it is its executor's `_holder`."""

    def __init__(self, executor: CompletionThreads) -> None:
        self.executor = executor
        self.thread: int | None = None
        self.place = 0  # of its job
        self.expected: list[Callable[[], bool]] = []  # whether what its job has begun elsewhere is done
        self.callbacks: list[Callable[[], bool]] = []  # whether the callbacks of that have run

    @property
    def waits_elsewhere(self) -> bool:
        return any(not done() for done in self.expected)

    @property
    def waits_for_callbacks(self) -> bool:
        return any(not done() for done in self.callbacks)

    def forget(self) -> None:
        """Begin with another job."""
        self.expected.clear()
        self.callbacks.clear()


class _Wait:
    """One wait of a thread; over once it has its turn back, or its time has passed."""

    def __init__(self, turn: _Turn) -> None:
        self.turn = turn
        self.over = False


class CompletionThreads:
    """Runs jobs in threads of its own, which start when they are needed. Jobs must not raise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._jobs: list[tuple[int, int, Job]] = []  # a heap: the place, and the order of those at one place
        self._places, self._submitted = itertools.count(), itertools.count()
        self._reserved: dict[int, None] = {}  # ascending
        self._back: deque[_Wait] = deque()  # what they waited for is there: before any job
        self._spares: list[_Turn] = []
        self._threads: list[threading.Thread] = []
        self._holder: _Turn | None = None
        self._begun = 0  # jobs, and waits that are over
        self._watched = self._ended = False

    def reserve(self) -> int:
        """A place for a completion that is submitted later; those behind it are held until it is."""
        with self._changed:
            place = next(self._places)
            self._reserved[place] = None
            return place

    def put(self, job: Job, place: int | None = None) -> None:
        """Submit a job.

        Args:
            place: that is reserved for it, or that of the completion that it runs behind; None for the next one.
        """
        with self._changed:
            place = next(self._places) if place is None else place
            self._reserved.pop(place, None)
            heapq.heappush(self._jobs, (place, next(self._submitted), job))
            if self._holder is None:
                self._pass_on()
            elif not self._watched:
                self._watched = True
                self._start(self._watch)
            self._changed.notify_all()

    def close(self, patience_s: float) -> None:
        """Finish the submitted jobs, then end the threads. One of these threads itself waits for no other."""
        with self._changed:
            if not self._is_mine():
                self._changed.wait_for(lambda: self._holder is None and not self._jobs, patience_s)
            self._ended = True
            self._changed.notify_all()
            threads = [] if self._is_mine() or self._holder is not None else list(self._threads)
        give_up = time.monotonic() + patience_s
        for thread in threads:
            thread.join(timeout=max(0.0, give_up - time.monotonic()))

    @property
    def _job_ready(self) -> bool:
        return bool(self._jobs) and self._jobs[0][0] < next(iter(self._reserved), math.inf)

    def _is_mine(self) -> bool:
        turn = getattr(_here, "turn", None)
        return turn is not None and turn.executor is self

    def _start(self, run: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=run, name=self.name, daemon=True))
        self._threads[-1].start()

    def _pass_on(self) -> None:
        """Choose who has the next turn; with the lock."""
        self._begun += 1
        if self._back:
            wait = self._back.popleft()
            wait.over = True
            self._holder = wait.turn
        elif self._job_ready:
            self._holder = self._spares.pop() if self._spares else _Turn(self)
            if self._holder.thread is None:
                turn = self._holder
                self._start(lambda: self._run(turn))
        else:
            self._holder = None
        self._changed.notify_all()

    def _run(self, turn: _Turn) -> None:
        _here.turn = turn
        turn.thread = threading.get_ident()
        while (job := self._next(turn)) is not None:
            job()
            del job  # Also frees what the job holds while the thread waits for the next one.

    def _next(self, turn: _Turn) -> Job | None:
        """The next job of a thread, once it has its turn; None when it is not needed any more."""
        with self._changed:
            if self._holder is turn and (self._back or not self._job_ready):
                self._pass_on()
            if self._holder is not turn:
                if self._ended or len(self._spares) >= SPARES:
                    return None
                self._spares.append(turn)
                self._changed.wait_for(lambda: self._holder is turn or self._ended)
                if self._holder is not turn:
                    return None
            self._begun += 1
            turn.forget()
            turn.place, _, job = heapq.heappop(self._jobs)
            return job

    # ---- waits ------------------------------------------------------------------------------------------------------

    def _wait(self, turn: _Turn, notify: Notify, seconds: float | None) -> None:
        wait = _Wait(turn)
        notify(lambda: self._there(wait))
        with self._changed:
            if self._holder is not turn or turn.waits_elsewhere or turn.waits_for_callbacks:
                wait.over = True
                return
            self._pass_on()
            self._changed.wait_for(lambda: self._holder is turn, seconds)
            wait.over = True
            if wait in self._back:
                self._back.remove(wait)

    def _there(self, wait: _Wait) -> None:
        with self._changed:
            if wait.over:
                return
            self._back.append(wait)
            if self._holder is None:
                self._pass_on()

    # ---- callbacks that wait for what cannot be seen ----------------------------------------------------------------

    def _watch(self) -> None:
        """Pass on the turn of a thread that is stuck while others could go on: deadlines hold."""
        with self._changed:
            while not self._ended:
                self._changed.wait_for(lambda: self._ended or self._others_could_go_on())
                holder, begun = self._holder, self._begun
                if holder is None or holder.thread is None:
                    self._changed.wait(STUCK_S)
                    continue
                used_s = _used_s(holder.thread)
                limit_s = LONG_STUCK_S if holder.waits_for_callbacks else STUCK_S
                if self._changed.wait_for(lambda at=begun: self._ended or self._begun != at, limit_s):  # type: ignore[misc]
                    continue
                if (
                    _used_s(holder.thread) - used_s < IDLE_S
                    and self._others_could_go_on()
                    and not holder.waits_elsewhere
                ):
                    self._pass_on()

    def _others_could_go_on(self) -> bool:
        return self._holder is not None and bool(self._job_ready or self._back)


def _used_s(thread: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def let_others_complete(notify: Notify, seconds: float | None = None) -> None:
    """Call before a wait: if this thread runs completions, others run them until the wait is over.

    Args:
        notify: is given a function, to be called once what is waited for is there; it may be called at once.
        seconds: how long the wait may take; None without limit.
    """
    turn: _Turn | None = getattr(_here, "turn", None)
    if turn is not None:
        turn.executor._wait(turn, notify, seconds)


def completing() -> str | None:
    """The name of the CompletionThreads whose job this thread runs; None for other threads."""
    turn: _Turn | None = getattr(_here, "turn", None)
    return None if turn is None else turn.executor.name


def expect(done: Callable[[], bool], callbacks: bool = False) -> None:
    """If this thread runs a job: it has begun what other threads complete, so waiting for that keeps its turn.

    Args:
        callbacks: it is done when callbacks have run. They may wait for this job's own turn, which it then loses in time.
    """
    turn: _Turn | None = getattr(_here, "turn", None)
    if turn is not None:
        (turn.callbacks if callbacks else turn.expected).append(done)


def behind_this_job() -> Callable[[Job], None] | None:
    """What submits jobs that run behind the one that this thread runs, and before completions that come later.

    None for threads that run no completions.
    """
    turn: _Turn | None = getattr(_here, "turn", None)
    return None if turn is None else partial(turn.executor.put, place=turn.place)
