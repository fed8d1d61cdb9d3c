"""Messages one after the other: their order, what goes wrong with them, and that no schedule waits for itself that way."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections import Counter, deque
from functools import partial
from itertools import takewhile

import pytest
import torch
from torch import Tensor

from hostlib.collectives.message_requests import Expected, MessageRequests
from hostlib.collectives.schedule_executor import in_turns
from hostlib.errors import RunError
from hostlib.mechanisms.mechanism import find, registered
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import Operation, Receive, Schedule, Send
from hostlib.schedules.segments import SEGMENTS_AHEAD, segments_ahead
from hostlib.transport.send_queue import SendQueue

BETWEEN_WORKERS = [
    *(name for name, mechanism in registered().items() if mechanism.by_ranks_alone),
    "ps:colocated",
    "ps:servers=3:assign=even:colocated",
]
OTHERS = [
    (name, each)
    for name in BETWEEN_WORKERS
    for each in find(name).collectives
    if each is not Collective.ALL_REDUCE and not find(name).of(each).servers
]
WITH_SERVERS = ["ps", "ps:servers=3", "ps:servers=3:assign=even"]
PATIENCE_S = 10.0


class Line:
    """Transport whose messages leave when they are let."""

    channels, shares_link = 1, True

    def __init__(self) -> None:
        self.under_way: list[int] = []
        self.most = 0
        self.let = threading.Semaphore(0)
        self.sent: list[int] = []

    def send(self, tensor: Tensor, host: int, tag: int) -> Leaving:
        self.under_way.append(host)
        self.most = max(self.most, len(self.under_way))
        return Leaving(self, host)

    def receive(self, tensor: Tensor, host: int, tag: int) -> Leaving:
        raise NotImplementedError


class Leaving:
    def __init__(self, line: Line, host: int) -> None:
        self._line, self._host = line, host

    def wait(self) -> None:
        assert self._line.let.acquire(timeout=PATIENCE_S)
        self._line.under_way.remove(self._host)
        if self._host == 13:
            raise RunError("nobody lives there")
        self._line.sent.append(self._host)


def test_one_message_leaves_at_a_time_in_order() -> None:
    line = Line()
    outbox = SendQueue(line)
    messages = [outbox.send(torch.zeros(1), host, 0) for host in (3, 1, 2)]
    assert line.sent == []
    line.let.release(3)
    for message in messages:
        message.wait()
    assert (line.sent, line.most) == ([3, 1, 2], 1)
    outbox.close()


def test_messages_to_one_host_follow_each_other_at_once_and_those_to_another_wait() -> None:
    line = Line()
    outbox = SendQueue(line)
    messages = [outbox.send(torch.zeros(1), host, 0) for host in (3, 3, 1, 3)]
    assert line.under_way == [3, 3]
    line.let.release(3)
    for message in messages[:3]:
        message.wait()
    assert line.sent == [3, 3, 1]
    line.let.release()
    messages[3].wait()
    assert (line.sent, line.most) == ([3, 3, 1, 3], 2)
    outbox.close()


def test_what_goes_wrong_is_told_to_who_waits_and_the_next_goes_on() -> None:
    line = Line()
    line.let.release(2)
    outbox = SendQueue(line)
    refused, sent = outbox.send(torch.zeros(1), 13, 0), outbox.send(torch.zeros(1), 2, 0)
    with pytest.raises(RunError, match="nobody lives there"):
        refused.wait()
    sent.wait()
    assert line.sent == [2]
    outbox.close()


Key = tuple[str, str, int, int, int, int]  # sender, receiver, channel, piece, segment, which of these


class Host:
    """One host's list in one channel, as hostlib.collectives.schedule_executor goes through it, whose messages leave when
    their receivers ask for them.
    """

    def __init__(
        self,
        name: str,
        operations: tuple[Operation, ...],
        segments: int,
        channel: int,
        requests: MessageRequests,
        asked: set[Key],
    ) -> None:
        self.name, self.serves, self.channel = name, name.startswith("server"), channel
        self.steps = [
            (operation, segment)
            for together in in_turns(operations, self.serves)
            for segment in range(segments)
            for operation in together
        ]
        most = segments_ahead(operations, segments, self.serves)
        self.requests, self.begun, self.at = requests, False, 0
        self.sent: Counter[tuple[str, str, int, int, int]] = Counter()
        self.outbox: deque[Key] = deque()
        receives: Counter[tuple[str, str, int, int, int]] = Counter()
        self.keys = {
            at: self._key(receives, operation.peer, name, channel, operation.piece, segment)
            for at, (operation, segment) in enumerate(self.steps)
            if isinstance(operation, Receive)
        }
        messages = [(self._line(key[0]), partial(asked.add, key)) for key in self.keys.values()]
        self.expected = Expected(channel, most, messages)  # type: ignore[arg-type]

    def _line(self, sender: str) -> str:
        return sender if self.serves else ""

    def step(self, left: set[Key]) -> bool:
        """Whether it could go on."""
        if self.at == len(self.steps):
            return False
        if not self.begun:
            self.requests.begin(self.expected)
            self.begun = True
        operation, segment = self.steps[self.at]
        if isinstance(operation, Send):
            message = (self.name, operation.peer, self.channel, operation.piece, segment)
            self.outbox.append(self._key(self.sent, *message))
        elif isinstance(operation, Receive):
            line, key = self._line(operation.peer), self.keys[self.at]
            still_here = any(key[3:5] == (operation.piece, segment) for key in self.outbox)
            if still_here or key not in left:
                return False
            self.requests.take(self.expected, line)
            self.requests.arrived(self.expected, line)
        self.at += 1
        if self.at == len(self.steps):
            self.requests.end(self.expected)
        return True

    def let_leave(self, asked: set[Key], left: set[Key]) -> bool:
        """Let go of what is asked for: of a worker, what its SendQueue has under way. Whether any left."""
        under_way = list(self.outbox)
        if not self.serves:
            under_way = list(takewhile(lambda key: key[1] == self.outbox[0][1], under_way))
        leaving = [key for key in under_way if key in asked and key not in left]
        left.update(leaving)
        if self.serves:
            self.outbox = deque(key for key in self.outbox if key not in left)
        while self.outbox and self.outbox[0] in left:
            self.outbox.popleft()
        return bool(leaving)

    @staticmethod
    def _key(numbers: Counter[tuple[str, str, int, int, int]], *message: str | int) -> Key:
        numbers[message] += 1  # type: ignore[index]
        return (*message, numbers[message] - 1)  # type: ignore[index, return-value]


def waits_for_ever(schedule: Schedule, segments: int, channels: int = 1, seed: int = 0) -> list[str]:
    """Who has not come to the end of its lists when nobody can go on; the order in which they go on is drawn."""
    drawn = random.Random(seed)
    asked: set[Key] = set()
    hosts: list[Host] = []
    for name, operations in schedule.nodes.items():
        shared = MessageRequests()
        for channel in range(channels):
            requests = shared if name.startswith("server") else MessageRequests()
            hosts.append(Host(name, operations, segments, channel, requests, asked))
    left: set[Key] = set()
    moved = True
    while moved:
        moved = False
        for host in drawn.sample(hosts, len(hosts)):
            while host.step(left):
                moved = True
                if channels > 1 and drawn.random() < 0.5:
                    break
            moved = host.let_leave(asked, left) or moved
    return [host.name for host in hosts if host.at < len(host.steps) or host.outbox]


@pytest.mark.parametrize("segments", [1, 3, 5, 20])
@pytest.mark.parametrize("name", BETWEEN_WORKERS + WITH_SERVERS)
def test_no_mechanism_waits_for_itself(name: str, segments: int) -> None:
    for workers in (*range(3, 18), 32):
        schedule = find(name).schedule(workers, size=64 << 20, turn=workers)
        assert waits_for_ever(schedule, segments) == [], workers


@pytest.mark.parametrize("segments", [1, 20])
@pytest.mark.parametrize(("name", "collective"), OTHERS, ids=str)
def test_no_other_collective_waits_for_itself(name: str, collective: Collective, segments: int) -> None:
    for workers in (3, 5, 8):
        schedule = find(name).of(collective).schedule(workers, size=64 << 20, root=workers - 1)
        assert waits_for_ever(schedule, segments) == [], workers


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("segments", [1, 5, 20])
@pytest.mark.parametrize("name", WITH_SERVERS)
def test_no_servers_channels_wait_for_each_other(name: str, segments: int, seed: int) -> None:
    for workers in (2, 5, 17):
        schedule = find(name).schedule(workers, size=64 << 20)
        assert waits_for_ever(schedule, segments, 4, seed) == [], workers


def test_a_schedule_that_would_wait_is_found() -> None:
    """Each host first sends more than the other asks for ahead, in the other order."""
    pieces = 3 * SEGMENTS_AHEAD
    lists: dict[str, tuple[Operation, ...]] = {}
    for name, other in (("worker0", "worker1"), ("worker1", "worker0")):
        sends = [Send(other, piece) for piece in range(pieces)]
        receives = [Receive(other, piece, reduce=True) for piece in reversed(range(pieces))]
        lists[name] = (*sends, *receives)
    assert waits_for_ever(Schedule("crossed", 2, pieces, lists), 1) == ["worker0", "worker1"]


def test_closed_its_thread_has_ended_and_holds_nothing() -> None:
    """Else it would let go of torch's group later, perhaps while the interpreter ends, which is the end of the process."""
    line = Line()
    held = weakref.ref(line)
    sends = SendQueue(line)
    sends.send(torch.zeros(1), 1, 0)
    line.let.release()
    sends.close()
    del sends, line
    gc.collect()
    assert held() is None
