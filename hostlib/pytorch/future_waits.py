"""Let waits for torch's futures pass on the turn of a thread that completes sums, and callbacks run in such threads alone.

A callback may wait for the future of a collective that it has begun, as torch's own PowerSGD hook does. Futures are
objects of torch's C++ library, made by `then`, `collect_all` and others; only their class sees all waits in Python.

A callback that is attached to a complete future would run at once, in the thread that attaches it. Whether a sum is
complete by then differs from rank to rank, and so would the stream of the sums that the callback begins
(sum_streams.py). So a sum's callbacks run as jobs of their own, right behind the sum's completion (see
CompletionThreads): those of sums in the order of the sums, if they are attached in that order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch

from hostlib.staging.completion_threads import behind_this_job, completing, expect, let_others_complete

_torchs_wait = torch._C.Future.wait
_torchs_then = torch._C.Future.then
_torchs_add_done_callback = torch._C.Future.add_done_callback


class _Stream:
    """Where the callbacks of a sum's future, and of those that `then` makes of it, run.

    Args:
        name: of the CompletionThreads that complete the sum.
        put: gives them a job; for a future that no such thread completes, such as one that is refused at once.
    """

    def __init__(self, name: str, put: Callable[[Callable[[], None]], None]) -> None:
        self.name = name
        self._put = put
        self._placed = threading.Event()

    def find_place(self, _: Any) -> None:
        """The future's first callback."""
        behind = behind_this_job()
        if behind is not None and completing() == self.name:
            self._put = behind
        self._placed.set()

    def run(self, callback: Callable[[], None]) -> None:
        """Have a callback run, now that the future is complete."""
        # Another thread may see that it is complete a moment before its first callback has run.
        self._placed.wait()
        self._put(callback)


_streams: WeakKeyDictionary[Any, _Stream] = WeakKeyDictionary()


@wraps(_torchs_wait)
def _wait(future: Any) -> Any:
    if not future.done():
        let_others_complete(lambda resume: when_done(future, resume))
    return _torchs_wait(future)


@wraps(_torchs_then)
def _then(future: Any, callback: Callable[[Any], Any]) -> Any:
    stream = _streams.get(future)
    if stream is None:
        return _torchs_then(future, callback)
    turn: torch.futures.Future[None] = torch.futures.Future()
    result = _torchs_then(turn, lambda _: callback(future))
    _streams[result] = stream
    if completing() != stream.name:  # whose callbacks need this thread's turn
        expect(result.done, callbacks=True)
    _add_done_callback(future, lambda _: turn.set_result(None))
    return result


@wraps(_torchs_add_done_callback)
def _add_done_callback(future: Any, callback: Callable[[Any], None]) -> None:
    stream = _streams.get(future)
    if stream is None:
        _torchs_add_done_callback(future, callback)
        return
    _torchs_add_done_callback(future, lambda _: stream.run(lambda: callback(future)))


def watch_waits() -> None:
    """Replace the methods `wait`, `then` and `add_done_callback` of torch's futures.

    In threads that complete no sums, `wait` does what it did before; so do the others, but for futures of `bind`.
    """
    torch._C.Future.wait = _wait  # type: ignore[method-assign,assignment]
    torch._C.Future.then = _then  # type: ignore[method-assign,assignment]
    torch._C.Future.add_done_callback = _add_done_callback  # type: ignore[method-assign,assignment]


def bind(future: torch.futures.Future[Any], name: str, put: Callable[[Callable[[], None]], None]) -> None:
    """Have a future's callbacks, and those of futures that `then` makes of it, run in completion threads alone.

    Args:
        future: of a tensor in the host's memory: a device's has a stream of its own.
        name: of the CompletionThreads that complete it.
        put: gives them a job.
    """
    stream = _streams[future] = _Stream(name, put)
    _torchs_add_done_callback(future, stream.find_place)


def when_done(future: Any, notify: Callable[[], object]) -> None:
    """Have a function called as soon as a future is complete, by whatever thread completes it; it must not wait."""
    _torchs_add_done_callback(future, lambda _: notify())


def followed_by(future: Any, compute: Callable[[Any], Any]) -> Any:
    """As `then`, but at once: by the thread that completes the future, or this one. `compute` begins no sums."""
    result = _torchs_then(future, compute)
    if future in _streams:
        _streams[result] = _streams[future]
    return result
