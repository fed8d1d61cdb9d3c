"""Jobs on switches, and the packets between: whoever drives it decides what becomes of every single one.

Links are bags: any packet that is under way may arrive next, or never, or twice, or with a flipped bit. What hosts
and servers believe is checked where they believe it (job.py); here it is checked that every packet is accounted for,
that it leaves to where it should, and that a lossless network finishes whatever a lossy one left.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from controller.jobs.switch_share import Member, SwitchShare, Upstream
from hostlib.protocol import constants
from tests.property.frame import Datagram, End, frame, parsed, with_flipped_bits, with_source_port
from tests.property.job import ChunkHost, ChunkServer, Host, Job, Server, server_above
from tests.property.model import Outcome, end_of
from tests.property.switch import Switch, Violation

UP_PORT = 9
TOP_RANKS = 0x8000  # leaf n is rank TOP_RANKS + n at the top
POOL = 256
SETTLING_ROUNDS = 3
SETTLING_PACKETS = 50_000

_TO_GROUP = {constants.EVENT_COMPLETED, constants.EVENT_DOWN, constants.EVENT_RELAYED, constants.EVENT_CHUNK}
# A slot without owners gets to these once in each generation: whatever is repeated, nothing is multicast twice.
_ONCE = {constants.EVENT_COMPLETED, constants.EVENT_SENT_UP, constants.EVENT_DOWN, constants.EVENT_CHUNK}
# What a set has begun with, and what may advance it.
_STARTS = {constants.EVENT_ABSORBED, constants.EVENT_COMPLETED, constants.EVENT_SENT_UP, constants.EVENT_CHUNK}
_ADVANCES = {constants.OPERATION_CONTRIBUTION, constants.OPERATION_CHUNK}
_NOWHERE = {constants.EVENT_ABSORBED, *constants.DROPS.values()}
_DROPS = frozenset(constants.DROPS.values())
# Nobody can detect a flipped bit in these: a contribution's next exponent may hide under another rank's larger one (its
# own sender then waits forever).
_NEXT_EXPONENT_BITS = range(8 * 24, 8 * 28)

# Number, fabric address, those of the other switches with the ports to them, and ports of hosts by MAC.
MakeSwitch = Callable[[int, str, dict[str, int], dict[int, int]], Switch]


@dataclass(frozen=True, slots=True)
class Shape:
    """What is built.

    Attributes:
        kind: "sum", "server", "shared" or "chunk".
        leaves: below the top switch; 0: the ranks are at the top.
        ranks: at each leaf.
        seats: jobs at a time.
        window: slots of each job.
        first_generation: of every stream.
    """

    kind: str
    leaves: int
    ranks: int
    seats: int
    window: int
    first_generation: int


@dataclass(frozen=True, slots=True)
class Flying:
    """A packet under way to a switch, host or server.

    Attributes:
        to: name of a switch; "" for what is at a port's other end.
        forged: not from who it says, or not what that one would say.
        damaged: once is enough.
    """

    to: str
    port: int
    frame: bytes
    forged: bool = False
    damaged: bool = False


@dataclass
class Seat:
    """One job after another, at the same addresses.

    Attributes:
        removed: the switches that do not know the job any more.
    """

    job: Job
    hosts: dict[int, Host]
    server: Server | None
    removed: set[str]


class Network:
    """Switches and seats.

    Args:
        make_switch: the switches under test.
    """

    def __init__(self, shape: Shape, make_switch: MakeSwitch) -> None:
        self.shape = shape
        self.names = ["top", *(f"leaf{n}" for n in range(shape.leaves))]
        self.fabric = {
            name: End.at(0x0200_0000_0001 + n, f"10.255.255.{n + 1}", constants.NETFOLD_UDP_PORT)
            for n, name in enumerate(self.names)
        }
        self.flying: list[Flying] = []
        self.held: list[Flying] = []  # copies that come very late
        self._reached: set[tuple[str, int, int, int, int]] = set()  # of _ONCE: switch, event, epoch, slot, generation
        self.counts: Counter[int] = Counter()  # by event; -1: only passing by
        self.packets = self.results = self.lives = 0
        hosts: dict[str, dict[int, int]] = {name: {} for name in self.names}
        for seat in range(shape.seats):
            for name, member in self._members(seat).values():
                hosts[name][member.mac] = member.port
        self._started: set[tuple[str, int, int, int]] = set()  # switch, epoch, slot, set
        self.switches = {
            name: make_switch(n, _where(self.fabric[name])[1], self._others(name), hosts[name])
            for n, name in enumerate(self.names)
        }
        self._owners: dict[int, tuple[int, Job]] = {}  # by epoch: seat and job
        self.seats = [self._begin(seat, seat + 1, 0) for seat in range(shape.seats)]

    def _others(self, name: str) -> dict[str, int]:
        """Fabric address of each other switch, and the port of this one that leads there."""
        others = ((other, n) for n, other in enumerate(self.names) if other != name)
        return {_where(self.fabric[other])[1]: n if name == "top" else UP_PORT for other, n in others}

    # ---- lives ------------------------------------------------------------------------------------------------------

    def _members(self, seat: int) -> dict[int, tuple[str, Member]]:
        """The ranks of a seat's jobs, by rank: their switch, and how it knows them."""
        found = {}
        for leaf, name in enumerate(self.names[1:] or self.names):
            for n in range(self.shape.ranks):
                rank = leaf * self.shape.ranks + n
                mac, address = 0x0200_0001_0000 | seat << 8 | rank, f"10.{seat + 1}.{leaf}.{n + 1}"
                found[rank] = name, Member(rank, 1 + n, mac, address, 5000 + rank, 1 + seat * 16 + n)
        return found

    def _begin(self, seat: int, job_id: int, offset: int) -> Seat:
        shape, members = self.shape, self._members(seat)
        epoch = _epoch(self.lives + 1)
        served = shape.kind != "sum"
        policy = shape.kind if shape.kind in ("shared", "chunk") else "sum"
        first = 0 if shape.kind == "shared" else 8 * (seat + 1)
        placed = POOL ^ offset % shape.window if shape.kind == "shared" else 0
        above = server_above(UP_PORT, seat) if served else None

        def share(own: tuple[Member, ...], up: Upstream | None) -> SwitchShare:
            return SwitchShare(job_id, epoch, first, shape.window, seat + 1, own, up, policy, placed)

        if shape.leaves:
            leaves = tuple(
                Member(TOP_RANKS + n, 1 + n, *_where(self.fabric[name]), 1 + seat * 16 + n)
                for n, name in enumerate(self.names[1:])
            )
            shares = {"top": share(leaves, above)}
            for n, name in enumerate(self.names[1:]):
                own = tuple(member for at, member in members.values() if at == name)
                up = Upstream("parent", UP_PORT, *_where(self.fabric["top"]), TOP_RANKS + n)
                shares[name] = share(own, up)
        else:
            shares = {"top": share(tuple(member for _, member in members.values()), above)}
        job = Job(self.lives, shares, shape.window, shape.first_generation, members)
        self.lives += 1
        self._owners[epoch] = seat, job
        for name, each in shares.items():
            self.switches[name].install(each)
        make = ChunkHost if job.chunked else Host
        hosts: dict[int, Host] = {rank: make(job, rank, self.fabric[at]) for rank, (at, _) in members.items()}
        server = (ChunkServer if job.chunked else Server)(job, hosts, self.fabric["top"]) if served else None
        return Seat(job, hosts, server, set())

    def remove(self, number: int, name: str) -> None:
        """One switch forgets a seat's job; its packets and hosts go on."""
        seat = self.seats[number]
        if name not in seat.removed:
            seat.removed.add(name)
            self.switches[name].remove(seat.job.shares[name])

    def restart(self, number: int, other_id: bool, offset: int) -> None:
        """The job ends where it stands, and another begins in its place."""
        for name in self.names:
            self.remove(number, name)
        old = self.seats[number].job.job_id
        self.seats[number] = self._begin(number, old ^ 0x40 if other_id else old, offset)

    def add_tensor(self, number: int, elements: int) -> None:
        seat = self.seats[number]
        seat.job.add_tensor(elements)
        for host in seat.hosts.values():
            if isinstance(host, ChunkHost):
                host.expect()

    # ---- sending ----------------------------------------------------------------------------------------------------

    def senders(self) -> list[Host | ChunkServer]:
        """Who may send something new."""
        return [each for seat in self.seats for each in _everybody(seat) if each.ready]

    def waiting(self) -> list[tuple[Host, int]]:
        """Who waits for what slot."""
        hosts = (host for seat in self.seats for host in seat.hosts.values())
        return [(host, slot) for host in hosts for slot in sorted(host.flights)]

    def send(self, sender: Host | ChunkServer) -> None:
        self._leave(sender, sender.send())

    def resend(self, host: Host, slot: int) -> None:
        self._leave(host, host.resend(slot))

    def _leave(self, sender: Host | Server, data: bytes) -> None:
        if isinstance(sender, Server):
            self.flying.append(Flying("top", UP_PORT, data))
        else:
            name, member = sender.job.ranks[sender.rank]
            self.flying.append(Flying(name, member.port, data))

    # ---- what becomes of a packet -----------------------------------------------------------------------------------

    def lose(self, index: int) -> None:
        self.flying.pop(index)

    def duplicate(self, index: int) -> None:
        self.flying.append(self.flying[index])

    def hold(self, index: int) -> None:
        """A copy of a packet stays somewhere, until it is released."""
        self.held.append(self.flying[index])

    def release(self, index: int) -> None:
        self.flying.append(self.held.pop(index))

    def damage(self, index: int, bits: set[int]) -> None:
        """Flip bits of a packet's payload, once."""
        flying = self.flying[index]
        _, job = self._owners[parsed(flying.frame).header.epoch] if not flying.damaged else (0, None)
        if job is None or (flying.to and not self._may_spoil(flying, job, bits)):
            return
        damaged = with_flipped_bits(flying.frame, bits)
        self.flying[index] = Flying(flying.to, flying.port, damaged, flying.forged, damaged=True)

    def _may_spoil(self, flying: Flying, job: Job, bits: set[int]) -> bool:
        operation = parsed(flying.frame).header.operation
        if operation == constants.OPERATION_NACK:
            return True
        if operation == constants.OPERATION_CONTRIBUTION and not bits.isdisjoint(_NEXT_EXPONENT_BITS):
            return False
        job.spoiled = True
        return True

    def forge(self, index: int, port: int, udp_port: int) -> None:
        """A copy of a packet comes in by another port than its sender's, or from another UDP port (which differs in the
        bits of `udp_port`).
        """
        flying = self.flying[index]
        known = flying.to and not flying.forged and (port != flying.port or udp_port)
        if known and self._for_fabric(flying.to, parsed(flying.frame)):
            data = with_source_port(flying.frame, parsed(flying.frame).source.udp_port ^ udp_port)
            self.flying.append(Flying(flying.to, port, data, forged=True, damaged=flying.damaged))

    def speak_as_fabric(self, index: int, port: int) -> None:
        """A host sends another one a copy of what the fabric has said to that one, who would believe it."""
        flying = self.flying[index]
        if flying.to or flying.port == UP_PORT:
            return
        destination = parsed(flying.frame).destination
        places = [place for seat in self.seats for place in seat.job.ranks.values()]
        (name,) = {at for at, member in places if end_of(member) == destination}
        if not (self.shape.leaves and name == "top"):
            self.flying.append(Flying(name, port, flying.frame, forged=True, damaged=True))

    def hurry(self, index: int, ahead: int) -> None:
        """A copy of a packet for a slot that is at work is many generations ahead."""
        flying = self.flying[index]
        if not flying.to or flying.forged or flying.damaged:
            return
        arrived = parsed(flying.frame)
        header = arrived.header
        known = (flying.to, header.epoch, header.slot, header.generation & 1) in self._started
        if known and self._for_fabric(flying.to, arrived) and header.operation in _ADVANCES:
            later = replace(header, generation=(header.generation + 2 * ahead) & 0xFFFFFFFF)
            data = frame(arrived.source, arrived.destination, later, arrived.words)
            self.flying.append(Flying(flying.to, flying.port, data, forged=True, damaged=True))

    def hammer(self, index: int, times: int) -> None:
        """A packet arrives again and again; what the first copies made is lost."""
        for _ in range(times):
            before = len(self.flying)
            self.deliver(index, keep=True)
            del self.flying[before:]

    def deliver(self, index: int, keep: bool = False) -> None:
        """A packet arrives; with `keep`, a copy of it flies on."""
        flying = self.flying[index] if keep else self.flying.pop(index)
        arrived = parsed(flying.frame)
        if flying.to:
            self.packets += 1
            outcome = self.switches[flying.to].process(flying.port, flying.frame)
            self._account(flying, arrived, outcome)
            self.flying += [self._beyond(flying.to, port, data, flying.damaged) for port, data in outcome.left]
        elif flying.port == UP_PORT:
            seat = next(each for each in self.seats if each.server and each.job.server == arrived.destination)
            for data in seat.server.handle(arrived) if seat.server else []:
                self._leave(seat.server, data)
        else:
            host = next(h for seat in self.seats for h in seat.hosts.values() if h.end == arrived.destination)
            self.results += host.accept(arrived)

    def _for_fabric(self, name: str, arrived: Datagram) -> bool:
        return arrived.destination.address == self.fabric[name].address

    def _account(self, flying: Flying, arrived: Datagram, outcome: Outcome) -> None:
        """Exactly one event, and what that says leaves; nothing of an ended job or of a stranger gets in."""
        what = f"{arrived.header} to {flying.to} by port {flying.port} became {outcome.events}"
        left = [port for port, _ in outcome.left]
        if arrived.source == self.fabric[flying.to]:
            self.counts[constants.DROP_FORGED] += 1
            if outcome.events != (constants.DROP_FORGED,) or left:
                raise Violation(f"{what}, and was said in the fabric's name")
            return
        if not self._for_fabric(flying.to, arrived):
            self.counts[-1] += 1
            if outcome.events or len(left) != 1:
                raise Violation(f"{what}, and was only passing by")
            return
        if len(outcome.events) != 1:
            raise Violation(f"{what}: not one event")
        event = outcome.events[0]
        self.counts[event] += 1
        number, job = self._owners.get(arrived.header.epoch, (0, None))
        if job is None or job is not self.seats[number].job or flying.to in self.seats[number].removed or flying.forged:
            if event not in _DROPS:
                raise Violation(f"{what}, and should have been dropped")
            job = None
        if job is not None and event in _ONCE and job.policy != "shared":
            reached = flying.to, event, arrived.header.epoch, arrived.header.slot, arrived.header.generation
            if reached in self._reached:
                raise Violation(f"{what}, for the second time")
            self._reached.add(reached)
        if event in _STARTS:
            header = arrived.header
            self._started.add((flying.to, header.epoch, header.slot, header.generation & 1))
        if event in _NOWHERE:
            expected: list[int] = []
        elif job is None:
            raise Violation(f"{what}, and nobody knows the job")
        elif event in _TO_GROUP:
            expected = [member.port for member in job.shares[flying.to].members]
        else:
            expected = [flying.port] if event == constants.EVENT_ANSWERED else [UP_PORT]
        if sorted(left) != sorted(expected) or outcome.replicas != (len(expected) if event in _TO_GROUP else 0):
            raise Violation(f"{what}, left by ports {left} with {outcome.replicas} replicas; expected ports {expected}")

    def _beyond(self, name: str, port: int, data: bytes, damaged: bool) -> Flying:
        """What leaves a switch, on its way to who is there.

        Raises:
            Wrong: nobody has that address there.
        """
        destination = parsed(data).destination
        if name == "top" and port == UP_PORT:
            at = [("", UP_PORT, seat.job.server) for seat in self.seats]
        elif name != "top" and port == UP_PORT:
            at = [("top", self.names.index(name), self.fabric["top"])]
        elif name == "top" and self.shape.leaves:
            at = [(self.names[port], UP_PORT, self.fabric[self.names[port]])]
        else:
            places = [place for seat in self.seats for place in seat.job.ranks.values()]
            at = [("", port, end_of(member)) for where, member in places if (where, member.port) == (name, port)]
        for to, by, end in at:
            if end == destination:
                return Flying(to, by, data, damaged=damaged)
        raise Violation(f"{parsed(data)} left {name} by port {port}: nobody there has that address")

    # ---- many steps at once -----------------------------------------------------------------------------------------

    def storm(self, seed: int, steps: int) -> None:
        """Random steps on a bad network."""
        draw = random.Random(seed)
        loss, duplicates, patience = draw.choice([0, 0.05, 0.3]), draw.choice([0, 0.1, 0.3]), draw.choice([0.02, 0.2])
        order = draw.choice(["oldest", "newest", "any"])
        for _ in range(steps):
            senders = self.senders()
            if draw.random() < patience and (waiting := self.waiting()):
                self.resend(*draw.choice(waiting))
            elif self.held and draw.random() < 0.1:
                self.release(draw.randrange(len(self.held)))
            elif senders and draw.random() < 0.4:
                self.send(draw.choice(senders))
            elif self.flying:
                index = {"oldest": 0, "newest": len(self.flying) - 1}.get(order)
                if index is None or draw.random() < 0.1:
                    index = draw.randrange(len(self.flying))
                if draw.random() < duplicates:
                    self.hold(index)
                if draw.random() < loss:
                    self.lose(index)
                else:
                    self.deliver(index)

    def settle(self) -> int:
        """No more losses: all that is under way arrives, and whoever still waits asks again.

        Returns:
            How often everybody had to ask.

        Raises:
            Wrong: somebody never gets a result.
        """
        for rounds in range(SETTLING_ROUNDS + 1):
            self._flush()
            if all(host.finished for seat in self.seats for host in seat.hosts.values()):
                return rounds
            for host, slot in self.waiting():
                self.resend(host, slot)
        stuck = [(host.job.number, host.rank, slot) for host, slot in self.waiting()]
        raise Violation(f"after {SETTLING_ROUNDS} rounds without loss, (life, rank, slot) wait for ever: {stuck}")

    def _flush(self) -> None:
        for _ in range(SETTLING_PACKETS):
            for sender in self.senders():
                self.send(sender)
            if self.flying:
                self.deliver(0)
            elif not self.senders():
                return
        raise Violation(f"{SETTLING_PACKETS} packets, and still {len(self.flying)} more: they breed")


def _epoch(number: int) -> int:
    """Six bits of the number, five times: no damage makes a packet of one job another's (it flips four bits at most)."""
    if number >= 64:
        raise ValueError(f"epoch {number}; there are 63 at most")
    return int(f"{number:06b}" * 5, 2)


def _everybody(seat: Seat) -> Iterator[Host | ChunkServer]:
    yield from seat.hosts.values()
    if isinstance(seat.server, ChunkServer):
        yield seat.server


def _where(end: End) -> tuple[int, str, int]:
    """MAC, address and UDP port as a Share has them."""
    return end.mac, ".".join(str(byte) for byte in end.address.to_bytes(4, "big")), end.udp_port
