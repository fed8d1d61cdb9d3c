"""Tensors that every rank of `hostlib bench` can reproduce, and how many elements of their sum are wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hostlib.protocol import constants
from hostlib.protocol.block_float import error_bound
from hostlib.protocol.openings import rounded

BLOCK = 1 << 16  # elements that are generated, or checked, at once
INTEGERS = 1 << 24  # magnitudes of int32 tensors: small enough for a sum over 32 ranks


def drawn(seed: int, rank: int, count: int, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """Generate a rank's tensor, which every rank can reproduce; yields start and elements of each block."""
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        generator = np.random.Generator(np.random.SFC64([seed, rank, start]))
        if dtype.is_floating_point:
            values = torch.from_numpy(generator.random(size, np.float32) - np.float32(0.5)).to(dtype)
        else:
            values = torch.from_numpy(generator.integers(-INTEGERS, INTEGERS, size, np.int32))
        yield start, values


def wrong_elements(
    result: Tensor,
    seed: int,
    world_size: int,
    sum_unit: float | None,
    first: int = 0,
    count: int | None = None,
    owner: int | None = None,
    groups: Sequence[Sequence[int]] | None = None,
) -> int:
    """Count elements of a sum that are wrong: not exact, or for real numbers outside the error bound.

    Args:
        sum_unit: for sums in floating point, half a unit in the last place of 1: each of the n - 1 additions may err by
            that times the sum of magnitudes (Higham, Accuracy and Stability, 4.2). None: fixed point, with bound n *
            2^(e + h - 31), where e may be that of a prologue's level. In both cases the result's own rounding comes on top.
        first, count: where the result begins in the ranks' tensors, and how many elements these have; None for as many.
        owner: a rank that adds its own values to what the others have summed in fixed point, which is rounded before.
        groups: of ranks that sum in float32 first, so that the fixed point's n summands are the groups' sums.
    """
    error = 0
    count = result.numel() if count is None else count
    ranks = [drawn(seed, rank, count, result.dtype) for rank in range(world_size)]
    for blocks in zip(*ranks, strict=True):
        begin, end = blocks[0][0], blocks[0][0] + len(blocks[0][1])
        low, high = max(begin, first), min(end, first + result.numel())
        if low >= high:
            continue
        mine = result[low - first : high - first]
        inputs = [block[low - begin : high - begin] for _, block in blocks]
        if not result.is_floating_point():
            exact = sum(block.to(torch.int64) for block in inputs)
            error += int((mine.to(torch.int64) != exact).sum())
            continue
        values = [block.to(torch.float64) for block in inputs]
        total = sum(values[1:], values[0])
        if sum_unit is None:
            summands = [sum(values[rank] for rank in group) for group in groups] if groups else values
            largest = max(float(v.abs().max()) for v in summands)
            code = math.frexp(largest)[1] + constants.EXPONENT_BIAS
            allowed = torch.full_like(total, error_bound(int(rounded(np.array(code))), len(summands)))
            for group in groups or ():
                relative = (len(group) - 1) * torch.finfo(torch.float32).eps / 2
                allowed += relative / (1 - relative) * sum(values[rank].abs() for rank in group)
            if owner is not None:
                allowed += torch.finfo(torch.float32).eps / 2 * (total - values[owner]).abs()
        else:
            relative = (world_size - 1) * sum_unit
            allowed = relative / (1 - relative) * sum((v.abs() for v in values[1:]), values[0].abs())
        kind = torch.finfo(result.dtype)
        allowed = (allowed + kind.eps / 2 * total.abs()) * (1 + kind.eps) + kind.tiny * kind.eps
        # NaN is outside any bound.
        error += int((~((mine.to(torch.float64) - total).abs() <= allowed)).sum())
    return error
