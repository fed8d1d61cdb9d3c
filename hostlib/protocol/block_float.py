"""Block floating point in numpy: the reference that hostlib/native/block_float/kernels.cpp must equal bit for bit.

A dtype is given by name: "float32", "float16", "bfloat16" or "int32". numpy has no bfloat16; its arrays here are uint16
with its bits.

Source: docs/protocol.md, "Numbers".
"""

from __future__ import annotations

import numpy as np

from hostlib.protocol import constants
from hostlib.protocol.openings import TensorCut

SUM_BITS = 30
COUNT_PLUS_INF, COUNT_MINUS_INF, COUNT_NAN = 1, 1 << 10, 1 << 20
STORED: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
    "int32": np.int32,
}


def widened(dtype: str, x: np.ndarray) -> np.ndarray:
    """Convert floats of any of the types to float32, exactly."""
    return (x.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else x.astype(np.float32)


def narrowed(dtype: str, x: np.ndarray) -> np.ndarray:
    """Round float32 to nearest even into one of the types. A NaN must be quiet, with an empty payload."""
    if dtype == "bfloat16":
        wide = x.view(np.uint32).astype(np.uint64)
        return ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    with np.errstate(over="ignore", under="ignore"):
        return x.astype(STORED[dtype])


def headroom(world_size: int) -> int:
    """ceil(log2(world size)): bits that a sum over all ranks needs more than its terms."""
    return (world_size - 1).bit_length()


def block_code(dtype: str, x: np.ndarray) -> int:
    """Exponent code of a block of floats; magnitude code of an int32 tensor."""
    if dtype == "int32":
        largest = int(np.abs(x.astype(np.int64)).max(initial=0))
        return constants.EXPONENT_BIAS + largest.bit_length() if largest else constants.EXPONENT_ZERO
    x = widened(dtype, x)
    if not np.isfinite(x).all():
        return constants.EXPONENT_SPECIAL
    largest = np.abs(x).max(initial=0)
    if largest == 0:
        return constants.EXPONENT_ZERO
    return int(np.frexp(largest)[1]) + constants.EXPONENT_BIAS


def may_overflow(code: int, world_size: int) -> bool:
    """Whether the sum of `world_size` tensors with a magnitude code might overflow int32."""
    return code != constants.EXPONENT_ZERO and code - constants.EXPONENT_BIAS + headroom(world_size) > 31


def quantise(dtype: str, x: np.ndarray, code: int, world_size: int) -> np.ndarray:
    """Values (E,) -> int32 (E,) under an agreed code; int32 values unchanged."""
    if dtype == "int32":
        return x.copy()
    x = widened(dtype, x)
    if code == constants.EXPONENT_ZERO:
        return np.zeros(x.shape, np.int32)
    if code == constants.EXPONENT_SPECIAL:
        counts = np.where(np.isnan(x), COUNT_NAN, 0) + np.where(x == np.inf, COUNT_PLUS_INF, 0)
        return (counts + np.where(x == -np.inf, COUNT_MINUS_INF, 0)).astype(np.int32)
    shift = SUM_BITS - headroom(world_size) - (code - constants.EXPONENT_BIAS)
    return np.rint(np.ldexp(x.astype(np.float64), shift)).astype(np.int32)


def dequantise(dtype: str, total: np.ndarray, code: int, world_size: int, average: bool) -> np.ndarray:
    """Sum of quantised blocks, int32 (E,) -> values (E,); floats divided by the world size when `average`."""
    if dtype == "int32":
        return total.copy()
    if code == constants.EXPONENT_ZERO:
        return np.zeros(total.shape, STORED[dtype])
    if code == constants.EXPONENT_SPECIAL:
        plus, minus, nan = total & 1023, total >> 10 & 1023, total >> 20
        infinite = np.where(plus > 0, np.float32(np.inf), np.float32(-np.inf))
        special = np.where((nan != 0) | ((plus > 0) == (minus > 0)), np.float32(np.nan), infinite)
        return narrowed(dtype, special.astype(np.float32))
    shift = (code - constants.EXPONENT_BIAS) + headroom(world_size) - SUM_BITS
    with np.errstate(over="ignore", under="ignore"):
        # To float32 first, then scaled, then divided: the engine rounds in that order.
        scaled = np.ldexp(total.astype(np.float32).astype(np.float64), shift).astype(np.float32)
        return narrowed(dtype, scaled / np.float32(world_size) if average else scaled)


def is_possible(dtype: str, total: np.ndarray, code: int, world_size: int) -> bool:
    """Whether quantised blocks can have this sum, int32 (E,)."""
    total = total.astype(np.int64)
    if code == constants.EXPONENT_ZERO:
        return not total.any()
    if dtype == "int32":
        return bool((np.abs(total) <= world_size * (2 ** (code - constants.EXPONENT_BIAS) - 1)).all())
    if code == constants.EXPONENT_SPECIAL:
        counts = (total & 1023) + (total >> 10 & 1023) + (total >> 20)
        return bool(((total >= 0) & (counts <= world_size)).all())
    return bool((np.abs(total) <= 1 << SUM_BITS).all())


def pack(dtype: str, x: np.ndarray, elements: int, code: int, world_size: int) -> np.ndarray:
    """Up to `elements` values -> uint8 (4 elements,) in network order, zeros at the end."""
    words = np.zeros(elements, ">i4")
    words[: len(x)] = quantise(dtype, x, code, world_size)
    return words.view(np.uint8)


def unpack(dtype: str, wire: np.ndarray, count: int, code: int, world_size: int, average: bool) -> np.ndarray:
    """Inverse of pack: uint8 (4 E,) -> the first `count` values."""
    return dequantise(dtype, wire.view(">i4")[:count].astype(np.int32), code, world_size, average)


def error_bound(code: int, world_size: int) -> float:
    """Error bound of a sum of float blocks, before it is rounded to its own type.

    Raises:
        ValueError: the code of a block with NaN or Inf.
    """
    if code == constants.EXPONENT_SPECIAL:
        raise ValueError("a block with NaN or Inf is not summed: no bound holds")
    if code == constants.EXPONENT_ZERO:
        return 0.0
    return world_size * 2.0 ** (code - constants.EXPONENT_BIAS + headroom(world_size) - SUM_BITS - 1)


def allreduce(
    tensors: list[np.ndarray],
    elements: int,
    slots: int,
    average: bool = False,
    dtype: str = "float32",
    lanes: int = 1,
) -> np.ndarray:
    """Reference result of an all-reduce on every rank.

    Args:
        tensors: one per rank, shape (N,), stored as STORED[dtype].
        elements: per packet.
        slots: of each lane; prologues agree on the codes of as many blocks.
        average: divide by the number of ranks; floats only.
        dtype: by name.
        lanes: the tensor's B chunks are split into as many contiguous ranges; lane i sums chunks [i B // lanes, (i + 1)
            B // lanes) as a tensor of its own.

    Raises:
        OverflowError: the sum of int32 tensors might overflow int32.
        ValueError: an average of int32 tensors was requested.
    """
    if average and dtype == "int32":
        raise ValueError("int32 tensors can be summed, not averaged")
    world_size, count = len(tensors), len(tensors[0])
    if dtype == "int32" and may_overflow(max(block_code(dtype, t) for t in tensors), world_size):
        raise OverflowError(f"the sum of {world_size} int32 tensors may not fit int32")
    cut = TensorCut(elements, slots, lanes, world_size)
    edges = range(0, count, elements)
    codes = np.array([max(block_code(dtype, t[i : i + elements]) for t in tensors) for i in edges], np.uint16)
    cut.round_openings(codes, count, dtype)
    out = [np.zeros(0, STORED[dtype])]
    for start, code in zip(edges, codes.tolist(), strict=True):
        blocks = [quantise(dtype, t[start : start + elements], code, world_size).astype(np.int64) for t in tensors]
        out.append(dequantise(dtype, np.asarray(sum(blocks)).astype(np.int32), code, world_size, average))
    return np.concatenate(out)
