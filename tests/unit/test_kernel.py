"""The native kernels against their numpy twins, bit for bit, and the twins against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hostlib import _engine, kernel, layout
from hostlib.wire import Header, check_word

any_float = st.floats(width=32)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
blocks = arrays(np.float32, st.integers(1, 300), elements=any_float)
finite_blocks = arrays(np.float32, st.integers(1, 300), elements=finite)
integers = arrays(np.int32, st.integers(1, 300), elements=st.integers(-(2**31), 2**31 - 1))
worlds = st.integers(1, 32)
SPECIALS = np.array([0.0, -0.0, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, 1.17549435e-38, 1.0], np.float32)


def bits(x: np.ndarray) -> np.ndarray:
    """Bit patterns, with every NaN alike."""
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))


@given(blocks)
def test_block_codes_agree(x: np.ndarray) -> None:
    assert _engine.block_code(x) == kernel.block_code(x)


@given(integers)
def test_magnitude_codes_agree(x: np.ndarray) -> None:
    assert _engine.magnitude_code(x) == kernel.magnitude_code(x)


@given(blocks, worlds, st.integers(0, 40))
def test_quantising_agrees(x: np.ndarray, world_size: int, louder: int) -> None:
    code = kernel.block_code(x)
    if layout.EXPONENT_ZERO < code < layout.EXPONENT_SPECIAL:
        code = min(code + louder, 328)  # another rank's block may be louder
    q = np.empty(len(x), np.int32)
    _engine.quantise(x, q, code, world_size)
    assert np.array_equal(q, kernel.quantise(x, code, world_size))


@given(integers, st.sampled_from([0, 52, 53, 100, 200, 214, 300, 327, 328, 0xFFFF]), worlds, st.booleans())
def test_dequantising_agrees(total: np.ndarray, code: int, world_size: int, average: bool) -> None:
    total = total // 2 if code != layout.EXPONENT_SPECIAL else total & 0x3FFFFFF
    x = np.empty(len(total), np.float32)
    _engine.dequantise(total, x, code, world_size, average)
    assert np.array_equal(bits(x), bits(kernel.dequantise(total, code, world_size, average)))


@given(integers)
def test_packing_is_big_endian_and_comes_back(q: np.ndarray) -> None:
    wire, back = np.empty(4 * len(q), np.uint8), np.empty(len(q), np.int32)
    check = _engine.pack(q, wire)
    assert wire.tobytes() == q.astype(">i4").tobytes()
    assert check == check_word(Header(), q)
    assert _engine.unpack(wire, back) == check
    assert np.array_equal(back, q)


@given(arrays(np.int32, 64, elements=st.integers(-(2**31), 2**31 - 1)), st.integers(0, 64 * 32 - 1))
def test_every_flipped_bit_changes_the_check_word(q: np.ndarray, bit: int) -> None:
    flipped = q.view(np.uint32).copy()
    flipped[bit // 32] ^= np.uint32(1 << bit % 32)
    assert check_word(Header(), flipped.view(np.int32)) != check_word(Header(), q)


@given(st.integers(1, 32), st.data())
def test_sums_never_overflow_and_stay_within_the_bound(world_size: int, data: st.DataObject) -> None:
    tensors = [data.draw(arrays(np.float32, 20, elements=finite)) for _ in range(world_size)]
    code = max(kernel.block_code(t) for t in tensors)
    total = sum(kernel.quantise(t, code, world_size).astype(np.int64) for t in tensors)
    assert np.abs(total).max() <= 2**30
    if code == layout.EXPONENT_ZERO:
        return
    exact = np.sum([t.astype(np.float64) for t in tensors], axis=0)
    unit = 2.0 ** (code - layout.EXPONENT_BIAS + kernel.headroom(world_size) - 30)
    scaled = total.astype(np.float64) * unit
    assert (np.abs(scaled - exact) <= world_size * unit / 2 + np.abs(exact) * 1e-12).all()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 31, 32])
def test_extreme_values_survive_alone(world_size: int) -> None:
    for value in SPECIALS:
        x = np.array([value], np.float32)
        tensors = [x] + [np.zeros(1, np.float32)] * (world_size - 1)
        assert kernel.allreduce(tensors, 256, 128)[0] == value


def test_infinities_and_nans_come_out_where_they_belong() -> None:
    inf, nan = np.inf, np.nan
    one = np.array([inf, -inf, nan, inf, 1.0], np.float32)
    two = np.array([1.0, 2.0, 3.0, -inf, 2.0], np.float32)
    got = kernel.allreduce([one, two], 256, 128)
    assert got[0] == inf and got[1] == -inf
    assert np.isnan(got[2:]).all()  # NaN, inf - inf, and the finite neighbour whose sum was never taken


@given(integers, worlds)
def test_integers_that_pass_the_overflow_test_cannot_overflow(x: np.ndarray, world_size: int) -> None:
    code = kernel.magnitude_code(x)
    assert _engine.may_overflow(code, world_size) == kernel.may_overflow(code, world_size)
    if not kernel.may_overflow(code, world_size):
        assert np.abs(x.astype(np.int64)).max() * world_size < 2**31


def test_arrays_of_unlike_sizes_are_refused() -> None:
    x, q = np.ones(64, np.float32), np.ones(1, np.int32)
    with pytest.raises(ValueError, match="quantise: both arrays"):
        _engine.quantise(x, q, 201, 2)
    with pytest.raises(ValueError, match="dequantise: both arrays"):
        _engine.dequantise(q, x, 201, 2, False)
    with pytest.raises(ValueError, match="4 bytes per element"):
        _engine.pack(q, np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="4 bytes per element"):
        _engine.unpack(np.zeros(8, np.uint8), q)
