"""The Triton kernels against the numpy twins, bit for bit: on the GPU if there is one, else in Triton's interpreter.

And that they compile for GPUs, which needs none, to instructions that round as the twins do.
"""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np
import pytest
import torch

from hostlib.protocol import block_float, constants
from hostlib.protocol.openings import SPECIAL_CODE

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton, or a CUDA build of torch"
)

WHERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FRACTION_BITS = {"float32": 23, "float16": 10, "bfloat16": 7}
UNSIGNED = {4: np.uint32, 2: np.uint16}
SIGNED = {4: np.int32, 2: np.int16}
BLOCKS = 60


def tensor(x: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """A copy on the device, by its bits."""
    return torch.from_numpy(x.view(SIGNED[x.itemsize]).copy()).view(dtype).to(WHERE)


def blocks_of(dtype: str, elements: int, seed: int) -> list[np.ndarray]:
    """Any bits at all, by blocks: of one exponent each, from denormals to the largest; some zero, some with NaN or Inf;
    the last one is not full."""
    generator, width = np.random.default_rng(seed), FRACTION_BITS[dtype]
    stored = np.dtype(block_float.STORED[dtype])
    bits = 8 * stored.itemsize
    most = (1 << (bits - 1 - width)) - 1
    raw = generator.integers(0, 1 << bits, (BLOCKS, elements), dtype=np.uint64)
    exponents = generator.permutation(
        np.concatenate([[0, 0, 0, 1, most - 1, most], np.arange(BLOCKS - 6) * most // 60])
    )
    signs_and_fractions = ~np.uint64(most << width)
    raw = (raw & signs_and_fractions) | (exponents.astype(np.uint64) << np.uint64(width))[:, None]
    # Of a block of one exponent no value is small: some are.
    small = generator.random(raw.shape) < 0.3
    raw = np.where(small & (exponents < most)[:, None], raw & ~np.uint64(most << width - 1), raw)
    raw[generator.integers(0, BLOCKS, 3)] &= np.uint64(1 << (bits - 1))
    flat = raw.astype(UNSIGNED[stored.itemsize]).view(stored).reshape(-1)[: -(elements // 3) - 1]
    return [flat[i : i + elements] for i in range(0, len(flat), elements)]


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize(("elements", "world_size"), [(32, 1), (24, 2), (64, 3), (32, 31), (16, 512)])
def test_kernels_equal_their_twins(dtype: str, elements: int, world_size: int) -> None:
    from hostlib.staging import triton_kernels

    blocks = blocks_of(dtype, elements, world_size)
    codes = [block_float.block_code(dtype, block) for block in blocks]
    x = tensor(np.concatenate(blocks), TORCH[dtype])
    found = torch.full((len(blocks),), -1, dtype=torch.int16, device=WHERE)
    triton_kernels.block_codes(x, found, elements)
    special = np.array(codes) == constants.EXPONENT_SPECIAL
    assert found.tolist() == np.where(special, SPECIAL_CODE, codes).tolist()
    assert special.any() and 0 in codes and len(set(codes)) > 20

    # Under the codes of another rank, too: none is below this one's.
    higher = [c if c in (0, constants.EXPONENT_SPECIAL) else c + i % 3 * 5 for i, c in enumerate(codes)]
    higher = [constants.EXPONENT_SPECIAL if i % 10 == 9 else c for i, c in enumerate(higher)]
    agreed = torch.tensor([SPECIAL_CODE if c == constants.EXPONENT_SPECIAL else c for c in higher], dtype=torch.int16)
    agreed = agreed.to(WHERE)
    words = torch.full((x.numel(),), -1, dtype=torch.int32, device=WHERE)
    triton_kernels.quantise(x, agreed, words, elements, world_size)
    quantised = [block_float.quantise(dtype, block, c, world_size) for block, c in zip(blocks, higher, strict=True)]
    np.testing.assert_array_equal(words.cpu().numpy(), np.concatenate(quantised))

    generator = np.random.default_rng(world_size)
    totals = []
    for q, c in zip(quantised, higher, strict=True):
        counts = q.astype(np.int64) * generator.integers(0, world_size, len(q), endpoint=True)
        any_sum = generator.integers(-(1 << 30), 1 << 30, len(q), endpoint=True) >> generator.integers(0, 31, len(q))
        totals.append((counts if c in (0, constants.EXPONENT_SPECIAL) else any_sum).astype(np.int32))
    for average in (False, True):
        back = torch.zeros_like(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of overflow, where this is interpreted
            triton_kernels.dequantise(
                tensor(np.concatenate(totals), torch.int32), agreed, back, elements, world_size, average
            )
        wanted = [block_float.dequantise(dtype, t, c, world_size, average) for t, c in zip(totals, higher, strict=True)]
        bits = SIGNED[x.element_size()]
        seen = back.cpu().view(torch.int32 if bits is np.int32 else torch.int16).numpy()
        np.testing.assert_array_equal(seen, np.concatenate(wanted).view(bits))
