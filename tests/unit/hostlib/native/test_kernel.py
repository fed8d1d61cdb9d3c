"""The native kernels against their numpy twins, bit for bit, and the twins against exact arithmetic."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hostlib import _engine
from hostlib.bench import kernels
from hostlib.protocol import block_float, constants
from hostlib.protocol.header import Header
from tests.checks import checks, engine_checks

NOWHERE, NOBODY = Header(), ()  # what is left of a check word is the elements' part
FLOATS = ("float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "int32")
TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int32": torch.int32}
BITS = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16, "int32": np.uint32}
# Zeros, denormals, the smallest normal, one, the largest; then Inf and NaN. As bits, each with both signs.
FINITE_BITS = {
    "float32": (0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF),
    "float16": (0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF),
    "bfloat16": (0, 1, 0x7F, 0x80, 0x3F80, 0x7F7F),
    "int32": (0, 1, 0x7FFF, 0x10000, 0x7FFFFFFE, 0x7FFFFFFF),
}
SPECIAL_BITS = {
    "float32": (0x7F800000, 0x7FC00000, 0x7F800001),
    "float16": (0x7C00, 0x7E00, 0x7C01),
    "bfloat16": (0x7F80, 0x7FC0, 0x7F81),
}


def stored(dtype: str, bits: tuple[int, ...] | np.ndarray) -> np.ndarray:
    """Values of a type, from their bits."""
    return np.asarray(bits).astype(BITS[dtype]).view(block_float.STORED[dtype])


EVERY_HALF = {
    dtype: stored(dtype, [b for b in range(1 << 16) if b & infinity != infinity])  # but NaN and Inf
    for dtype, infinity in (("float16", 0x7C00), ("bfloat16", 0x7F80))
}
# Sums of one rank, and codes whose unit is half of the smallest denormal's, or another: every tie of the rounding.
TIES = np.arange(-(1 << 18), 1 << 18, dtype=np.int32)
TIE_CODES = {"float16": (205, 216, 230), "bfloat16": (96, 200, 328)}


def with_both_signs(dtype: str, bits: tuple[int, ...]) -> np.ndarray:
    top = 1 << (8 * BITS[dtype]().itemsize - 1)
    return stored(dtype, np.array([b | sign for b in bits for sign in (0, top)], np.uint64))


def tensor(dtype: str, count: int, rng: np.random.Generator, finite: bool = False) -> np.ndarray:
    """Values of one of several tempers: any bits; a wide range; one scale; mostly zeros; the special ones."""
    temper = rng.integers(5)
    if dtype == "int32":
        return (rng.integers(-(2**31), 2**31, count) >> rng.integers(0, 32)).astype(np.int32)
    if temper == 0 and not finite:
        return stored(dtype, rng.integers(0, 1 << 8 * BITS[dtype]().itemsize, count))
    if temper == 1:
        bits = FINITE_BITS[dtype] if finite else FINITE_BITS[dtype] + SPECIAL_BITS[dtype]
        return rng.choice(with_both_signs(dtype, bits), count)
    reach = 14 if dtype == "float16" else 125
    exponents = rng.integers(-reach - 20, reach, count) if temper == 2 else rng.integers(-reach, reach)
    values = np.ldexp(rng.standard_normal(count).clip(-2, 2), exponents).astype(np.float32)
    if temper == 3:
        values[rng.random(count) < 0.9] = 0
    return block_float.narrowed(dtype, values)


def unaligned(array: np.ndarray) -> np.ndarray:
    room = np.empty(array.nbytes + 1, np.uint8)[1:]
    room[:] = array.view(np.uint8)
    return room.view(array.dtype)


def same(got: np.ndarray, wanted: np.ndarray) -> bool:
    """Bit for bit."""
    return got.dtype == wanted.dtype and got.tobytes() == wanted.tobytes()


cases = given(st.integers(0, 2**32 - 1), st.integers(0, 300), st.integers(1, 512) | st.integers(1, 32), st.booleans())


@pytest.mark.parametrize("dtype", DTYPES)
@cases
def test_kernels_equal_their_twins(dtype: str, seed: int, count: int, world_size: int, average: bool) -> None:
    rng = np.random.default_rng(seed)
    x = unaligned(tensor(dtype, count, rng))
    average = average and dtype != "int32"
    code = block_float.block_code(dtype, x)
    assert _engine.block_code(dtype, x) == code
    assert _engine.may_overflow(code, world_size) == block_float.may_overflow(code, world_size)
    if dtype != "int32" and code != constants.EXPONENT_SPECIAL:
        # Another rank's block may be louder, or hold a NaN.
        code = int(rng.choice([code, min(max(code, 52) + rng.integers(0, 60), 328), constants.EXPONENT_SPECIAL]))

    elements = count + int(rng.integers(0, 40))
    wanted = block_float.pack(dtype, x, elements, code, world_size)
    words, own = checks(world_size, elements), engine_checks(world_size, elements)
    part = words.word(NOWHERE, wanted.view(">i4"), NOBODY)
    wire = unaligned(rng.integers(0, 256, 4 * elements).astype(np.uint8))
    assert _engine.pack(dtype, x, wire, code, world_size, own) == part
    assert same(wire, wanted)
    assert _engine.weigh(wire, 2**31, own) == (part, True)
    q = np.empty(count, np.int32)
    _engine.quantise(dtype, x, q, code, world_size)
    assert same(q, block_float.quantise(dtype, x, code, world_size))

    # A sum, for the way back: this and what other ranks may have added to it.
    if code == constants.EXPONENT_SPECIAL and dtype != "int32":
        total = rng.choice([0, 1, 1 << 10, 1 << 20], (3, count)).sum(axis=0)
    else:
        total = rng.integers(-(2**30), 2**30 + 1, count) >> rng.integers(0, 30)
    wire = unaligned(np.concatenate([total, np.zeros(elements - count, int)]).astype(">i4").view(np.uint8))
    assert _engine.possible(dtype, wire, code, world_size, own) == block_float.is_possible(
        dtype, total, code, world_size
    )
    magnitude = int(np.abs(total).max(initial=0))
    assert _engine.weigh(wire, magnitude, own) == (words.word(NOWHERE, total, NOBODY), True)
    assert magnitude == 0 or not _engine.weigh(wire, magnitude - 1, own)[1]
    back = unaligned(np.empty(count, x.dtype))
    _engine.unpack(dtype, wire, back, code, world_size, average)
    assert same(back, block_float.unpack(dtype, wire, count, code, world_size, average))
    again = np.empty(count, x.dtype)
    _engine.dequantise(dtype, total.astype(np.int32), again, code, world_size, average)
    assert same(again, back)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_convert_as_torch_does(dtype: str) -> None:
    every = EVERY_HALF[dtype]
    assert same(
        block_float.widened(dtype, every), torch.from_numpy(every.view(np.int16)).view(TORCH[dtype]).float().numpy()
    )
    code = block_float.block_code(dtype, every)
    for world_size in (1, 3):
        q = np.empty(len(every), np.int32)
        _engine.quantise(dtype, every, q, code, world_size)
        assert same(q, block_float.quantise(dtype, every, code, world_size))

    for code in TIE_CODES[dtype]:
        back = np.empty(len(TIES), every.dtype)
        _engine.dequantise(dtype, TIES, back, code, 1, False)
        exact = torch.from_numpy(block_float.dequantise("float32", TIES, code, 1, False))
        assert same(back, exact.to(TORCH[dtype]).view(torch.int16).numpy().view(every.dtype))
        assert same(back, block_float.dequantise(dtype, TIES, code, 1, False))


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_tensors_are_taken_as_they_are(dtype: str) -> None:
    x = torch.arange(-50, 50).to(TORCH[dtype])
    q, wire = torch.empty(100, dtype=torch.int32), torch.empty(400, dtype=torch.uint8)
    code = _engine.block_code(dtype, x)
    _engine.quantise(dtype, x, q, code, 2)
    _engine.pack(dtype, x, wire, code, 2, engine_checks(2, 100))
    assert wire.numpy().tobytes() == q.numpy().astype(">i4").tobytes()
    for back in (torch.zeros_like(x), torch.ones_like(x)):
        _engine.unpack(dtype, wire, back, code, 2, False)
        assert torch.equal(back, x)


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    x, q, wire = np.zeros(8, np.float32), np.zeros(8, np.int32), np.zeros(32, np.uint8)
    frozen = wire.copy()
    frozen.flags.writeable = False
    own = engine_checks(2, 8)
    refused = {
        "dtype must be float32, float16, bfloat16 or int32, not double": lambda: _engine.block_code("double", x),
        "x must hold float16": lambda: _engine.block_code("float16", x),
        "x must hold float32": lambda: _engine.block_code("float32", q),
        "x must be a numpy array or torch CPU tensor": lambda: _engine.block_code("float32", [1.0]),
        "x must be one-dimensional and contiguous": lambda: _engine.block_code("float32", x[::2]),
        "wire must be a writable numpy array or torch CPU tensor": lambda: _engine.pack(
            "float32", x, frozen, 200, 2, own
        ),
        "wire must have room for the values of x, 4 bytes each": lambda: _engine.pack(
            "float32", x, wire[4:], 200, 2, own
        ),
        "wire must hold 4 bytes per element": lambda: _engine.weigh(wire[1:], 0, own),
        "code must be 0, 52..328 or 65535": lambda: _engine.pack("float32", x, wire, 329, 2, own),
        "check words must have a weight for each element": lambda: _engine.weigh(wire, 0, engine_checks(2, 7)),
        "magnitude must be in 0..2^31": lambda: _engine.weigh(wire, 2**31 + 1, own),
        "world_size must be in 1..512": lambda: _engine.quantise("float32", x, q, 200, 0),
        "x and q must have the same size": lambda: _engine.quantise("float32", x, q[1:], 200, 2),
        "sum and x must have the same size": lambda: _engine.dequantise("float32", q[1:], x, 200, 2, False),
        "int32 tensors can be summed, not averaged": lambda: _engine.unpack("int32", wire, q, 200, 2, True),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == message


@pytest.mark.parametrize("world_size", [1, 2, 512])
def test_every_flipped_bit_of_a_packet_is_caught(world_size: int) -> None:
    """A result as a rank sees it: docs/protocol.md, "Check word"."""
    rng = np.random.default_rng(world_size)
    words, own = checks(world_size, 64), engine_checks(world_size, 64)
    elements = rng.integers(-(2**30), 2**30, 64).astype(np.int32)
    header = Header(
        operation=constants.OPERATION_RESULT,
        job=7,
        rank=3,
        epoch=0x89ABCDEF,
        generation=0x12345678,
        slot=300,
        element_count=64,
        exponent=213,
        next_exponent=words.next_word(217),
    )
    header = replace(header, check=words.word(header, elements, range(world_size)))
    packet = np.frombuffer(header.pack() + elements.astype(">i4").tobytes(), np.uint8)

    def passes(packet: np.ndarray) -> bool:
        got = Header.unpack(packet.tobytes())
        right = words.is_right(got, packet[constants.HEADER_BYTES :].view(">i4"))
        possible = _engine.possible("float32", packet[constants.HEADER_BYTES :], 217, world_size, own)
        return right and possible and own.code(got.next_exponent) is not None

    assert passes(packet)
    unseen = set()
    for bit in range(8 * len(packet)):
        hurt = packet.copy()
        hurt[bit // 8] ^= 0x80 >> bit % 8
        if passes(hurt):
            got = Header.unpack(hurt.tobytes())
            unseen |= {name for name in constants.HEADER_FIELDS if getattr(got, name) != getattr(header, name)} or {
                "elements"
            }
    # A rank compares these with the packet that it sent; its own rank and the flags mean nothing to it.
    compared = {"magic", "version", "operation", "job", "element_count"} | {"rank", "flags"}
    assert unseen == compared


@pytest.mark.parametrize("dtype", FLOATS)
@given(st.integers(0, 2**32 - 1), st.integers(2, 32))
def test_sums_never_overflow_and_stay_within_the_bound(dtype: str, seed: int, world_size: int) -> None:
    rng = np.random.default_rng(seed)
    tensors = [tensor(dtype, 40, rng, finite=True) for _ in range(world_size)]
    code = max(block_float.block_code(dtype, t) for t in tensors)
    total = sum(block_float.quantise(dtype, t, code, world_size).astype(np.int64) for t in tensors)
    assert np.abs(total).max() <= 2**30
    exact = np.sum([block_float.widened(dtype, t).astype(np.float64) for t in tensors], axis=0)
    bound = block_float.error_bound(code, world_size)
    unit = 2 * bound / world_size
    # What adding up in float64 may itself have lost.
    rounding = world_size * 2.0**-52 * np.max(np.abs(exact), initial=0.0)
    assert (np.abs(total * unit - exact) <= bound + rounding).all()

    # And whole: rounding to float32, then to the type, adds at most half a unit in the last place of each.
    got = block_float.widened(dtype, block_float.allreduce(tensors, 40, 128, dtype=dtype)).astype(np.float64)
    bits = {"float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    smallest = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}[dtype]
    fits = np.isfinite(got)
    slack = np.abs(total * unit) * 2.0**-bits * (1 if dtype == "float32" else 1.01) + smallest / 2
    assert (np.abs(got - exact) <= bound + rounding + slack)[fits].all()
    largest = float(block_float.widened(dtype, stored(dtype, (FINITE_BITS[dtype][-1],)))[0])
    assert (np.abs(total * unit)[~fits] > largest).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 31, 32])
def test_extreme_values_survive_alone(dtype: str, world_size: int) -> None:
    for value in with_both_signs(dtype, FINITE_BITS[dtype]) if dtype in FLOATS else [0, 1, -1, 2**26 - 1, 1 - 2**26]:
        x = np.array([value], block_float.STORED[dtype])
        tensors = [x] + [np.zeros_like(x)] * (world_size - 1)
        got = block_float.allreduce(tensors, 256, 128, dtype=dtype)
        assert block_float.widened(dtype, got) == block_float.widened(dtype, x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities_and_nans_come_out_where_they_belong(dtype: str) -> None:
    inf, nan = np.inf, np.nan
    one = block_float.narrowed(dtype, np.array([inf, -inf, nan, inf, 1.0], np.float32))
    two = block_float.narrowed(dtype, np.array([1.0, 2.0, 3.0, -inf, 2.0], np.float32))
    got = block_float.widened(dtype, block_float.allreduce([one, two], 256, 128, dtype=dtype))
    assert got[0] == inf and got[1] == -inf
    assert np.isnan(got[2:]).all()  # NaN, inf - inf, and the finite neighbour whose sum was never taken


@given(st.integers(0, 2**32 - 1), st.integers(1, 32))
def test_integers_that_pass_the_overflow_test_cannot_overflow(seed: int, world_size: int) -> None:
    x = tensor("int32", 50, np.random.default_rng(seed))
    if block_float.may_overflow(block_float.block_code("int32", x), world_size):
        with pytest.raises(OverflowError):
            block_float.allreduce([x] * world_size, 16, 2, dtype="int32")
    else:
        assert np.array_equal(
            block_float.allreduce([x] * world_size, 16, 2, dtype="int32"), x.astype(np.int64) * world_size
        )


def test_lanes_are_tensors_of_their_own() -> None:
    rng = np.random.default_rng(5)
    tensors = [rng.standard_normal(1000).astype(np.float32) * 10.0 ** rng.integers(-9, 9, 1000) for _ in range(3)]
    tensors = [t.astype(np.float32) for t in tensors]
    got = block_float.allreduce(tensors, 16, 4, average=True, lanes=3)  # 63 chunks
    parts = [
        block_float.allreduce([t[a:b] for t in tensors], 16, 4, True) for a, b in ((0, 336), (336, 672), (672, 1000))
    ]
    assert same(got, np.concatenate(parts))
    assert not same(got, block_float.allreduce(tensors, 16, 4, average=True))  # other blocks share an opening code
    few = [t[:20] for t in tensors]  # 2 chunks: one lane has none
    assert len(block_float.allreduce(few, 16, 4, lanes=3)) == 20
    assert len(block_float.allreduce([t[:0] for t in tensors], 16, 4, lanes=3)) == 0


def test_the_bench_measures_what_the_engine_does() -> None:
    rates = kernels.run(0.01, tensor_bytes=1 << 20)
    assert [(r.name, r.dtype) for r in rates] == [
        *((name, dtype) for dtype in block_float.STORED for name in ("pack", "unpack")),
        ("weigh", "int32"),
    ]
    for rate in rates:
        of_packet = kernels.ELEMENTS * np.dtype(block_float.STORED[rate.dtype]).itemsize
        assert rate.packet_ns == pytest.approx(of_packet / rate.gb_s)
    assert all(r.gb_s > 0 and r.ratio == r.gb_s / r.memcpy_gb_s for r in rates)
    console = Console(width=100, record=True, file=io.StringIO())
    kernels.print_table(rates, console)
    assert f"{rates[0].ratio:.2f}" in console.export_text()
    with pytest.raises(ValueError, match="above 0 s"):
        kernels.run(0)

    # The passes that it times: all of a tensor into its packets, and back.
    x = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    ring = np.zeros(16 * (constants.HEADER_BYTES + 64 * 4), np.uint8)
    codes, back = np.zeros(16, np.uint16), np.zeros(1000, np.float32)
    words, own = checks(2, 64), engine_checks(2, 64)
    parts = _engine.pack_pass("float32", x, codes, ring, 64, 2, 3, own)
    blocks = [x[i : i + 64] for i in range(0, 1000, 64)]
    assert list(codes) == [block_float.block_code("float32", b) for b in blocks]
    packed = [block_float.pack("float32", b, 64, code, 2) for b, code in zip(blocks, codes.tolist(), strict=True)]
    assert same(ring.reshape(16, -1)[:, constants.HEADER_BYTES :], np.stack(packed))
    assert _engine.unpack_pass("float32", ring, back, codes, 64, 2, True, own) == parts
    assert parts == sum(words.word(NOWHERE, wire.view(">i4"), NOBODY) for wire in packed) & 0xFFFFFFFF
    assert _engine.weigh_pass(ring, 16, 64, own) == parts
    wanted = [
        block_float.unpack("float32", w, len(b), c, 2, True)
        for w, b, c in zip(packed, blocks, codes.tolist(), strict=True)
    ]
    assert same(back, np.concatenate(wanted))
