"""Damage in a switch and on its links: `python -m tests.chaos.damage --results 1000000 --seed 1`.

Packet engines sum tensors through the committed P4 program in the embedded switch. One packet in ten meets damage of
two to four bits: on its way there, in what the switch stores of it, or on its way back. Whatever a rank believes is
compared with the oracle's bits, and at the end of each round the hosts finish what the switch could not.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from controller.jobs.switch_share import Member, SwitchShare
from emulation.switch.compiler.bmv2_json import Register
from hostlib._engine import Engine
from hostlib.protocol import constants
from hostlib.protocol.addresses import FABRIC_ADDRESS, SWITCH_MAC, udp_host_mac
from hostlib.protocol.header import Header
from hostlib.schedules.schedule import FabricUse
from tests.property import frame
from tests.property.fabric import FakeFabric, Faults, Pool, Ranks, flipped
from tests.property.model import end_of
from tests.property.recovery import Summing, recover
from tests.property.switch import ProgramSwitch
from tests.property.tensor import STYLES, Kind, handed

RATE = 0.1
FLIPS = (2, 4)
SLOTS, GENERATIONS = 128, 8
QUIET_S = 0.025  # without a new result, so much is left to the hosts
REGISTERS = {"next exponent": "exponents", "check word": "checks", "bitmap": "bitmaps"}
PLACES = ("on the way up", "elements", *REGISTERS, "on the way down")
WORLDS = (2, 2, 3, 4, 8)
DTYPES = ("float32", "float32", "float16", "bfloat16", "int32")
End = tuple[str, int]


class DamagedSwitch(FakeFabric):
    """The compiled program where `FakeFabric` has a few lines of Python, with damage in its registers.

    Attributes:
        damage: how often, by place.
    """

    def __init__(self, rate: float, seed: int) -> None:
        self._program = ProgramSwitch(0, FABRIC_ADDRESS, {}, {})
        self._dataplane = self._program._pipeline.dataplane
        registers = self._program._pipeline.program.registers
        self._registers = {name.rpartition(".")[2]: register for name, register in registers.items()}
        self._rate, self._draw = rate, random.Random(seed)
        self._heads: dict[End, tuple[int, bytes]] = {}
        self._ends: dict[int, End] = {}
        self._share: SwitchShare | None = None
        self.damage: Counter[str] = Counter()
        super().__init__(frame.ELEMENTS, Faults(), Faults(corrupt=rate, flips=FLIPS), seed)

    def admit(self, job: int, epoch: int, pools: tuple[Pool, ...]) -> None:
        (pool,) = pools
        members = tuple(
            Member(rank, 1 + rank, udp_host_mac(1 + rank), f"10.0.1.{1 + rank}", 5000 + rank, 1 + rank)
            for rank in range(len(pool.ends))
        )
        self._share = SwitchShare(job, epoch, pool.first_slot, pool.slots, 1, members)
        self._program.install(self._share)
        fabric = frame.End.at(SWITCH_MAC, FABRIC_ADDRESS, constants.NETFOLD_UDP_PORT)
        nothing = Header(), np.zeros(frame.ELEMENTS, np.uint32)
        self._ends = {member.port: end for member, end in zip(members, pool.ends, strict=True)}
        self._heads = {
            end: (member.port, frame.frame(end_of(member), fabric, *nothing)[: frame.ADDRESSED_BYTES])
            for member, end in zip(members, pool.ends, strict=True)
        }

    def expel(self, job: int, epoch: int) -> None:
        if self._share is not None:
            self._program.remove(self._share)

    def _judged(self, data: bytes, source: End) -> str:
        if source not in self._heads:
            return "source"  # a rank of an earlier, larger job
        port, head = self._heads[source]
        place = self._draw.choice(PLACES[:-1]) if self._draw.random() < self._rate else None
        if place == PLACES[0]:
            self.damage[place] += 1
            data = flipped(data, *self._bits(8 * len(data)))
        left = self._dataplane.process(port, head + data)
        if place is not None and place != PLACES[0]:
            self._damage_stored(place, Header.unpack(data))
        for out, packet in left:
            self._carry(False, packet[frame.ADDRESSED_BYTES :], self._ends[out])
        return "completed" if len(left) > 1 else "answered" if left else "absorbed"

    def _damaged(self, data: bytes, faults: Faults) -> bytes:
        self.damage[PLACES[-1]] += 1
        return super()._damaged(data, faults)

    def _damage_stored(self, place: str, header: Header) -> None:
        """Flip bits of the set that a packet was for."""
        self.damage[place] += 1
        at = header.slot % constants.SLOTS << 1 | header.generation & 1
        if place in REGISTERS:
            self._flip(self._registers[REGISTERS[place]], at, self._bits(32))
            return
        for bit in self._bits(32 * frame.ELEMENTS):
            self._flip(self._registers[f"values_{bit // 32:02x}"], at, [bit % 32])

    def _flip(self, register: Register, at: int, bits: list[int]) -> None:
        with self._dataplane.writing():
            value = self._dataplane.register(register, at) ^ sum(1 << bit for bit in bits)
            self._dataplane.set_register(register, at, value)

    def _bits(self, of: int) -> list[int]:
        return self._draw.sample(range(of), self._draw.randint(*FLIPS))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A campaign's figures.

    Attributes:
        believed: chunk results that ranks took; each was compared with the oracle's.
        refused: results that ranks refused as damaged.
        damage: times, by place.
        rounds: each with a job of its own.
        by_hosts: blocks that the hosts summed in the end.
    """

    believed: int
    refused: int
    damage: dict[str, int]
    rounds: int
    by_hosts: int


def campaign(results: int, seed: int) -> Outcome:
    """Damage packets until ranks have believed so many results.

    Raises:
        AssertionError: a rank believed a result that is not the oracle's, or ranks disagree on what is done.
    """
    draw = random.Random(seed)
    switch = DamagedSwitch(RATE, seed)
    engines = [Engine("127.0.0.1") for _ in range(max(WORLDS))]
    believed = refused = rounds = by_hosts = 0
    try:
        while believed < results:
            rounds += 1
            ranks = Ranks(switch, engines[: draw.choice(WORLDS)], 1, SLOTS, [0] * max(WORLDS), [], FabricUse.SUM)
            before = ranks.stats("chunks"), ranks.stats("damaged")
            by_hosts += _round(ranks, draw, epoch=rounds)
            believed += ranks.stats("chunks") - before[0]
            refused += ranks.stats("damaged") - before[1]
            switch.expel(ranks.job, rounds)
            if switch.broken is not None:
                break  # close() raises it
    finally:
        for engine in engines:
            engine.halt()
        switch.close()
    return Outcome(believed, refused, {place: switch.damage[place] for place in PLACES}, rounds, by_hosts)


def _round(ranks: Ranks, draw: random.Random, epoch: int) -> int:
    """One tensor, as far as the switch gets; returns how many blocks were left to the hosts."""
    world, elements = ranks.world_size, ranks.fabric.elements
    ranks.windows = [0] * world
    kind = Kind(draw.choice(DTYPES), SLOTS * GENERATIONS * elements, draw.choice(STYLES), False, draw.getrandbits(32))
    inputs = [kind.values(rank, world) for rank in range(world)]
    wanted = kind.wanted(inputs, elements, SLOTS, 1)
    row = [Summing(kind, x, x.copy(), wanted) for x in inputs]
    ranks.configure(epoch)
    for summing, engine in zip(row, ranks.engines, strict=True):
        summing.ticket = engine.submit(handed(kind.dtype, summing.values), kind.average)
    chunks, since = -1, time.monotonic()
    while time.monotonic() < since + QUIET_S and any(engine.silent() for engine in ranks.engines):
        if ranks.stats("chunks") != chunks:
            chunks, since = ranks.stats("chunks"), time.monotonic()
        time.sleep(0.002)
    (done,) = recover(ranks, [row])
    return int((~done).sum())


def table(outcome: Outcome) -> Table:
    """The figures, by place."""
    shown = Table("damage of two to four bits", "times")
    for place, times in outcome.damage.items():
        shown.add_row(place, f"{times:,}")
    shown.add_section()
    shown.add_row("results refused", f"{outcome.refused:,}")
    shown.add_row("results believed, all of them right", f"{outcome.believed:,}")
    shown.add_row(f"blocks left to the hosts, in {outcome.rounds:,} rounds", f"{outcome.by_hosts:,}")
    return shown


@click.command()
@click.option("--results", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(results: int, seed: int) -> None:
    """Damage packets until ranks have believed so many results."""
    began = time.monotonic()
    outcome = campaign(results, seed)
    Console().print(table(outcome))
    Console().print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
