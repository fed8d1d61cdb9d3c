"""A clock that stands still while the controller is away."""

from __future__ import annotations

from collections.abc import Callable


class LeaseClock:
    """Seconds in which the controller was able to answer.

    Ranks that could not reach a controller that was stopped, suspended, or busy with one long request have not been
    silent. A thread that does what requests do, and takes their lock, calls `tick` again and again; of a longer pause
    between two calls only `most_s` count.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float], most_s: float) -> None:
        self._clock = clock
        self._most_s = most_s
        self._counted_s = 0.0
        self._ticked_s = clock()

    def tick(self) -> None:
        self._counted_s, self._ticked_s = self(), self._clock()

    def __call__(self) -> float:
        return self._counted_s + min(self._clock() - self._ticked_s, self._most_s)
