"""The switch of docs/protocol.md in plain Python, and the mistakes it can be told to make.

Written from the page, not from the P4 program: every packet goes through both, and they must agree on what leaves,
byte for byte, and on what is counted. With a Fault it is what the state machines have to find out.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

import numpy as np

from controller.jobs.switch_share import Member, SwitchShare, Upstream
from hostlib.protocol import constants
from hostlib.protocol.header import Header
from tests.property.frame import ELEMENTS, Datagram, End, Words, checks_of, frame, parsed

Sender = Member | Upstream


class Fault(enum.Enum):
    """What a switch could get wrong."""

    ADDS_DUPLICATES = "a rank's second packet is added once more"
    VOUCHES_FOR_DUPLICATES = "so it is, and the check word is made to fit"
    IGNORES_GENERATIONS = "any generation of the set's epoch is the set's"
    IGNORES_EPOCHS = "an old epoch's values are summed with a new one's"
    ACCEPTS_STALE = "an older generation starts the set afresh"
    ACCEPTS_FUTURE = "any newer generation starts the set afresh, not only the next"
    ANSWERS_WITH_QUESTION = "a duplicate is answered with its own values"
    ACCEPTS_UNASKED = "any result from above is stored and passed on"
    NEVER_ANSWERS = "duplicates for finished slots are dropped"
    NEVER_SENDS_UP_AGAIN = "duplicates for slots that were sent up are dropped"
    LAST_EXPONENT = "the last exponent is taken, not the largest"
    FORGETS_CHECK = "check words are not added"
    SATURATES = "sums of check words stop at 2^31 - 1"
    IGNORES_OWNERS = "shared slots need no claim"
    LOSES_COLLISIONS = "what finds its shared slot taken is dropped"
    ANSWERS_NACK_WITH_ANY = "a NACK gets whatever chunk is stored"
    FORGETS_REPLICA = "a group's last member gets nothing"
    DROPS_SILENTLY = "duplicates are dropped without a count"
    ADMITS_ANY_SOURCE = "port, address and UDP port are not looked at"
    ADMITS_ANY_UDP_PORT = "the UDP port alone is not looked at"
    FORWARDS_FORGERIES = "what a host sends in the fabric's name is only switched"
    ADMITS_ENDED_JOBS = "a job's entries outlive it"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one packet: what it was counted as (nothing: forwarded), and (port, frame) that left."""

    events: tuple[int, ...]
    left: tuple[tuple[int, bytes], ...] = ()
    replicas: int = 0


@dataclass(slots=True)
class Set:
    """One of a slot's two sets."""

    epoch: int = 0
    generation: int = 0
    seen: int = 0
    done: bool = False
    words: Words = field(default_factory=lambda: np.zeros(ELEMENTS, np.uint32))
    check: int = 0
    next_exponent: int = 0
    owner: int = 0
    credit: int = 0


class ModelSwitch:
    """One switch.

    Args:
        address: of the fabric, here.
        others: fabric address of each other switch -> the port that leads there.
        hosts: MAC -> port, for what is only passing by.
    """

    def __init__(self, address: str, others: dict[str, int], hosts: dict[int, int], fault: Fault | None = None) -> None:
        self._address, self._hosts, self._fault = int(IPv4Address(address)), hosts, fault
        self._heard_at = {self._address: -1} | {int(IPv4Address(other)): port for other, port in others.items()}
        self._shares: list[SwitchShare] = []
        self._sets: dict[tuple[int, int], Set] = {}

    def install(self, share: SwitchShare) -> None:
        self._shares.append(share)

    def remove(self, share: SwitchShare) -> None:
        if self._fault is not Fault.ADMITS_ENDED_JOBS:
            self._shares.remove(share)

    def process(self, port: int, data: bytes) -> Outcome:
        arrived = parsed(data)
        if self._heard_at.get(arrived.source.address, port) != port and self._fault is not Fault.FORWARDS_FORGERIES:
            return Outcome((constants.DROP_FORGED,))
        if arrived.destination.address != self._address:
            known = self._hosts.get(arrived.destination.mac)
            return Outcome((constants.DROP_NO_ROUTE,)) if known is None else Outcome((), ((known, data),))
        admitted = self._admit(port, arrived)
        if isinstance(admitted, int):
            return Outcome((admitted,))
        share, sender = admitted
        header = arrived.header
        index = (header.slot ^ share.offset) % constants.SLOTS
        stored = self._sets.setdefault((index, header.generation & 1), Set())
        if share.policy == "chunk":
            if isinstance(sender, Upstream):
                return self._chunk(share, arrived, stored)
            return self._nack(share, sender, arrived, stored)
        if isinstance(sender, Upstream):
            return self._result_from_above(share, arrived, stored)
        return self._contribution(share, sender, arrived, stored)

    # ---- who may send what ------------------------------------------------------------------------------------------

    def _admit(self, port: int, arrived: Datagram) -> tuple[SwitchShare, Sender] | int:
        header = arrived.header
        if header.magic != constants.NETFOLD_MAGIC:
            return constants.DROP_MALFORMED
        if header.version != constants.NETFOLD_VERSION:
            return constants.DROP_VERSION
        if not constants.OPERATION_CONTRIBUTION <= header.operation <= constants.OPERATION_NACK:
            return constants.DROP_OPERATION
        if header.element_count != ELEMENTS:
            return constants.DROP_SIZE
        shares = [share for share in self._shares if share.job_id == header.job]
        if not shares:
            return constants.DROP_JOB
        shares = [share for share in shares if share.epoch == header.epoch]
        if not shares:
            return constants.DROP_EPOCH
        found = [(share, each) for share in shares for each in _senders(share) if each.rank == header.rank]
        if not found:
            return constants.DROP_RANK
        if self._fault is not Fault.ADMITS_ANY_SOURCE:
            source = arrived.source
            found = [
                (share, each)
                for share, each in found
                if (each.port, int(IPv4Address(each.address))) == (port, source.address)
                and (each.udp_port == source.udp_port or self._fault is Fault.ADMITS_ANY_UDP_PORT)
            ]
        if not found:
            return constants.DROP_SOURCE
        found = [(share, each) for share, each in found if _operation(share, each) == header.operation]
        if not found:
            return constants.DROP_OPERATION
        for share, each in found:
            if share.first_slot <= header.slot < share.first_slot + share.slots:
                return share, each
        return constants.DROP_SLOT

    # ---- what it does to its set ------------------------------------------------------------------------------------

    def _contribution(self, share: SwitchShare, sender: Member, arrived: Datagram, stored: Set) -> Outcome:
        header = arrived.header
        ahead = self._ahead(header, stored)
        same_epoch = stored.epoch == header.epoch or self._fault in (Fault.IGNORES_EPOCHS, Fault.IGNORES_OWNERS)
        equal, fresh = same_epoch and ahead == 0, not same_epoch or ahead == 2
        if self._fault is Fault.ACCEPTS_STALE:
            fresh = fresh or ahead < 0
        if self._fault is Fault.ACCEPTS_FUTURE:
            fresh = fresh or ahead > 0
        if share.policy == "shared" and self._fault is not Fault.IGNORES_OWNERS:
            gate = self._gate(header, stored)
            if gate == "collision" or (gate == "owner" and ahead != 0):
                return self._collision(share, arrived)
            equal, fresh = gate == "owner", gate == "claim"
        if not equal and not fresh:
            return Outcome((constants.DROP_STALE if ahead < 0 else constants.DROP_FUTURE,))
        bit, full = 1 << share.members.index(sender), (1 << len(share.members)) - 1
        if equal and stored.seen & bit and self._fault not in (Fault.ADDS_DUPLICATES, Fault.VOUCHES_FOR_DUPLICATES):
            return self._duplicate(share, sender, arrived, stored, full)
        if fresh:
            stored.epoch, stored.generation, stored.done, stored.seen = header.epoch, header.generation, False, bit
            stored.words, stored.check, stored.next_exponent = arrived.words, header.check, header.next_exponent
        else:
            stored.seen |= bit
            self._add(share, arrived, stored)
        if stored.seen != full:
            return Outcome((constants.EVENT_ABSORBED,))
        if share.above is None:
            return self._to_group(
                share, _holding(arrived, stored), constants.OPERATION_RESULT, constants.EVENT_COMPLETED
            )
        return self._sum_up(share, sender, _holding(arrived, stored), constants.EVENT_SENT_UP)

    def _ahead(self, header: Header, stored: Set) -> int:
        """RFC 1982: how many generations the packet is ahead of the set."""
        if self._fault is Fault.IGNORES_GENERATIONS and stored.epoch == header.epoch:
            return 0
        ahead = (header.generation - stored.generation) & 0xFFFFFFFF
        return ahead - (1 << 32) if ahead >= 1 << 31 else ahead

    def _add(self, share: SwitchShare, arrived: Datagram, stored: Set) -> None:
        header = arrived.header
        stored.words = arrived.words + stored.words
        if self._fault is not Fault.FORGETS_CHECK:
            stored.check = (stored.check + header.check) & 0xFFFFFFFF
        if self._fault is Fault.SATURATES:
            stored.check = min(stored.check, 2**31 - 1)
        if self._fault is Fault.VOUCHES_FOR_DUPLICATES:
            seen = [each.rank for number, each in enumerate(share.members) if stored.seen >> number & 1]
            stored.check = checks_of(header.epoch, len(share.members)).word(header, stored.words, seen)
        largest = max(stored.next_exponent, header.next_exponent)
        stored.next_exponent = header.next_exponent if self._fault is Fault.LAST_EXPONENT else largest

    def _duplicate(self, share: SwitchShare, sender: Member, arrived: Datagram, stored: Set, full: int) -> Outcome:
        if stored.seen != full:
            if share.policy == "shared" and arrived.header.flags & constants.FLAG_AGAIN:
                # The set may be the claim of a late packet, and nobody else come: the server knows.
                return self._collision(share, arrived)
            return Outcome(() if self._fault is Fault.DROPS_SILENTLY else (constants.DROP_DUPLICATE,))
        if share.above is not None and not stored.done:
            if self._fault is Fault.NEVER_SENDS_UP_AGAIN:
                return Outcome((constants.DROP_DUPLICATE,))
            return self._sum_up(share, sender, _holding(arrived, stored), constants.EVENT_UP_AGAIN)
        if self._fault is Fault.NEVER_ANSWERS:
            return Outcome((constants.DROP_DUPLICATE,))
        held = arrived if self._fault is Fault.ANSWERS_WITH_QUESTION else _holding(arrived, stored)
        return self._answer(sender, held, constants.OPERATION_RESULT)

    def _result_from_above(self, share: SwitchShare, arrived: Datagram, stored: Set) -> Outcome:
        header = arrived.header
        if share.policy == "shared":
            if stored.owner == header.epoch:
                stored.owner = stored.credit = 0
            return self._to_group(share, arrived, header.operation, constants.EVENT_RELAYED)
        equal = stored.epoch == header.epoch and stored.generation == header.generation
        asked = equal and stored.seen == (1 << len(share.members)) - 1 and not stored.done
        if not asked and self._fault is not Fault.ACCEPTS_UNASKED:
            return Outcome((constants.DROP_UNASKED,))
        self._store(arrived, stored, seen=stored.seen)
        return self._to_group(share, arrived, header.operation, constants.EVENT_DOWN)

    def _chunk(self, share: SwitchShare, arrived: Datagram, stored: Set) -> Outcome:
        header = arrived.header
        ahead = self._ahead(header, stored)
        future = ahead > 2 and self._fault is not Fault.ACCEPTS_FUTURE
        if stored.epoch == header.epoch and (ahead <= 0 or future):
            late = constants.DROP_STALE if ahead < 0 else constants.DROP_DUPLICATE
            return Outcome((constants.DROP_FUTURE if future else late,))
        self._store(arrived, stored, seen=0)
        return self._to_group(share, arrived, header.operation, constants.EVENT_CHUNK)

    def _nack(self, share: SwitchShare, sender: Member, arrived: Datagram, stored: Set) -> Outcome:
        equal = stored.epoch == arrived.header.epoch and stored.generation == arrived.header.generation
        if (equal or self._fault is Fault.ANSWERS_NACK_WITH_ANY) and stored.done:
            return self._answer(sender, _holding(arrived, stored), constants.OPERATION_CHUNK)
        return self._up(
            share, arrived, constants.OPERATION_NACK, self._rank_above(share, sender), constants.EVENT_NACK_UP
        )

    @staticmethod
    def _store(arrived: Datagram, stored: Set, seen: int) -> None:
        header = arrived.header
        stored.epoch, stored.generation, stored.seen, stored.done = header.epoch, header.generation, seen, True
        stored.words, stored.check, stored.next_exponent = arrived.words, header.check, header.next_exponent

    @staticmethod
    def _gate(header: Header, stored: Set) -> str:
        """Whose a shared slot is: "owner" - this epoch's, "claim" - from now on, "collision" - another's."""
        again = bool(header.flags & constants.FLAG_AGAIN)
        if stored.owner == header.epoch:
            if not again:
                stored.credit = constants.CREDIT
            return "owner"
        if again:
            return "collision"
        if stored.credit:
            stored.credit -= 1
            return "collision"
        stored.owner, stored.credit = header.epoch, constants.CREDIT
        return "claim"

    def _collision(self, share: SwitchShare, arrived: Datagram) -> Outcome:
        if self._fault is Fault.LOSES_COLLISIONS:
            return Outcome((constants.EVENT_COLLISION,))
        operation, rank = constants.OPERATION_CONTRIBUTION, arrived.header.rank
        return self._up(share, arrived, operation, rank, constants.EVENT_COLLISION)

    # ---- where it leaves to -----------------------------------------------------------------------------------------

    def _fabric(self, arrived: Datagram) -> End:
        return End(arrived.destination.mac, self._address, constants.NETFOLD_UDP_PORT)

    def _to_group(self, share: SwitchShare, held: Datagram, operation: int, event: int) -> Outcome:
        copies = []
        members = share.members[:-1] if self._fault is Fault.FORGETS_REPLICA else share.members
        for member in members:
            header = replace(held.header, operation=operation, rank=member.rank, flags=0)
            copies.append((member.port, frame(self._fabric(held), end_of(member), header, held.words)))
        return Outcome((event,), tuple(copies), len(copies))

    def _answer(self, sender: Member, held: Datagram, operation: int) -> Outcome:
        header = replace(held.header, operation=operation, flags=0)
        back = frame(self._fabric(held), held.source, header, held.words)
        return Outcome((constants.EVENT_ANSWERED,), ((sender.port, back),))

    def _sum_up(self, share: SwitchShare, sender: Member, held: Datagram, event: int) -> Outcome:
        parent = share.above is not None and share.above.kind == "parent"
        operation = constants.OPERATION_CONTRIBUTION if parent else constants.OPERATION_SUM
        return self._up(share, held, operation, self._rank_above(share, sender), event)

    def _up(self, share: SwitchShare, held: Datagram, operation: int, rank: int, event: int) -> Outcome:
        above = share.above
        if above is None:
            raise ValueError("nothing is above this share")
        header = replace(held.header, operation=operation, rank=rank)
        return Outcome((event,), ((above.port, frame(self._fabric(held), end_of(above), header, held.words)),))

    @staticmethod
    def _rank_above(share: SwitchShare, sender: Member) -> int:
        return share.above.rank if share.above is not None and share.above.kind == "parent" else sender.rank


def end_of(each: Sender) -> End:
    return End.at(each.mac, each.address, each.udp_port)


def _senders(share: SwitchShare) -> list[Sender]:
    return [*share.members, *([share.above] if share.above is not None else [])]


def _operation(share: SwitchShare, sender: Sender) -> int:
    if share.policy == "chunk":
        return constants.OPERATION_CHUNK if isinstance(sender, Upstream) else constants.OPERATION_NACK
    return constants.OPERATION_RESULT if isinstance(sender, Upstream) else constants.OPERATION_CONTRIBUTION


def _holding(arrived: Datagram, stored: Set) -> Datagram:
    """The packet with what the set holds."""
    header = replace(arrived.header, check=stored.check, next_exponent=stored.next_exponent)
    return replace(arrived, header=header, words=stored.words)
