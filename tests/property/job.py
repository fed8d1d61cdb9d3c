"""One life of one job: what its ranks contribute, what must come of it, and how far every rank is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from controller.jobs.switch_share import Member, SwitchShare, Upstream
from hostlib.protocol import constants
from hostlib.protocol.header import Header
from tests.property.frame import ELEMENTS, Datagram, End, Words, checks_of, frame
from tests.property.model import end_of
from tests.property.switch import Violation

PROLOGUE = -1
MASK = 0xFFFFFFFF
LARGEST_SUM = 2**30


@dataclass(frozen=True, slots=True)
class Piece:
    """One position of the stream.

    Attributes:
        first: position of the tensor's first piece.
        chunk: number in the tensor, or PROLOGUE.
        chunks: of the tensor.
        size: elements that are not padding.
    """

    first: int
    chunk: int
    chunks: int
    size: int


class Job:
    """What the ranks of one life agree on beforehand.

    Args:
        number: of this life in its network; what is contributed depends on it.
        shares: by switch, the top one first.
        window: slots, a power of two.
        first_generation: of the stream's first position. Real hosts begin at 0.
        ranks: rank -> the switch it is at, and what that knows of it.
    """

    def __init__(
        self,
        number: int,
        shares: dict[str, SwitchShare],
        window: int,
        first_generation: int,
        ranks: dict[int, tuple[str, Member]],
    ) -> None:
        self.number, self.shares, self.window, self.first_generation = number, shares, window, first_generation
        self.ranks = ranks
        self.spoiled = False  # a damaged packet got into a switch: no wrong result, but maybe none
        self.pieces: list[Piece] = []
        self._values: dict[tuple[int, int], Words] = {}
        top = next(iter(shares.values()))
        self.job_id, self.epoch, self.first_slot, self.policy = top.job_id, top.epoch, top.first_slot, top.policy
        self.server = end_of(top.above) if top.above is not None else None
        self.checks = checks_of(top.epoch, 1 if self.chunked else len(ranks))

    @property
    def chunked(self) -> bool:
        return self.policy == "chunk"

    def add_tensor(self, elements: int) -> None:
        """All ranks have another tensor to sum; under chunks, a server has one to send."""
        first, chunks = len(self.pieces), -(-elements // ELEMENTS)
        if not self.chunked:
            self.pieces.append(Piece(first, PROLOGUE, chunks, 0))
        last = elements - (chunks - 1) * ELEMENTS
        sizes = [ELEMENTS] * (chunks - 1) + [last]
        self.pieces += [Piece(first, chunk, chunks, size) for chunk, size in enumerate(sizes)]

    def place(self, position: int) -> tuple[int, int]:
        """(slot, generation)"""
        generation = (self.first_generation + position // self.window) & MASK
        return self.first_slot + position % self.window, generation

    def position(self, header: Header) -> int:
        """The position of a packet; far beyond the stream's end when it is not of this stream."""
        ahead = (header.generation - self.first_generation) & MASK
        return ahead * self.window + header.slot - self.first_slot

    def values(self, rank: int, position: int) -> Words:
        """What a rank (RANK_ALL: the chunk server) has at a position: full range, small, or as large as can be. Sums have
        room, chunks are any words.
        """
        if (rank, position) not in self._values:
            draw = np.random.default_rng([self.number, rank, position])
            largest = 2**31 - 1 if self.chunked else (LARGEST_SUM - 2**16) // len(self.ranks)
            words = draw.integers(-largest, largest + 1, ELEMENTS, dtype=np.int32).view(np.uint32)
            if position % 4 == 3:
                words %= 256
            if position % 8 == 5:
                words[:] = largest
            words[self.pieces[position].size :] = 0
            self._values[rank, position] = words
        return self._values[rank, position]

    def announced(self, rank: int, position: int) -> int:
        """The exponent code that a rank's packet says for what its slot carries next."""
        piece = self.pieces[position]
        if not self.chunked and piece.chunk != PROLOGUE and piece.chunk + self.window >= piece.chunks:
            return 0
        return (self.number * 7919 + rank * 104729 + position * 1299709) % 511

    def summed(self, position: int) -> Words:
        words = np.zeros(ELEMENTS, np.uint32)
        for rank in self.ranks:
            words += self.values(rank, position)
        return words

    def finished(self, position: int, words: Words) -> Words:
        """What the server makes of a sum: padding and all, so that a sum which got past it shows."""
        return np.uint32(position + 1) - words

    def expected(self, position: int) -> tuple[Words, int]:
        """The words and the next exponent that every rank must be given."""
        if self.chunked:
            return self.values(constants.RANK_ALL, position), self.announced(constants.RANK_ALL, position)
        code = max(self.announced(rank, position) for rank in self.ranks)
        words = self.summed(position)
        return (words if self.server is None else self.finished(position, words)), code

    def header(self, position: int, **fields: int) -> Header:
        slot, generation = self.place(position)
        header = Header(job=self.job_id, epoch=self.epoch, slot=slot, generation=generation, element_count=ELEMENTS)
        return replace(header, **fields)


@dataclass(slots=True)
class Flight:
    """A position whose result a rank waits for."""

    position: int
    exponent: int
    next_code: int
    resent: bool = False


@dataclass
class Host:
    """One rank, as hostlib/native/aggregation/engine.cpp has it: window, prologue, retransmission, what it believes."""

    job: Job
    rank: int
    fabric: End
    flights: dict[int, Flight] = field(default_factory=dict)  # by slot
    codes: dict[int, int] = field(default_factory=dict)  # agreed in the result of a position
    next: int = 0

    @property
    def end(self) -> End:
        return end_of(self.job.ranks[self.rank][1])

    @property
    def finished(self) -> bool:
        return len(self.codes) == len(self.job.pieces)

    @property
    def ready(self) -> bool:
        """May the next position go?"""
        if self.next >= len(self.job.pieces) or self.job.place(self.next)[0] in self.flights:
            return False
        piece = self.job.pieces[self.next]
        # Nothing of a tensor before its prologue's result, and no prologue before the last tensor's end.
        return len(self.codes) >= piece.first if piece.chunk == PROLOGUE else piece.first in self.codes

    def send(self) -> bytes:
        """The next position's packet."""
        position, self.next = self.next, self.next + 1
        piece = self.job.pieces[position]
        exponent = 0
        if piece.chunk != PROLOGUE:
            exponent = self.codes[piece.first if piece.chunk < self.job.window else position - self.job.window]
        flight = Flight(position, exponent, self.job.announced(self.rank, position))
        self.flights[self.job.place(position)[0]] = flight
        return self._packet(flight)

    def resend(self, slot: int) -> bytes:
        self.flights[slot].resent = True
        return self._packet(self.flights[slot])

    def _packet(self, flight: Flight) -> bytes:
        flags = constants.FLAG_AGAIN if flight.resent else 0
        fields = {"rank": self.rank, "exponent": flight.exponent, "flags": flags}
        header = self.job.header(flight.position, next_exponent=self.job.checks.next_word(flight.next_code), **fields)
        words = self.job.values(self.rank, flight.position)
        check = self.job.checks.word(header, words, [self.rank])
        return frame(self.end, self.fabric, replace(header, check=check), words)

    def accept(self, arrived: Datagram) -> bool:
        """Take a result; False: nothing that this rank waits for, or damaged.

        Raises:
            Wrong: believed, and not true.
        """
        header, flight = arrived.header, self.flights.get(arrived.header.slot)
        if not _understood(header, self.job, constants.OPERATION_RESULT) or flight is None:
            return False
        if header.generation != self.job.place(flight.position)[1]:
            return False
        code = self.job.checks.code(header.next_exponent)
        if code is None or not _whole(header, self.job, arrived.words):
            return False
        if header.exponent != flight.exponent or code < flight.next_code:
            return False
        _believed(self.job, self.rank, flight.position, arrived)
        del self.flights[header.slot]
        self.codes[flight.position] = code
        return True


@dataclass
class ChunkHost(Host):
    """One rank that waits for a server's chunks, and asks for those it misses."""

    @property
    def ready(self) -> bool:
        return False

    def expect(self) -> None:
        """Wait for what comes next in each slot."""
        while self.next < len(self.job.pieces) and self.job.place(self.next)[0] not in self.flights:
            self.flights[self.job.place(self.next)[0]] = Flight(self.next, 0, 0)
            self.next += 1

    def _packet(self, flight: Flight) -> bytes:
        nack = {"operation": constants.OPERATION_NACK, "rank": self.rank}
        header, words = self.job.header(flight.position, **nack), np.zeros(ELEMENTS, np.uint32)
        return frame(self.end, self.fabric, replace(header, check=self.job.checks.word(header, words)), words)

    def accept(self, arrived: Datagram) -> bool:
        header, flight = arrived.header, self.flights.get(arrived.header.slot)
        if not _understood(header, self.job, constants.OPERATION_CHUNK) or flight is None:
            return False
        if header.generation != self.job.place(flight.position)[1] or header.exponent != 0:
            return False
        code = self.job.checks.code(header.next_exponent)
        if code is None or not self.job.checks.is_right(header, arrived.words):
            return False
        _believed(self.job, self.rank, flight.position, arrived)
        del self.flights[header.slot]
        self.codes[flight.position] = code
        self.expect()
        return True


def _understood(header: Header, job: Job, operation: int) -> bool:
    wanted = Header(operation=operation, job=job.job_id, epoch=job.epoch, element_count=ELEMENTS)
    names = ("magic", "version", "operation", "job", "epoch", "element_count")
    return all(getattr(header, name) == getattr(wanted, name) for name in names)


def _believed(job: Job, rank: int, position: int, arrived: Datagram) -> None:
    words, code = job.expected(position)
    where = f"life {job.number}, rank {rank}, position {position} {job.place(position)}"
    if not np.array_equal(arrived.words, words):
        raise Violation(f"{where}: not what was summed: {arrived.words[:4]}..., expected {words[:4]}...")
    believed = job.checks.code(arrived.header.next_exponent)
    if believed != code:
        raise Violation(f"{where}: next exponent {believed}, the largest is {code}")


def _whole(header: Header, job: Job, words: Words) -> bool:
    """Whether this is a sum of what all ranks sent, in its range."""
    possible = int(np.abs(words.view(np.int32).astype(np.int64)).max()) <= LARGEST_SUM
    return possible and job.checks.is_right(header, words)


class Server:
    """Finishes sums; sums what comes singly, under the shared policy."""

    def __init__(self, job: Job, hosts: dict[int, Host], fabric: End) -> None:
        if job.server is None:
            raise ValueError("nothing is above this job")
        self.job, self._hosts, self._fabric, self._end = job, hosts, fabric, job.server
        self._singly: dict[int, dict[int, Datagram]] = {}
        self._results: dict[int, tuple[Header, Words]] = {}  # by position

    def handle(self, arrived: Datagram) -> list[bytes]:
        """What it sends on a packet."""
        header, job = arrived.header, self.job
        summed = header.operation == constants.OPERATION_SUM
        operation = constants.OPERATION_SUM if summed else constants.OPERATION_CONTRIBUTION
        if not _understood(header, job, operation) or (not summed and job.policy != "shared"):
            return []
        position = job.position(header)
        if position >= len(job.pieces) or (job.policy == "shared" and header.rank not in job.ranks):
            return []
        if summed:
            whole = _whole(header, job, arrived.words)
        else:
            whole = header.check == job.checks.word(header, arrived.words, [header.rank])
        if not whole or job.checks.code(header.next_exponent) is None:
            return []
        if position in self._results:
            return [self._again(position, header.rank)]
        if not summed:
            singly = self._singly.setdefault(position, {})
            singly[header.rank] = arrived
            if len(singly) < len(job.ranks):
                return []
        return [self._finish(position, arrived, summed)]

    def _finish(self, position: int, last: Datagram, summed: bool) -> bytes:
        parts = [last] if summed else list(self._singly[position].values())
        words = np.zeros(ELEMENTS, np.uint32)
        for part in parts:
            words += part.words
        code = max(part.header.next_exponent for part in parts)
        if not np.array_equal(words, self.job.summed(position)):
            raise Violation(f"life {self.job.number}, position {position}: the server was given {words[:4]}...")
        words = self.job.finished(position, words)
        fields = {
            "operation": constants.OPERATION_RESULT,
            "rank": constants.RANK_ALL,
            "flags": 0,
            "next_exponent": code,
        }
        header = replace(last.header, **fields)
        header = replace(header, check=self.job.checks.word(header, words, self.job.ranks))
        self._results[position] = header, words
        return frame(self._end, self._fabric, header, words)

    def _again(self, position: int, rank: int) -> bytes:
        header, words = self._results[position]
        if self.job.policy != "shared":
            return frame(self._end, self._fabric, header, words)
        return frame(self._end, self._hosts[rank].end, replace(header, rank=rank), words)


class ChunkServer(Server):
    """Sends its own words, and again what somebody misses."""

    sent = 0

    @property
    def ready(self) -> bool:
        """May the next chunk go? All ranks must have what its slot held before."""
        before = self.sent - self.job.window
        return self.sent < len(self.job.pieces) and (
            before < 0 or all(before in host.codes for host in self._hosts.values())
        )

    def send(self) -> bytes:
        self.sent += 1
        return self._chunk(self.sent - 1)

    def _chunk(self, position: int) -> bytes:
        words, code = self.job.expected(position)
        fields = {"operation": constants.OPERATION_CHUNK, "rank": constants.RANK_ALL}
        header = self.job.header(position, next_exponent=self.job.checks.next_word(code), **fields)
        return frame(self._end, self._fabric, replace(header, check=self.job.checks.word(header, words)), words)

    def handle(self, arrived: Datagram) -> list[bytes]:
        header = arrived.header
        position = self.job.position(header)
        if not _understood(header, self.job, constants.OPERATION_NACK) or position >= self.sent:
            return []
        return [self._chunk(position)]


def server_above(port: int, seat: int) -> Upstream:
    """The server of a seat's jobs."""
    return Upstream("server", port, 0x0200_0009_0000 | seat, f"10.9.0.{seat + 1}", 7000 + seat)
