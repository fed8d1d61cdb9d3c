"""A thread that polls the data plane for messages: packet-ins, digests, idle entries."""

from __future__ import annotations

import threading
from collections.abc import Callable

POLL_S = 0.01


class Notifier:
    """Calls `look` every POLL_S as long as that returns True; otherwise sleeps until `wake`.

    Args:
        look: passes on messages; returns whether there may be more later.
    """

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self._changed = threading.Condition()
        self._wanted = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Wake the thread because something may have been switched on."""
        with self._changed:
            self._wanted = True
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """End the thread; `look` is not called afterwards."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        busy = False
        while True:
            with self._changed:
                if busy:
                    self._changed.wait_for(lambda: self._stopping, POLL_S)
                else:
                    self._changed.wait_for(lambda: self._stopping or self._wanted)
                if self._stopping:
                    return
                self._wanted = False
            busy = self._look()
