"""The packet engine's kernels in Triton, for tensors on a GPU; they must equal hostlib/protocol/block_float.py bit for
bit.

All steps but the division of an average work on the bits as integers, so nothing depends on how a compiler contracts,
reorders or flushes floating point. Each is one pass over the tensor. Under TRITON_INTERPRET=1 they run on CPU tensors.

Source: docs/protocol.md, "Numbers".
"""

# No postponed annotations here: Triton reads those of kernels.
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hostlib.protocol import constants as layout
from hostlib.protocol.block_float import COUNT_MINUS_INF, COUNT_NAN, COUNT_PLUS_INF, SUM_BITS, headroom
from hostlib.protocol.openings import SPECIAL_CODE

TILE = 2048  # values per program

FLOAT32, FLOAT16, BFLOAT16 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
KINDS = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}

ZERO, SPECIAL, BIAS = tl.constexpr(layout.EXPONENT_ZERO), tl.constexpr(SPECIAL_CODE), tl.constexpr(layout.EXPONENT_BIAS)
PLUS_INF, MINUS_INF, NAN = tl.constexpr(COUNT_PLUS_INF), tl.constexpr(COUNT_MINUS_INF), tl.constexpr(COUNT_NAN)
# Fields of float32's bits.
MAGNITUDE, INFINITE, QUIET_NAN = tl.constexpr(0x7FFFFFFF), tl.constexpr(0x7F800000), tl.constexpr(0x7FC00000)
FRACTION, HIDDEN, SIGN = tl.constexpr(0x7FFFFF), tl.constexpr(0x800000), tl.constexpr(-(1 << 31))
WIDTH = tl.constexpr(23)


@triton.jit
def _tile(count, ELEMENTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile whose rows are blocks: (row numbers, offsets of the values, mask)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    place = row.to(tl.int64)[:, None] * ELEMENTS + column[None, :]
    return row, place, (column < ELEMENTS)[None, :] & (place < count)


@triton.jit
def _widened(values, place, there, KIND: tl.constexpr):
    """Load values as float32's bits."""
    bits = tl.load(values + place, mask=there, other=0)
    if KIND == BFLOAT16:
        bits = bits.to(tl.int32) << 16
    if KIND == FLOAT16:
        bits = bits.to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    return bits


@triton.jit
def _shifted_right(x, by):
    """x / 2^by, rounded to nearest even, for 0 <= x < 2^24 and by in 1..25."""
    return (x + (1 << (by - 1)) - 1 + ((x >> by) & 1)) >> by


@triton.jit
def _clamped(x, least: tl.constexpr, most: tl.constexpr):
    return tl.minimum(tl.maximum(x, least), most)


@triton.jit(do_not_specialize=["blocks"])
def _block_codes(values, codes, count, blocks, KIND: tl.constexpr, ELEMENTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    row, place, there = _tile(count, ELEMENTS, ROWS, COLUMNS)
    largest = tl.max(_widened(values, place, there, KIND) & MAGNITUDE, axis=1)
    field = largest >> WIDTH
    # A denormal's highest bit is that of its bits as an integer.
    highest = (largest.to(tl.float32).to(tl.int32, bitcast=True) >> WIDTH) - 126
    code = tl.where(field > 0, field - 126, highest - 149) + BIAS
    code = tl.where(largest == 0, ZERO, tl.where(field == 255, SPECIAL, code))
    tl.store(codes + row, code.to(tl.int16), mask=row < blocks)


@triton.jit(do_not_specialize=["blocks"])
def _quantise(values, codes, words, count, blocks, KIND: tl.constexpr, ELEMENTS: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    row, place, there = _tile(count, ELEMENTS, ROWS, COLUMNS)
    code = tl.load(codes + row, mask=row < blocks, other=0).to(tl.int32)[:, None]
    bits = _widened(values, place, there, KIND)
    magnitude = bits & MAGNITUDE
    field = magnitude >> WIDTH
    fraction = (magnitude & FRACTION) | tl.where(field > 0, HIDDEN, 0)
    left = tl.maximum(field, 1) - 150 + PLACES - (code - BIAS)
    word = tl.where(left >= 0, fraction << _clamped(left, 0, 30), _shifted_right(fraction, _clamped(-left, 1, 25)))
    word = tl.where(bits < 0, -word, word)
    infinite = tl.where(bits < 0, MINUS_INF, PLUS_INF)
    counted = tl.where(magnitude > INFINITE, NAN, tl.where(magnitude == INFINITE, infinite, 0))
    tl.store(words + place, tl.where(code == SPECIAL, counted, word), mask=there)


@triton.jit(do_not_specialize=["blocks"])
def _dequantise(words, codes, values, count, blocks, KIND: tl.constexpr, ELEMENTS: tl.constexpr, PLACES: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Scale words back to values. RANKS: the divisor; 1 for a sum."""
    row, place, there = _tile(count, ELEMENTS, ROWS, COLUMNS)
    code = tl.load(codes + row, mask=row < blocks, other=0).to(tl.int32)[:, None]
    word = tl.load(words + place, mask=there, other=0)
    # To float32 first, then scaled, then divided: the engine rounds in that order.
    magnitude = word.to(tl.float32).to(tl.int32, bitcast=True) & MAGNITUDE
    left = code - BIAS - PLACES
    field = (magnitude >> WIDTH) + left
    fraction = (magnitude & FRACTION) | HIDDEN
    denormal = _shifted_right(fraction, _clamped(1 - field, 1, 25))
    scaled = tl.where(field >= 255, INFINITE, tl.where(field >= 1, magnitude + left * HIDDEN, denormal))
    scaled = tl.where(magnitude == 0, 0, scaled)
    if RANKS > 1:
        # Rounded to nearest, denormals kept: `/` guarantees neither on a GPU.
        scaled = tl.div_rn(scaled.to(tl.float32, bitcast=True), RANKS * 1.0).to(tl.int32, bitcast=True)
    plus, minus = (word & 1023) > 0, ((word >> 10) & 1023) > 0
    nan = ((word >> 20) != 0) | (plus == minus)
    special = code == SPECIAL
    scaled = tl.where(special, tl.where(nan, QUIET_NAN, INFINITE), scaled)
    negative = tl.where(special, (nan == 0) & minus, word < 0)
    if KIND == FLOAT32:
        tl.store(values + place, scaled | tl.where(negative, SIGN, 0), mask=there)
    else:
        if KIND == BFLOAT16:
            half = (scaled + 0x7FFF + ((scaled >> 16) & 1)) >> 16
        else:
            half = scaled.to(tl.float32, bitcast=True).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
            # Which NaN a conversion produces differs between devices.
            half = tl.where(special & nan, 0x7E00, half)
        tl.store(values + place, (half | tl.where(negative, -(1 << 15), 0)).to(tl.int16), mask=there)


def _launch(kernel: Any, values: Tensor, tensors: tuple[Tensor, ...], elements: int, *constants: int) -> None:
    """Launch programs for all blocks of `values`. tensors: the kernel's arguments."""
    count, columns = values.numel(), triton.next_power_of_2(elements)
    blocks, rows = -(-count // elements), max(1, TILE // columns)
    kind = KINDS[values.dtype].value
    programs = kernel[(-(-blocks // rows),)]
    programs(*tensors, count, blocks, kind, elements, *constants, rows, columns, enable_fp_fusion=False)


def block_codes(values: Tensor, codes: Tensor, elements: int) -> None:
    """Compute the exponent code of each block of `elements` values.

    Args:
        values: (N,) float32, float16 or bfloat16, contiguous; N > 0.
        codes: int16 (ceil(N / elements),), written; SPECIAL_CODE for blocks with NaN or Inf.
    """
    _launch(_block_codes, values, (values.view(BITS[values.dtype]), codes), elements)


def quantise(values: Tensor, codes: Tensor, words: Tensor, elements: int, world_size: int) -> None:
    """Values (N,) -> int32 (N,) under agreed codes, int16 (ceil(N / elements),), which no rank's own codes exceed."""
    tensors = (values.view(BITS[values.dtype]), codes, words)
    _launch(_quantise, values, tensors, elements, SUM_BITS - headroom(world_size))


def dequantise(words: Tensor, codes: Tensor, values: Tensor, elements: int, world_size: int, average: bool) -> None:
    """Inverse of quantise: sums int32 (N,) -> values (N,), written; divided by the world size when `average`."""
    tensors = (words, codes, values.view(BITS[values.dtype]))
    _launch(_dequantise, values, tensors, elements, SUM_BITS - headroom(world_size), world_size if average else 1)
