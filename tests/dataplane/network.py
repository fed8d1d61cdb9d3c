"""A job on a network that loses, duplicates and reorders: real switches, model hosts, packets in a bag.

Whoever drives it chooses which packet arrives next. Hosts follow docs/protocol.md; a result that a host accepts and
that is not the exact sum raises Wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from p4.v1 import p4runtime_pb2 as p4rt

from controller.share import Above, Member, Share
from hostlib import layout
from hostlib.wire import Header, check_word, doubled
from tests.dataplane.packets import FABRIC_END, SERVER, Made, mac, members, packet, share, total
from tests.dataplane.target import DELETE, FABRIC, INSERT, Embedded

ELEMENTS = 64
SWITCH_MAC = 0x0200_0000_0001
ROOT_PORT = 9
_sequence = itertools.count()


class Wrong(AssertionError):
    """A host was given something that is not true."""


@dataclass(frozen=True, slots=True)
class Flying:
    """A packet under way: to a switch's port, or to a host by name."""

    to: str
    port: int
    frame: bytes


def values(epoch: int, sender: int, position: int) -> np.ndarray:
    """What a sender has at a position: full-range int32, never the same twice."""
    draw = np.random.default_rng([epoch, sender, position])
    return draw.integers(-(2**31), 2**31, ELEMENTS, dtype=np.int64).astype(np.int32)


def code(epoch: int, sender: int, position: int) -> int:
    return (epoch * 7919 + sender * 104729 + position * 1299709) % 1009


@dataclass
class Life:
    """One life of the job: its shares by switch, and how far everybody is."""

    shares: dict[str, Share]
    policy: str
    slots: int
    first_generation: int
    ranks: dict[int, tuple[str, Member]]  # rank -> its switch and what the switch knows of it
    results: dict[int, dict[int, np.ndarray]] = field(default_factory=dict)
    sent: dict[int, set[int]] = field(default_factory=dict)
    limit: int = 1
    raw: dict[int, dict[int, np.ndarray]] = field(default_factory=dict)  # at the server, by position
    answered: dict[int, Made] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        return next(iter(self.shares.values())).epoch

    def where(self, position: int) -> dict[str, int]:
        generation = (self.first_generation + position // self.slots) & 0xFFFFFFFF
        return {"slot": position % self.slots, "generation": generation}

    def position(self, header: Header) -> int:
        ahead = (header.generation - self.first_generation) & 0xFFFFFFFF
        return ahead * self.slots + header.slot

    def expected(self, position: int) -> np.ndarray:
        if self.policy == "chunk":
            return values(self.epoch, layout.RANK_ALL, position)
        summed = total([values(self.epoch, rank, position) for rank in self.ranks])
        return summed if not self.has_server else (summed.astype(np.int64) * 3).astype(np.uint32).view(np.int32)

    @property
    def has_server(self) -> bool:
        return any(each.above is not None and each.above.kind == "server" for each in self.shares.values())

    def highest(self, position: int) -> int:
        if self.policy == "chunk":
            return code(self.epoch, layout.RANK_ALL, position)
        return max(code(self.epoch, rank, position) for rank in self.ranks)


class Network:
    """Switches, one life of a job on them at a time, and the packets between.

    Args:
        switches: one, or root and leaves.
        kind: sum, server, shared or chunk.
        beside: another job's network on the same switches; shared slots are then the same.
    """

    def __init__(
        self,
        switches: list[Embedded],
        kind: str,
        ranks_per_leaf: int,
        slots: int,
        generation: int,
        beside: Network | None = None,
    ) -> None:
        self.switches = {f"s{n}": switch for n, switch in enumerate(switches)}
        self.addresses = {name: FABRIC if n == 0 else f"10.255.254.{n}" for n, name in enumerate(self.switches)}
        self.kind, self.ranks_per_leaf, self.slots, self.generation = kind, ranks_per_leaf, slots, generation
        self.flying: list[Flying] = []
        self.delivered = self.retransmits = self.first_sends = 0
        self._installed: list[tuple[str, list[p4rt.Entity]]] = []
        self._own: list[tuple[str, list[p4rt.Entity]]] = []
        # Slots keep what earlier networks left there: a new epoch needs no clearing. Only owners of shared slots stay.
        if beside is not None:
            self.offset = beside.offset
        else:
            self.offset = 8 * (next(_sequence) % (layout.SLOTS // 8))
            if kind == "shared" and self.offset == 0:
                switches[0].reset()
            self._own = [
                (name, [each.names.fabric_address(self.addresses[name])]) for name, each in self.switches.items()
            ]
        for name, entities in self._own:
            self.switches[name].write(INSERT, entities)
        self._before = self._total()
        self.lives = [self._begin()]

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def _begin(self) -> Life:
        base = share(1)
        common = {"job_id": base.job_id, "epoch": base.epoch, "group": base.group, "slots": 8, "first_slot": 0}
        if self.kind == "shared":
            common["offset"] = self.offset
        policy = self.kind if self.kind in ("shared", "chunk") else "sum"
        above = SERVER if self.kind != "sum" else None
        names = list(self.switches)
        leaves = names[1:] or names
        shares: dict[str, Share] = {}
        ranks: dict[int, tuple[str, Member]] = {}
        for number, leaf in enumerate(leaves):
            own = tuple(replace(m, rank=m.rank + number * self.ranks_per_leaf) for m in members(self.ranks_per_leaf))
            ranks |= {member.rank: (leaf, member) for member in own}
            up = above
            if len(names) > 1:
                up = Above("parent", ROOT_PORT, SWITCH_MAC, FABRIC, layout.NETFOLD_UDP_PORT, 0x8000 + number)
            shares[leaf] = share(1, members=own, above=up, policy=policy, **common)
        if len(names) > 1:
            tops = tuple(
                Member(
                    0x8000 + n,
                    1 + n,
                    SWITCH_MAC,
                    self.addresses[leaf],
                    layout.NETFOLD_UDP_PORT,
                    500 + base.group % 100 + 100 * n,
                )
                for n, leaf in enumerate(leaves)
            )
            shares = {names[0]: share(1, members=tops, above=above, policy=policy, **common), **shares}
        for name, each in shares.items():
            entities = self.switches[name].names.job([each])
            self.switches[name].write(INSERT, entities)
            self._installed.append((name, entities))
        life = Life(shares, policy, self.slots, self.generation, ranks)
        life.results = {rank: {} for rank in ranks}
        life.sent = {rank: set() for rank in ranks}
        return life

    def abort(self) -> None:
        """The job dies where it stands; a new one takes its slots. Its packets still fly."""
        self.end_life()
        self.lives.append(self._begin())

    def end_life(self) -> None:
        """Take the job's entries away."""
        for name, entities in reversed(self._installed):
            self.switches[name].write(DELETE, reversed(entities))
        self._installed.clear()

    def close(self) -> None:
        self.end_life()
        for name, entities in self._own:
            self.switches[name].write(DELETE, entities)

    # ---- hosts --------------------------------------------------------------------------------------------------

    def may_send(self, rank: int) -> int | None:
        """The rank's next position, if it may go: its slot's last result is there."""
        life = self.life
        position = len(life.sent[rank])
        if position >= life.limit or (position >= life.slots and position - life.slots not in life.results[rank]):
            return None
        return position

    def missing(self, rank: int) -> list[int]:
        """Positions that the rank waits for."""
        life = self.life
        if life.policy == "chunk":
            have = life.results[rank]
            return [p for p in range(life.limit) if p not in have and (p < life.slots or p - life.slots in have)]
        return sorted(life.sent[rank] - life.results[rank].keys())

    def send(self, rank: int, position: int, again: bool = False) -> None:
        """A contribution, or under chunks a NACK."""
        life = self.life
        name, member = life.ranks[rank]
        life.sent[rank].add(position)
        own = values(life.epoch, rank, position)
        made = packet(
            life.shares[name],
            member,
            own,
            **life.where(position),
            next_exponent=doubled(code(life.epoch, rank, position)),
            flags=layout.FLAG_AGAIN if again else 0,
        )
        self.retransmits += again
        self.first_sends += not again
        destination = (*FABRIC_END[:1], self.addresses[name], layout.NETFOLD_UDP_PORT)
        self._fly(name, member.port, replace(made, destination=destination).frame())

    def serve(self, position: int) -> None:
        """The server sends a chunk, for the first time or again."""
        life = self.life
        top = next(iter(life.shares))
        made = packet(
            life.shares[top],
            SERVER,
            life.expected(position),
            **life.where(position),
            next_exponent=doubled(life.highest(position)),
        )
        life.answered[position] = made
        self._fly(top, SERVER.port, made.frame())

    def may_serve(self) -> int | None:
        """The server's next chunk, if every rank has what its slot held before."""
        life = self.life
        position = len(life.answered)
        ready = position < life.slots or all(position - life.slots in have for have in life.results.values())
        return position if position < life.limit and ready else None

    def _fly(self, to: str, port: int, frame: bytes) -> None:
        self.flying.append(Flying(to, port, frame))

    # ---- arrivals -----------------------------------------------------------------------------------------------

    def deliver(self, index: int, keep: bool = False) -> None:
        """One packet arrives; with `keep` a copy of it flies on."""
        flying = self.flying[index] if keep else self.flying.pop(index)
        if flying.to == "server":
            self._at_server(flying.frame)
        elif flying.to == "host":
            self._at_host(flying.frame)
        else:
            self.delivered += 1
            for port, frame in self.switches[flying.to].send(flying.port, frame=flying.frame):
                self._fly(*self._beyond(flying.to, port), frame)

    def _beyond(self, name: str, port: int) -> tuple[str, int]:
        """What is at the other end of a switch's port."""
        names = list(self.switches)
        if port == ROOT_PORT:
            return ("server", 0) if name == names[0] else (names[0], names.index(name))
        if name == names[0] and len(names) > 1:
            return names[port], ROOT_PORT
        return "host", 0

    def _at_host(self, frame: bytes) -> None:
        header, got = parsed(frame)
        life = self.life
        if header.epoch != life.epoch or header.operation not in (layout.OPERATION_RESULT, layout.OPERATION_CHUNK):
            return  # An older life's: the socket of that life is closed.
        _, member = life.ranks[header.rank]
        if int.from_bytes(frame[36:38], "big") != member.udp_port or frame[:6] != member.mac.to_bytes(6, "big"):
            raise Wrong(f"rank {header.rank} was sent what is addressed to another: {header}")
        position = life.position(header)
        if position in life.results[header.rank] or position not in self.missing(header.rank):
            return
        of = 1 if life.has_server else len(life.ranks)
        if header.check != check_word(header, got, of):
            raise Wrong(f"check word of {header}")
        if not np.array_equal(got, life.expected(position)):
            raise Wrong(f"rank {header.rank}, position {position}: not the sum")
        if header.next_exponent != doubled(life.highest(position)):
            raise Wrong(f"rank {header.rank}, position {position}: not the largest exponent")
        life.results[header.rank][position] = got

    def _at_server(self, frame: bytes) -> None:
        header, got = parsed(frame)
        life = self.life
        if header.epoch != life.epoch:
            return
        position = life.position(header)
        if header.operation == layout.OPERATION_NACK:
            if position in life.answered:
                self.serve(position)
            return
        if position in life.answered:
            if life.policy == "shared":  # by unicast to who asked, outside the fabric
                again = life.answered[position]
                _, member = life.ranks[header.rank]
                to = replace(
                    again,
                    header=replace(again.header, rank=header.rank),
                    source=FABRIC_END,
                    destination=(mac(member.mac), member.address, member.udp_port),
                )
                self._fly("host", 0, to.frame())
            else:
                self._fly(next(iter(life.shares)), SERVER.port, life.answered[position].frame())
            return
        if header.operation == layout.OPERATION_SUM:
            summed = got
            of = len(life.ranks)
        else:
            raw = life.raw.setdefault(position, {})
            raw[header.rank] = got
            if len(raw) < len(life.ranks):
                return
            summed, of = total(list(raw.values())), 0
        if of and header.check != check_word(header, summed, of):
            raise Wrong(f"check word of the server's sum {header}")
        if not np.array_equal((summed.astype(np.int64) * 3).astype(np.uint32).view(np.int32), life.expected(position)):
            raise Wrong(f"the server's sum at position {position}")
        top = next(iter(life.shares))
        life.answered[position] = packet(
            life.shares[top],
            SERVER,
            life.expected(position),
            **life.where(position),
            next_exponent=doubled(life.highest(position)),
        )
        self._fly(top, SERVER.port, life.answered[position].frame())

    # ---- the end ------------------------------------------------------------------------------------------------

    def settle(self, lose: Callable[[], bool] = lambda: False) -> int:
        """Everybody sends all and asks again until all have all; how many rounds that took.

        Raises:
            Wrong: it does not end.
        """
        for done in range(10 + 3 * self.life.limit):
            budget = 200_000
            while self.flying:
                if lose():
                    self.flying.pop(0)
                else:
                    self.deliver(0)
                budget -= 1
                if budget == 0:
                    raise Wrong("packets breed packets without end")
            if all(len(have) == self.life.limit for have in self.life.results.values()):
                return done
            if self.life.policy == "chunk":
                while (position := self.may_serve()) is not None:
                    self.serve(position)
            for rank in self.life.ranks:
                for position in self.missing(rank):
                    self.send(rank, position, again=True)
                while self.life.policy != "chunk" and (position := self.may_send(rank)) is not None:
                    self.send(rank, position)
        have = {rank: len(results) for rank, results in self.life.results.items()}
        raise Wrong(f"stuck: of {self.life.limit} results the ranks have {have}")

    def counted(self) -> int:
        """Packets that the switches' ingress counters know of."""
        return self._total() - self._before

    def _total(self) -> int:
        return sum(sum(switch.counts()["events"].values()) for switch in self.switches.values())


def parsed(frame: bytes) -> tuple[Header, np.ndarray]:
    payload = frame[42:]
    return Header.unpack(payload), np.frombuffer(payload, ">i4", ELEMENTS, layout.HEADER_BYTES).astype(np.int32)
