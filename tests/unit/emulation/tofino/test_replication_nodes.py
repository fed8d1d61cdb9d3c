"""Multicast groups in a chip's memory, read back as the chip walks them."""

from __future__ import annotations

import pytest

from emulation.tofino.chip_memory import PIPES, Register, Word, group, masks, node
from emulation.tofino.replication_nodes import ROWS, Replication


class Memory:
    """What has been written, and a walk over it by the fields' places that the chip's documentation gives."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}

    def write(self, written: list[Word | Register]) -> None:
        for each in written:
            self.words[each.address] = each.high << 64 | each.low if isinstance(each, Word) else each.value

    def copies(self, number: int, pipe: int = 0) -> list[tuple[int, int]]:
        if not self.words[masks(0, number // 8, 0).address] >> 4 * (number % 8) & 1 << pipe:
            return []
        found, at = [], self.words[group(pipe, number // 4)] >> 20 * (number % 4) & 0xFFFFF
        while at:
            assert at % 2 == 0, "these nodes fill their rows"
            first = self.words[node(at // 2)]
            assert first & 0xF == 1, "a node with a replica's number"
            second = self.words[node((first >> 24 & 0xFFFFF) // 2)]
            assert second & 0xF == 9 and second >> 7 & 1, "a node with a pipe's ports, the last of its list"
            ports = second >> 8 & (1 << 64) - 1
            assert ports.bit_count() == 1
            found.append((128 * (second >> 4 & 3) + ports.bit_length() - 1, first >> 48 & 0xFFFF))
            at = first >> 4 & 0xFFFFF
        return found


@pytest.mark.parametrize("number", [1, 4, 7, 4095, 0xFFFF])
def test_a_group_has_its_copies_in_every_pipe(number: int) -> None:
    memory, groups = Memory(), Replication()
    replicas = [(1, 0), (2, 7), (63, 0xFFFF), (1, 9)]
    memory.write(groups.set(number, replicas))
    assert memory.copies(number) == replicas
    assert [memory.copies(number, pipe) for pipe in PIPES[1:]] == [[]] * 3, "no copies are for them"


def test_groups_of_one_word_leave_each_other_alone() -> None:
    memory, groups = Memory(), Replication()
    for number in range(4, 8):
        memory.write(groups.set(number, [(number, number)]))
    memory.write(groups.set(5, []))
    assert [memory.copies(number) for number in range(4, 8)] == [[(4, 4)], [], [(6, 6)], [(7, 7)]]


def test_nodes_come_back_when_a_group_changes_or_goes() -> None:
    groups, many = Replication(), [(1, n) for n in range(100)]
    for _ in range(ROWS):
        groups.set(1, many)
        groups.set(1, [])
    groups.set(1, many)


def test_a_group_without_room_is_refused_and_changes_nothing() -> None:
    memory, groups = Memory(), Replication()
    memory.write(groups.set(1, [(1, 1)]))
    with pytest.raises(MemoryError, match="multicast group 2"):
        groups.set(2, [(1, n) for n in range(ROWS)])
    memory.write(groups.set(2, [(2, 2)]))
    assert memory.copies(1) == [(1, 1)] and memory.copies(2) == [(2, 2)]
