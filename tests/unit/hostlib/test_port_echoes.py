"""A rank asks the switch until its packets come back, and says so to the controller: over sockets in memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from hostlib.fabric import port_check
from hostlib.fabric.port_check import ASKED_S, SAID_EVERY_S, PortCheck, WrongPortError
from hostlib.protocol import constants
from hostlib.protocol.header import Header
from hostlib.protocol.slots import ECHO_SLOT


@dataclass(frozen=True)
class Member:
    job_id: int = 7
    epoch: int = 99
    rank: int = 2
    elements: int = 64
    fabric_address: str = "10.9.0.1"
    fabric_port: int = 4793


@dataclass
class Clock:
    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Socket:
    """One that has an echo after a number of questions; None: never."""

    clock: Clock
    after: int | None
    number: int = 5
    questions: list[bytes] = field(default_factory=list)

    def __call__(self, address: str, port: int, question: bytes, seconds: float) -> int | None:
        assert (address, port) == ("10.9.0.1", 4793)
        self.questions.append(question)
        if self.after is not None and len(self.questions) > self.after:
            return self.number
        self.clock.seconds += seconds
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(port_check, "time", clock)
    return clock


def never(echoes: list[int | None]) -> str | None:
    raise AssertionError("nobody needs to be asked")


def test_a_question_is_a_nack_for_a_slot_that_there_is_not(clock: Clock) -> None:
    socket, other = Socket(clock, 0), Socket(clock, 0)
    assert PortCheck(Member(), [5000], [socket]).run(never, 60.0, threading.Event())
    assert PortCheck(Member(), [5000], [other]).ask()
    (question,), (another,) = socket.questions, other.questions
    header = Header.unpack(question)
    assert (header.operation, header.slot) == (constants.OPERATION_NACK, ECHO_SLOT) and constants.SLOTS <= ECHO_SLOT
    assert (header.job, header.epoch, header.rank, header.element_count) == (7, 99, 2, 64)
    assert len(question) == constants.HEADER_BYTES + 4 * 64
    assert question[-256:] != another[-256:], "nobody else can make its echo"


def test_what_is_lost_is_asked_for_again_and_what_came_is_not(clock: Clock) -> None:
    lucky, unlucky = Socket(clock, 0, 11), Socket(clock, 9, 12)
    check = PortCheck(Member(), [5000, 5001], [lucky, unlucky])
    assert check.run(never, 60.0, threading.Event())
    assert check.echoes == [11, 12] and (len(lucky.questions), len(unlucky.questions)) == (1, 10)


def test_a_udp_port_of_several_pools_is_asked_once(clock: Clock) -> None:
    socket = Socket(clock, 0, 11)
    check = PortCheck(Member(), [5000] * 3, [socket] * 3)
    assert check.ask() and check.echoes == [11] * 3 and len(socket.questions) == 1


def test_silence_is_told_and_ends_when_the_controller_believes_it(clock: Clock) -> None:
    told: list[tuple[float, list[int | None]]] = []

    def report(echoes: list[int | None]) -> str:
        told.append((clock.seconds, echoes))
        return "silent" if len(told) == 3 else "unchecked"

    check = PortCheck(Member(), [5000, 5001], [Socket(clock, 0, 11), Socket(clock, None)])
    with pytest.raises(WrongPortError):
        check.run(report, 60.0, threading.Event())
    assert [echoes for _, echoes in told] == [[11, None]] * 3
    assert [seconds for seconds, _ in told] == pytest.approx([SAID_EVERY_S * n for n in (1, 2, 3)], abs=0.2)


@pytest.mark.parametrize(
    ("concluded", "most_s", "took_s"),
    [(None, 60.0, SAID_EVERY_S), ("unchecked", 60.0, ASKED_S), ("unchecked", 2.0, 2.0)],
)
def test_where_nobody_concludes_anything_the_rank_goes_on(
    clock: Clock, concluded: str | None, most_s: float, took_s: float
) -> None:
    check = PortCheck(Member(), [5000], [Socket(clock, None)])
    assert not check.run(lambda echoes: concluded, most_s, threading.Event())
    assert clock.seconds == pytest.approx(took_s, abs=0.1)


def test_a_join_that_is_cancelled_asks_no_longer(clock: Clock) -> None:
    cancelled = threading.Event()
    cancelled.set()
    socket = Socket(clock, None)
    assert not PortCheck(Member(), [5000], [socket]).run(never, 60.0, cancelled)
    assert len(socket.questions) == 1
