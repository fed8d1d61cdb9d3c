"""Fold statements that repeat with consecutive indices into loops, so that the C compiler uses SIMD for vectors."""

from __future__ import annotations

import re

INDEX = re.compile(r"\[@(\d+)@\]")
ARRAY = re.compile(r"([\w.>\-]*[\w\])])\[@(\d+)@\]")  # the end of the array's expression, and the index
LOOP_MINIMUM = 8


def fold(lines: list[str]) -> list[str]:
    """Turn statements that repeat with consecutive indices into loops, and the remaining index marks into plain
    indices.

    `r[@0@] = f[@3@]; r[@1@] = f[@4@]; ...` becomes `for (i...) r[0 + i] = f[3 + i];`, also for groups of up to three
    statements.
    """
    folded: list[str] = []
    at = 0
    while at < len(lines):
        for period in (1, 2, 3):
            count = _repeats(lines, at, period)
            if count >= LOOP_MINIMUM:
                block = lines[at : at + period]
                if _independent(block):
                    folded.append("INDEPENDENT")
                folded.append(f"for (uint32_t i = 0; i < {count}; i++) {{")
                folded += ["    " + INDEX.sub(r"[\1 + i]", line) for line in block]
                folded.append("}")
                at += count * period
                break
        else:
            folded.append(INDEX.sub(r"[\1]", lines[at]))
            at += 1
    return folded


def _repeats(lines: list[str], at: int, period: int) -> int:
    """How often the `period` statements at `at` repeat with every index incremented each time."""
    first = lines[at : at + period]
    if len(first) < period or not all(INDEX.search(line) for line in first):
        return 0
    shapes = [INDEX.sub("[@@]", line) for line in first]
    starts = [[int(n) for n in INDEX.findall(line)] for line in first]
    count = 1
    while True:
        block = lines[at + count * period : at + (count + 1) * period]
        if len(block) < period or [INDEX.sub("[@@]", line) for line in block] != shapes:
            return count
        if [[int(n) for n in INDEX.findall(line)] for line in block] != [[n + count for n in s] for s in starts]:
            return count
        count += 1


def _independent(block: list[str]) -> bool:
    """Whether iterations of a loop are independent: each array is used in one place only."""
    places: dict[str, set[str]] = {}
    for line in block:
        for array, index in ARRAY.findall(line):
            places.setdefault(array, set()).add(index)
    return all(len(indices) == 1 for indices in places.values())
