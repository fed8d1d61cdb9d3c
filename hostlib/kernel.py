"""The packet engine's kernels in numpy: the oracle that hostlib/native/kernel.cpp must equal bit for bit.

Source: docs/protocol.md, "Numbers".
"""

from __future__ import annotations

import numpy as np

from hostlib import layout

SUM_BITS = 30
COUNT_PLUS_INF, COUNT_MINUS_INF, COUNT_NAN = 1, 1 << 10, 1 << 20


def headroom(world_size: int) -> int:
    """ceil(log2(world size)): bits that a sum of so many needs more than its parts."""
    return (world_size - 1).bit_length()


def block_code(x: np.ndarray) -> int:
    """Exponent code of a block. x: float32, any shape."""
    if not np.isfinite(x).all():
        return layout.EXPONENT_SPECIAL
    largest = np.abs(x).max(initial=0)
    if largest == 0:
        return layout.EXPONENT_ZERO
    return int(np.frexp(largest)[1]) + layout.EXPONENT_BIAS


def magnitude_code(x: np.ndarray) -> int:
    """Magnitude code of an int32 tensor."""
    largest = int(np.abs(x.astype(np.int64)).max(initial=0))
    return layout.EXPONENT_BIAS + largest.bit_length() if largest else layout.EXPONENT_ZERO


def may_overflow(code: int, world_size: int) -> bool:
    """Whether the sum of so many tensors of a magnitude code might not fit int32."""
    return code != layout.EXPONENT_ZERO and code - layout.EXPONENT_BIAS + headroom(world_size) > 31


def quantise(x: np.ndarray, code: int, world_size: int) -> np.ndarray:
    """float32 (E,) -> int32 (E,) under an agreed code."""
    if code == layout.EXPONENT_ZERO:
        return np.zeros(x.shape, np.int32)
    if code == layout.EXPONENT_SPECIAL:
        counts = np.where(np.isnan(x), COUNT_NAN, 0) + np.where(x == np.inf, COUNT_PLUS_INF, 0)
        return (counts + np.where(x == -np.inf, COUNT_MINUS_INF, 0)).astype(np.int32)
    shift = SUM_BITS - headroom(world_size) - (code - layout.EXPONENT_BIAS)
    return np.rint(np.ldexp(x.astype(np.float64), shift)).astype(np.int32)


def dequantise(total: np.ndarray, code: int, world_size: int, average: bool) -> np.ndarray:
    """Sum of quantised blocks, int32 (E,) -> float32 (E,)."""
    if code == layout.EXPONENT_ZERO:
        return np.zeros(total.shape, np.float32)
    if code == layout.EXPONENT_SPECIAL:
        plus, minus, nan = total & 1023, total >> 10 & 1023, total >> 20
        infinite = np.where(plus > 0, np.float32(np.inf), np.float32(-np.inf))
        return np.where((nan > 0) | ((plus > 0) == (minus > 0)), np.float32(np.nan), infinite).astype(np.float32)
    shift = (code - layout.EXPONENT_BIAS) + headroom(world_size) - SUM_BITS
    with np.errstate(over="ignore", under="ignore"):
        # First to float32, then scaled: in that order the engine rounds.
        scaled = np.ldexp(total.astype(np.float32).astype(np.float64), shift).astype(np.float32)
        return scaled / np.float32(world_size) if average else scaled


def allreduce(tensors: list[np.ndarray], elements: int, slots: int, average: bool = False) -> np.ndarray:
    """What every rank must end with: float32 tensors, shape (N,) each, summed as the slot protocol does."""
    world_size, count = len(tensors), len(tensors[0])
    blocks = [[t[i : i + elements] for i in range(0, count, elements)] for t in tensors]
    out = []
    opening = max((block_code(t[: slots * elements]) for t in tensors), default=0)
    for j in range(len(blocks[0])):
        code = opening if j < slots else max(block_code(rank[j]) for rank in blocks)
        total = sum(quantise(rank[j], code, world_size).astype(np.int64) for rank in blocks)
        out.append(dequantise(np.asarray(total).astype(np.int32), code, world_size, average))
    return np.concatenate(out) if out else np.zeros(0, np.float32)
