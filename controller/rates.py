"""How many requests a second are answered: those of one client, and those of one tenant."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from controller.errors import RequestError

MOST_REQUESTS = 1000  # of ranks that wait behind one address, 50 ask so often before they have tokens


class Rates:
    """Requests in this second, by who sent them. It needs no more memory than a second's requests.

    Args:
        most: a second, of each.
        clock: monotonic seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._second = 0
        self._counts: Counter[str] = Counter()

    def require(self, who: str) -> None:
        """Count a request.

        Raises:
            RequestError: 429, it is one too many.
        """
        with self._lock:
            second = int(self._clock())
            if second != self._second:
                self._second, self._counts = second, Counter()
            self._counts[who] += 1
            if self._counts[who] <= self._most:
                return
        raise RequestError(429, f"{who} sends more than {self._most} requests a second: try again in 1 s", 1)
