"""A thread that does jobs in the order in which they are given."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class SerialExecutor:
    """The thread begins with the first job. Jobs do not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._submitted = self._done = 0
        self._thread: threading.Thread | None = None

    def put(self, job: Job) -> None:
        with self._lock:
            self._submitted += 1
            self._jobs.put(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether everything given so far is done."""
        with self._lock:
            return self._submitted == self._done

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # And what it holds, while nothing follows.
            with self._lock:
                self._done += 1

    def close(self, patience_s: float) -> None:
        """No more jobs: do those that were given, and end."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=patience_s)
