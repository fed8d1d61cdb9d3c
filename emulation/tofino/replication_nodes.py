"""Multicast groups as a Tofino 1 keeps them: for each copy a node with its replica number, and one with its port."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from emulation.tofino.chip_memory import (
    GROUPS_PER_WORD,
    MASKS_PER_REGISTER,
    PIPES,
    Register,
    Word,
    group,
    masks,
    node,
)

ROWS = 0x1000  # of the chip's 417,792; row 0 stays empty, as its address says that there is no next node
_BITS = 20  # of a node's address: two to a row
_REPLICA, _PORTS = 1, 9  # types of node
_LAST = 1 << 7
_PORTS_PER_PIPE = 128


class Replication:
    """The groups of all pipes, which are the same."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}
        self._free = list(range(ROWS - 1, 0, -1))
        self._first: dict[int, int] = {}
        self._masks: dict[int, int] = {}

    def set(self, number: int, replicas: Sequence[tuple[int, int]]) -> list[Word | Register]:
        """What gives a group these (egress port, replica) pairs; none remove it.

        Raises:
            MemoryError: no node is free.
        """
        if len(self._free) + len(self._rows.get(number, ())) < 2 * len(replicas):
            raise MemoryError(f"multicast group {number}: no nodes are free")
        self._free += self._rows.pop(number, [])
        rows = self._rows[number] = [self._free.pop() for _ in range(2 * len(replicas))]
        written: list[Word | Register] = list(self._nodes(rows, replicas))
        self._masks[number] = sum(1 << pipe for pipe in {port // _PORTS_PER_PIPE for port, _ in replicas})
        self._first[number] = rows[0] << 1 if rows else 0
        if not rows:
            del self._rows[number], self._first[number], self._masks[number]
        # The group points to its nodes when they are there.
        written += [Word(group(pipe, number // GROUPS_PER_WORD), *self._word(number)) for pipe in PIPES]
        return written + [masks(pipe, number // MASKS_PER_REGISTER, self._mask(number)) for pipe in PIPES]

    def _nodes(self, rows: Sequence[int], replicas: Sequence[tuple[int, int]]) -> Iterator[Word]:
        for position, (port, replica) in enumerate(replicas):
            own, ports = rows[2 * position : 2 * position + 2]
            following = rows[2 * position + 2] << 1 if 2 * position + 2 < len(rows) else 0
            pipe, channel = divmod(port, _PORTS_PER_PIPE)
            bits = _PORTS | pipe << 4 | _LAST | 1 << 8 + channel
            yield _row(ports, bits)
            yield _row(own, _REPLICA | following << 4 | ports << 1 << 4 + _BITS | replica << 48)

    def _mask(self, number: int) -> int:
        base = number // MASKS_PER_REGISTER * MASKS_PER_REGISTER
        return sum(self._masks.get(base + place, 0) << 4 * place for place in range(MASKS_PER_REGISTER))

    def _word(self, number: int) -> tuple[int, int]:
        base = number // GROUPS_PER_WORD * GROUPS_PER_WORD
        bits = sum(self._first.get(base + place, 0) << _BITS * place for place in range(GROUPS_PER_WORD))
        return bits & (1 << 64) - 1, bits >> 64


def _row(row: int, bits: int) -> Word:
    return Word(node(row), bits & (1 << 64) - 1, bits >> 64)
