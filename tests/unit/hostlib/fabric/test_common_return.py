"""Hosts that return to the fabric all return, in whatever order they act and however late they hear of each other."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from hostlib.fabric.common_return import CommonReturn
from hostlib.transport.failure_detector import FailureDetector, Heartbeat

HOSTS, STREAMS = 3, 2


class Signs:
    """A host's heartbeat, and what it has heard of the others'."""

    def __init__(self, store: list[Heartbeat], host: int) -> None:
        self._store, self._host = store, host
        self._mine, self._heard = Heartbeat(), list(store)

    def publish(self, **fields: object) -> None:
        self._mine = replace(self._mine, **fields)  # type: ignore[arg-type]

    def exchange(self) -> None:
        self._store[self._host] = self._mine
        self._heard = list(self._store)

    def heartbeats(self) -> list[Heartbeat]:
        return self._heard


@dataclass
class Lives:
    """The controller's jobs: all hosts are in one, or nobody is. The latest life of a job is the only one."""

    epoch: int = 0
    joining: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    places: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))  # job -> host -> epoch
    dead: set[int] = field(default_factory=set)

    def join(self, job: int, host: int) -> None:
        """Ask for a place, which comes once all hosts have asked."""
        self.joining[job].add(host)
        if len(self.joining[job]) == HOSTS:
            self.epoch += 1
            self.places[job] = dict.fromkeys(range(HOSTS), self.epoch)
            self.joining[job].clear()

    def die(self) -> None:
        """The fabric fails: no life that there is stays alive."""
        self.dead |= set(range(1, self.epoch + 1))


class Host:
    """A host as SwitchMulticast makes one, without messages' contents."""

    def __init__(self, number: int, store: list[Heartbeat], lives: Lives) -> None:
        self.number, self.lives = number, lives
        self.signs = Signs(store, number)
        self.common = CommonReturn(cast(FailureDetector, self.signs), range(HOSTS))
        self.counts = [0] * STREAMS
        self.failures = 0
        self.by_hosts = self.still = False
        self.epoch: int | None = None  # of the place that it waits with
        self.returns: list[tuple[int, list[int]]] = []

    @property
    def at_rest(self) -> bool:
        return not self.by_hosts and all(sign.failures <= self.failures for sign in self.signs.heartbeats())

    def begin(self, stream: int) -> None:
        if not self.still:
            self.counts[stream] += 1

    def fail(self) -> None:
        if not self.by_hosts:
            self._fail_over()

    def _fail_over(self) -> None:
        self.by_hosts, self.failures, self.epoch = True, self.failures + 1, None
        self.common.start()
        self.signs.publish(failures=self.failures)
        self.signs.exchange()

    def look_for_place(self) -> None:
        """What the thread that joins does."""
        if not self.by_hosts or self.still:
            return
        if self.epoch is None:
            self.lives.join(self.failures, self.number)
            self.epoch = self.lives.places[self.failures].pop(self.number, None)
        elif self.epoch in self.lives.dead:
            self.epoch = None

    def step(self) -> None:
        if self.still:
            first = self.common.first_messages()
            if first is not None:
                assert all(begun <= number for begun, number in zip(self.counts, first, strict=True))
                self.returns.append((self.common.epoch, first))
                self.by_hosts = self.still = False
            elif self.common.is_off:
                self.common.be_ready(0)
                self.still, self.epoch = False, None
        elif self.by_hosts:
            if self.common.be_ready(self.epoch or 0):
                self.still = True
                self.common.tell(self.counts)
        elif any(sign.failures > self.failures for sign in self.signs.heartbeats()):
            self._fail_over()


@pytest.mark.parametrize("seed", range(200))
def test_if_one_host_returns_all_do_and_with_the_same_messages(seed: int) -> None:
    chance = random.Random(seed)
    store, lives = [Heartbeat()] * HOSTS, Lives()
    hosts = [Host(number, store, lives) for number in range(HOSTS)]
    for _ in range(600):
        host = chance.choice(hosts)
        match chance.choices(["beat", "step", "begin", "place", "fail", "die"], [8, 8, 6, 6, 1, 1])[0]:
            case "beat":
                host.signs.exchange()
            case "step":
                host.step()
            case "begin":
                host.begin(chance.randrange(STREAMS))
            case "place":
                host.look_for_place()
            case "fail":
                host.fail()
            case "die":
                lives.die()
    for _ in range(40):
        for host in hosts:
            host.look_for_place()
            host.signs.exchange()
            host.step()
    assert all(host.at_rest for host in hosts)
    assert len({host.failures for host in hosts}) == 1
    assert hosts[0].returns == hosts[1].returns == hosts[2].returns


def test_a_heartbeat_is_read_as_it_was_written() -> None:
    for begun in ((), (0,), (3, 0, 12)):
        sign = Heartbeat(beat=4, failures=2, ready=1764000000, begun=begun)
        assert Heartbeat.of_text(sign.as_text().encode()) == sign


def test_a_host_that_ends_takes_back_only_what_nobody_counts_on() -> None:
    store = [Heartbeat()] * HOSTS
    signs = [Signs(store, number) for number in range(HOSTS)]
    hosts = [CommonReturn(cast(FailureDetector, each), range(HOSTS)) for each in signs]
    for host in hosts:
        host.be_ready(7)
    for told, sign in zip(hosts[:2], signs, strict=False):
        sign.exchange()
        assert told.be_ready(7)
        told.tell([1, 2])
    for host, sign in zip(hosts, signs, strict=True):
        host.close()
        sign.exchange()
    assert [sign.ready for sign in store] == [7, 7, 0]
    assert hosts[0].first_messages() is None and hosts[0].is_off
