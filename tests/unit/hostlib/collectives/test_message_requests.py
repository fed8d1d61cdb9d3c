"""Messages are requested in the order of their tensors, and none waits for a request that cannot come."""

from __future__ import annotations

import threading
from functools import partial

from hostlib.collectives.message_requests import Expected, MessageRequests

Asked = list[tuple[int, str, int]]  # tensor, sender, which of its messages
PATIENCE_S = 10.0


def tensor(number: int, most: int, senders: str, each: int, asked: Asked) -> Expected:
    """A tensor of which every sender sends `each` messages, in turns."""

    def request(key: tuple[int, str, int]) -> tuple[int, str, int]:
        asked.append(key)
        return key

    keys = [(number, sender, which) for which in range(each) for sender in senders]
    return Expected(number, most, [(key[1], partial(request, key)) for key in keys])  # type: ignore[misc]


def begun(*tensors: Expected) -> MessageRequests:
    requests = MessageRequests()
    for each in tensors:
        requests.begin(each)
    return requests


def receive(requests: MessageRequests, expected: Expected, sender: str) -> None:
    requests.take(expected, sender)
    requests.arrived(expected, sender)


def test_the_oldest_tensors_messages_are_requested_first() -> None:
    asked: Asked = []
    old, new = tensor(0, 2, "a", 4, asked), tensor(1, 2, "a", 2, asked)
    requests = begun(old, new)
    assert asked == [(0, "a", 0), (0, "a", 1)]
    for _ in range(4):
        receive(requests, old, "a")
    assert asked[2:] == [(0, "a", 2), (0, "a", 3), (1, "a", 0), (1, "a", 1)]


def test_an_older_tensor_that_is_begun_later_does_not_wait() -> None:
    asked: Asked = []
    new, old = tensor(5, 1, "a", 2, asked), tensor(4, 1, "a", 1, asked)
    requests = begun(new, old)
    assert asked == [(5, "a", 0), (4, "a", 0)]
    receive(requests, new, "a")
    assert len(asked) == 2
    receive(requests, old, "a")
    assert asked[2:] == [(5, "a", 1)]


def test_senders_have_limits_of_their_own() -> None:
    """What a late sender has not sent keeps nobody else's next tensor waiting."""
    asked: Asked = []
    old, new = tensor(0, 1, "ab", 1, asked), tensor(1, 1, "ab", 1, asked)
    requests = begun(old, new)
    requests.take(old, "a")
    receive(requests, old, "b")
    assert asked == [(0, "a", 0), (0, "b", 0), (1, "b", 0)]


def test_a_tensor_that_failed_keeps_no_other_waiting() -> None:
    asked: Asked = []
    old, new = tensor(0, 1, "a", 3, asked), tensor(1, 1, "a", 1, asked)
    requests = begun(old, new)
    requests.end(old)
    receive(requests, new, "a")
    assert asked == [(0, "a", 0), (1, "a", 0)]


def test_who_takes_a_message_waits_until_another_thread_has_requested_it() -> None:
    asked: Asked = []
    old, new = tensor(0, 1, "a", 1, asked), tensor(1, 1, "a", 1, asked)
    requests = begun(old, new)
    taken = threading.Thread(target=receive, args=(requests, new, "a"), daemon=True)
    taken.start()
    receive(requests, old, "a")
    taken.join(PATIENCE_S)
    assert not taken.is_alive()
    assert asked == [(0, "a", 0), (1, "a", 0)]
