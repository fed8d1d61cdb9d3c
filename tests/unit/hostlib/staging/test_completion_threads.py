"""Completions run one at a time and in order, also when they wait for each other."""

from __future__ import annotations

import threading
import time

import pytest

from hostlib.staging import completion_threads
from hostlib.staging.completion_threads import CompletionThreads, behind_this_job, let_others_complete

PATIENCE_S = 20.0


def await_event(event: threading.Event, waiting: list[object], seconds: float | None = None) -> None:
    """Wait as a future's `wait` does; `waiting` gets what resumes it."""
    let_others_complete(waiting.append, seconds)
    event.wait(seconds)


def test_jobs_run_in_order_in_one_thread() -> None:
    threads, ran = CompletionThreads("test"), []
    for number in range(200):
        threads.put(lambda number=number: ran.append((number, threading.get_ident())))
    threads.close(PATIENCE_S)
    assert [number for number, _ in ran] == list(range(200))
    assert len({thread for _, thread in ran}) == 1


def test_a_job_may_wait_for_later_ones_and_goes_on_before_the_next() -> None:
    """As many jobs as there are wait, each for one of the jobs behind all of them."""
    threads, ran, waits = CompletionThreads("test"), [], 30
    events: list[threading.Event] = [threading.Event() for _ in range(waits)]
    resumes: list[list[object]] = [[] for _ in range(waits)]
    all_put = threading.Event()

    def waiting(number: int) -> None:
        all_put.wait(PATIENCE_S)
        ran.append(f"begin {number}")
        await_event(events[number], resumes[number])
        ran.append(f"end {number}")

    def later(number: int) -> None:
        ran.append(f"later {number}")
        events[number].set()
        for resume in resumes[number]:
            resume()  # type: ignore[operator]

    for number in range(waits):
        threads.put(lambda number=number: waiting(number))
    for number in range(waits):
        threads.put(lambda number=number: later(number))
    all_put.set()
    threads.close(PATIENCE_S)
    expected = [f"begin {number}" for number in range(waits)]
    for number in range(waits):
        expected += [f"later {number}", f"end {number}"]
    assert ran == expected


def test_what_is_already_there_is_not_waited_for() -> None:
    threads, ran, done = CompletionThreads("test"), [], threading.Event()

    def waits() -> None:
        let_others_complete(lambda resume: resume())
        ran.append("waited")

    threads.put(waits)
    threads.put(lambda: (ran.append("next"), done.set()))
    assert done.wait(PATIENCE_S) and ran == ["waited", "next"]
    threads.close(PATIENCE_S)


def test_a_wait_with_an_end_ends_and_holds_up_nobody() -> None:
    threads, ran, done = CompletionThreads("test"), [], threading.Event()

    def waits() -> None:
        let_others_complete(lambda resume: None, 0.2)
        ran.append("gave up")
        done.set()

    threads.put(waits)
    threads.put(lambda: ran.append("next"))
    assert done.wait(PATIENCE_S) and ran == ["next", "gave up"]
    threads.put(lambda: ran.append("after"))
    threads.close(PATIENCE_S)
    assert ran[-1] == "after"


def test_a_job_that_is_stuck_holds_up_the_others_no_longer_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_threads, "STUCK_S", 0.1)
    threads, ran, released = CompletionThreads("test"), [], threading.Event()
    ended = threading.Event()

    def stuck() -> None:
        assert released.wait(PATIENCE_S)  # nothing says what it waits for
        ran.append("stuck")
        ended.set()

    threads.put(stuck)
    threads.put(lambda: (ran.append("next"), released.set()))
    assert ended.wait(PATIENCE_S) and ran == ["next", "stuck"]
    threads.close(PATIENCE_S)


def test_a_job_that_computes_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_threads, "STUCK_S", 0.05)
    threads, ran = CompletionThreads("test"), []

    def computes() -> None:
        end = time.thread_time() + 1.0
        while time.thread_time() < end:
            pass
        ran.append("computed")

    threads.put(computes)
    threads.put(lambda: ran.append("next"))
    threads.close(PATIENCE_S)
    assert ran == ["computed", "next"]


def test_other_threads_wait_as_ever() -> None:
    let_others_complete(lambda resume: pytest.fail("nobody is to be resumed"))


def test_what_is_attached_late_runs_behind_its_completion_and_before_later_ones() -> None:
    """However far the completions have come when it is attached."""
    threads, ran, places = CompletionThreads("test"), [], []
    at_work, go_on = threading.Event(), threading.Event()

    def completes(number: int) -> None:
        ran.append(f"completes {number}")
        behind = behind_this_job()
        assert behind is not None
        places.append(behind)
        if number == 2:
            at_work.set()
            assert go_on.wait(PATIENCE_S)
            behind(lambda: ran.append("callback 2"))

    for number in range(4):
        threads.put(lambda number=number: completes(number))
    assert at_work.wait(PATIENCE_S)
    for number in range(2):
        places[number](lambda number=number: ran.append(f"callback {number}"))
    go_on.set()
    threads.close(PATIENCE_S)
    assert ran[3:] == ["callback 0", "callback 1", "callback 2", "completes 3"]
    assert behind_this_job() is None


def test_a_reserved_place_holds_up_those_behind_it() -> None:
    threads, ran, done = CompletionThreads("test"), [], threading.Event()
    threads.put(lambda: ran.append(0))
    first, second = threads.reserve(), threads.reserve()
    threads.put(lambda: (ran.append(3), done.set()))
    threads.put(lambda: ran.append(2), second)
    assert not done.wait(0.1) and ran == [0]
    threads.put(lambda: ran.append(1), first)
    assert done.wait(PATIENCE_S)
    threads.close(PATIENCE_S)
    assert ran == [0, 1, 2, 3]
