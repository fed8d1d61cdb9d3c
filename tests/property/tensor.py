"""Tensors for the engine's tests: every dtype, with what is hard about it, and what must come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hostlib.protocol import block_float

STYLES = ("spread", "narrow", "specials", "edges", "zeros")
_SMALLEST = {"float32": -149, "float16": -24, "bfloat16": -133}
_LARGEST = {"float32": 127, "float16": 15, "bfloat16": 127}


@dataclass(frozen=True, slots=True)
class Kind:
    """What one all-reduce is about.

    Attributes:
        style: of the values. For int32, "edges" may not fit and "specials" are as large as fits.
    """

    dtype: str
    count: int
    style: str
    average: bool
    seed: int

    def values(self, rank: int, world_size: int) -> np.ndarray:
        """One rank's, stored as kernel.STORED[dtype]."""
        draw = np.random.default_rng([self.seed, rank])
        if self.dtype == "int32":
            return self._integers(draw, world_size)
        low, high = _SMALLEST[self.dtype], _LARGEST[self.dtype]
        if self.style == "zeros":
            wide = np.where(draw.integers(0, 2, self.count), np.float32(0), np.float32(-0.0))
        elif self.style == "narrow":
            wide = draw.standard_normal(self.count)
        else:
            # Runs of like magnitude, so that blocks get codes of their own; denormals and the largest among them.
            runs = draw.integers(low, high + 1, -(-self.count // 50) + 1)
            wide = np.ldexp(draw.uniform(-2, 2, self.count), np.repeat(runs, 50)[: self.count])
        with np.errstate(over="ignore", under="ignore"):
            wide = wide.astype(np.float32)
        largest = {"float16": 65504.0, "bfloat16": 3.3895314e38, "float32": 3.4028235e38}[self.dtype]
        few = draw.random(self.count) < 0.02
        if self.style == "specials":
            wide = np.where(
                few, draw.choice(np.array([np.nan, np.inf, -np.inf, 0.0, 1.0], np.float32), self.count), wide
            )
        elif self.style == "edges":
            edges = [largest, -largest, 2.0**low, -(2.0**low), -0.0, 2.0**-126]
            wide = np.where(few, draw.choice(np.array(edges, np.float32), self.count), wide)
        return block_float.narrowed(self.dtype, np.ascontiguousarray(wide, np.float32))

    def _integers(self, draw: np.random.Generator, world_size: int) -> np.ndarray:
        bits = 31 - block_float.headroom(world_size)
        top = {"zeros": 1, "narrow": 1 << 10}.get(self.style, 1 << bits)
        values = draw.integers(-(top - 1), top, self.count, dtype=np.int64)
        if self.style == "edges" and self.count and draw.random() < 0.3:
            values[draw.integers(self.count)] = draw.choice([-(2**31), 2**31 - 1])
        return values.astype(np.int32)

    def wanted(self, inputs: list[np.ndarray], elements: int, slots: int, lanes: int) -> np.ndarray | None:
        """What all ranks must end with; None where all must refuse."""
        try:
            return block_float.allreduce(inputs, elements, slots, self.average, self.dtype, lanes)
        except OverflowError:
            return None


def handed(dtype: str, x: np.ndarray) -> Any:
    """The same memory as the engine takes it: numpy has no bfloat16."""
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else x


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint16 if x.itemsize == 2 else np.uint32)
