"""The native kernels under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hostlib.protocol import block_float
from hostlib.protocol.header import Header
from tests.checks import checks
from tests.conftest import ROOT
from tests.unit.hostlib.native.test_kernel import DTYPES, EVERY_HALF, TIE_CODES, TIES, tensor


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("flags", [("-march=native",), ()], ids=["native", "portable"])
def test_sanitizers_find_nothing(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Also what a CPU without F16C computes: `portable` is compiled for any."""
    native, program = ROOT / "hostlib/native", tmp_path / "driver"
    sanitize = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-ffp-contract=off", "-fno-trapping-math")
    sources = (
        native / "block_float/block_float.cpp",
        native / "block_float/kernels.cpp",
        native / "wire/check_words.cpp",
        ROOT / "tests/process/hostlib/kernel_driver.cpp",
    )
    command = ["c++", "-std=c++20", "-O1", "-fno-math-errno", *sanitize, *flags, f"-I{native}", *sources, "-o", program]
    subprocess.run(command, check=True, timeout=100)
    rng = np.random.default_rng(len(flags))
    asked, wanted = [], []

    def ask(dtype: str, x: np.ndarray, total: np.ndarray, code: int, world_size: int, average: bool) -> None:
        elements = len(x) + int(rng.integers(0, 30))
        words = checks(world_size, elements)
        head = (DTYPES.index(dtype), average, code, world_size, len(x), elements, words.prime)
        asked.append(struct.pack("<BBHiIII", *head) + x.tobytes() + total.tobytes() + words.elements.tobytes())
        wire = block_float.pack(dtype, x, elements, code, world_size)
        part = struct.pack("<I", words.word(Header(), wire.view(">i4"), ()))
        wanted.extend([struct.pack("<H", block_float.block_code(dtype, x)), part, wire.tobytes(), part])
        wanted.append(struct.pack("<?", block_float.is_possible(dtype, wire.view(">i4"), code, world_size)))
        q = block_float.quantise(dtype, x, code, world_size)
        wanted.append(block_float.dequantise(dtype, q, code, world_size, average).tobytes() + q.tobytes())
        wanted.append(block_float.dequantise(dtype, total, code, world_size, average).tobytes())

    for i in range(400):
        dtype, average = DTYPES[i % 4], bool(i % 3 == 0 and i % 4 != 3)
        x, world_size = tensor(dtype, int(rng.integers(0, 300)), rng), int(rng.integers(1, 513))
        total = (rng.integers(-(2**30), 2**30, len(x)) >> rng.integers(0, 30)).astype(np.int32)
        ask(dtype, x, total, block_float.block_code(dtype, x), world_size, average)
    for dtype, code in ((dtype, code) for dtype, codes in TIE_CODES.items() for code in codes):
        every = EVERY_HALF[dtype]
        ask(dtype, every, np.zeros(len(every), np.int32), block_float.block_code(dtype, every), 1, False)
        ask(dtype, np.zeros(len(TIES), every.dtype), TIES, code, 1, False)
    done = subprocess.run([program], input=b"".join(asked), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"".join(wanted)
