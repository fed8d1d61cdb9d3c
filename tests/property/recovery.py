"""What hostlib/fabric/aggregation.py does when the ranks leave the fabric, for all ranks of a test at once and checked at each step.

Written beside it, with numpy for the process group, so that one thread can be all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hostlib import _engine
from hostlib._engine import Engine, SumOverflow
from tests.property.fabric import Ranks
from tests.property.tensor import Kind, bits, handed


@dataclass
class Summing:
    """One rank's side of an all-reduce.

    Attributes:
        values: what the engine works on.
        own: what they were.
        wanted: what they must become; None: to be refused.
        done: per block, after a halt.
    """

    kind: Kind
    values: np.ndarray
    own: np.ndarray
    wanted: np.ndarray | None
    ticket: int | None = None
    over: bool = False
    refused: bool = False
    done: np.ndarray | None = None

    @property
    def settled(self) -> bool:
        return self.over or self.refused

    def wait(self, engine: Engine, seconds: float) -> bool:
        """Whether it is done. A ticket that is done is forgotten: never ask twice."""
        if not self.settled:
            assert self.ticket is not None
            try:
                self.over = engine.wait(self.ticket, seconds)
            except SumOverflow:
                self.refused = True
        return self.settled

    def difference(self) -> str:
        assert self.wanted is not None
        mismatches = np.flatnonzero(bits(self.values) != bits(self.wanted))
        at = int(mismatches[0]) if len(mismatches) else -1
        return (
            f"{self.kind}: {len(mismatches)} of {len(self.values)} wrong, first {at}: "
            f"{self.values[at]!r}, not {self.wanted[at]!r}; own {self.own[at]!r}"
        )


def share_results(engines: list[Engine]) -> None:
    """All ranks halted: what one of them has, all have afterwards."""
    kept = [engine.retained() for engine in engines]
    positions = np.stack([positions for positions, _ in kept])
    latest, earliest = positions.max(axis=0), positions.min(axis=0)
    wanted = np.flatnonzero(latest != earliest)
    if len(wanted) == 0:
        return
    owner = np.argmax(positions[:, wanted] == latest[wanted], axis=0)
    shared = np.stack([kept[rank][1][slot] for rank, slot in zip(owner, wanted, strict=True)])
    for engine, (own, words) in zip(engines, kept, strict=True):
        words[wanted] = shared
        taken = np.full_like(own, -1)
        taken[wanted] = latest[wanted]
        engine.restore(taken, words)


def recover(ranks: Ranks, rows: list[list[Summing]]) -> list[np.ndarray]:
    """Leave the fabric and finish every tensor over the hosts; per tensor, which blocks the switch had summed.

    Args:
        rows: by tensor and rank.

    Raises:
        AssertionError: ranks do not agree on what is done, or some bits are not the oracle's.
    """
    for engine in ranks.engines:
        engine.halt()
    share_results(ranks.engines)
    for rank, engine in enumerate(ranks.engines):
        left = dict(engine.unfinished())
        for row in rows:
            summing = row[rank]
            if summing.ticket in left:
                assert not summing.settled, "done, and yet unfinished"
                summing.done = left[summing.ticket]
            elif summing.ticket is not None:
                assert summing.wait(engine, 0), "neither unfinished nor done"
    return [_finish(ranks, number, row) for number, row in enumerate(rows)]


def _finish(ranks: Ranks, number: int, row: list[Summing]) -> np.ndarray:
    elements, wanted, what = ranks.fabric.elements, row[0].wanted, f"tensor {number}, {row[0].kind}"
    blocks = -(-len(row[0].own) // elements)
    if wanted is None:
        # Refused in the fabric by all, or by none and then by the hosts; in any case left as it was.
        refused = {summing.refused for summing in row if summing.ticket is not None}
        assert len(refused) < 2, f"{what}: refused by some ranks"
        assert not any(summing.over for summing in row), f"{what}: summed what may not fit"
    everywhere = all(summing.ticket is not None for summing in row)
    if all(summing.settled for summing in row):
        done = np.full(blocks, wanted is not None)
    else:
        assert not blocks or not any(summing.settled for summing in row), f"{what}: done on some ranks only"
        if not blocks:
            return np.zeros(0, bool)
        masks = [np.zeros(blocks, np.uint8) if summing.done is None else summing.done for summing in row]
        assert all(np.array_equal(mask, masks[0]) for mask in masks), f"{what}: {masks}"
        done = masks[0].astype(bool)
        assert everywhere or not done.any(), f"{what}: sums of a rank that never came"
    of_block = np.repeat(done, elements)[: len(row[0].own)]
    for rank, summing in enumerate(row):
        held, own = bits(summing.values), bits(summing.own)
        assert np.array_equal(held[~of_block], own[~of_block]), f"{what}: rank {rank}: touched, but not done"
        if of_block.any():
            assert wanted is not None, f"{what}: rank {rank}: part of it summed, though it may not fit"
            mismatches = np.flatnonzero(of_block & (held != bits(wanted)))
            assert not len(mismatches), (
                f"{what}: rank {rank}: done, but wrong at {mismatches}: {summing.values[mismatches]}"
            )
    if not all(summing.settled for summing in row):
        _by_hosts(ranks, row, what)
    return done


def _by_hosts(ranks: Ranks, row: list[Summing], what: str) -> None:
    elements, world_size, wanted = ranks.fabric.elements, ranks.world_size, row[0].wanted
    handeds = [handed(summing.kind.dtype, summing.values) for summing in row]
    all_codes = []
    for summing, values in zip(row, handeds, strict=True):
        codes = _engine.own_codes(values, elements, ranks.slots, ranks.lanes, world_size)
        if summing.done is not None:
            codes[summing.done != 0] = 0
        all_codes.append(codes)
    codes = np.max(all_codes, axis=0)
    fits = row[0].kind.dtype != "int32" or not _engine.may_overflow(int(codes.max()), world_size)
    assert fits == (wanted is not None), f"{what}: the hosts {'take' if fits else 'refuse'} it"
    if wanted is None:
        return
    parts = [_engine.quantise_blocks(values, elements, codes, world_size) for values in handeds]
    total = np.sum(parts, axis=0, dtype=np.int64).astype(np.int32)
    for rank, (summing, values) in enumerate(zip(row, handeds, strict=True)):
        done = np.zeros(len(codes), np.uint8) if summing.done is None else summing.done
        _engine.dequantise_blocks(total, values, elements, codes, world_size, summing.kind.average, done)
        assert np.array_equal(bits(summing.values), bits(wanted)), f"{what}: rank {rank}: {summing.difference()}"
