"""A thread that runs jobs in the order in which they are submitted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], object]


class SerialExecutor:
    """Runs jobs in a thread of its own, which starts with the first job. Jobs must not raise."""

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
        """Whether all submitted jobs are done."""
        with self._lock:
            return self._submitted == self._done

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # Also frees what the job holds while the thread waits for the next one.
            with self._lock:
                self._done += 1

    def close(self, patience_s: float | None) -> None:
        """Finish the submitted jobs, then end the thread. None: wait as long as that takes."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=patience_s)
