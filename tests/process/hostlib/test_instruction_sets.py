"""What is compiled runs on any CPU of its architecture; the engine uses what newer ones have, for the same bits."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from emulation.switch.compiler.cc import precompiled
from hostlib import _engine
from hostlib.protocol import block_float
from simulation import _kernel
from tests.checks import engine_checks
from tests.conftest import ROOT

X86 = platform.machine() == "x86_64"
# What x86-64 had from its beginning has none of these: VEX (AVX), SSSE3 and SSE4, BMI, ADX, and POPCNT.
NEWER = re.compile(
    r"^(?:v[a-z]\w+|pabs[bdw]|pshufb|palignr|pmul(?:ld|dq|hrsw)|p(?:min|max)(?:sb|sd|ud|uw)|pinsr[bdq]|pextr[bdq]"
    r"|pmov[sz]x\w+|round[sp][sd]|blend\w*|pblend\w*|ptest|packusdw|crc32\w*|popcnt\w*|lzcnt|andn|bextr|bls[ir]\w*"
    r"|s[ah][rl]x|rorx|mulx|pdep|pext|adcx|adox|movbe)$"
)
NOT_NEWER = {"verr", "verw"}
DIGEST = """
import hashlib
import numpy as np
from hostlib import _engine
from tests.process.hostlib.test_instruction_sets import digest
print(_engine.kernels_name(), digest())
"""


def digest() -> str:
    """Of what the kernels make of many blocks, in all types."""
    draw, found = np.random.default_rng(1), hashlib.sha256()
    for number in range(200):
        dtype = list(block_float.STORED)[number % len(block_float.STORED)]
        bits = draw.integers(0, 256, 4 * draw.integers(1, 300), np.uint8)
        x = bits.view(block_float.STORED[dtype])
        world_size = int(draw.integers(1, 513))
        code = _engine.block_code(dtype, x)
        wire, back = np.zeros(4 * len(x), np.uint8), np.zeros_like(x)
        words = engine_checks(world_size, len(x))
        part = _engine.pack(dtype, x, wire, code, world_size, words)
        _engine.unpack(dtype, wire, back, code, world_size, dtype != "int32")
        found.update(f"{code} {part} {_engine.weigh(wire, 2**30, words)}".encode() + wire.tobytes() + back.tobytes())
    return found.hexdigest()


def there() -> list[str]:
    """The kinds of kernels that this CPU can run."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next(line for line in lines if line.startswith("flags")).split()
    return ["baseline", *["x86-64-v3"] * ("avx2" in flags), *["x86-64-v4"] * ("avx512vl" in flags)]


@pytest.mark.skipif(not X86, reason="other architectures have one kind of kernels")
def test_every_kind_of_kernels_computes_the_same_bits() -> None:
    printed = []
    for name in there():
        environment = {**os.environ, "NETFOLD_KERNELS": name}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.split())
    assert [name for name, _ in printed] == there()
    assert {made for _, made in printed} == {digest()}
    assert _engine.kernels_name() == os.environ.get("NETFOLD_KERNELS", there()[-1])


@pytest.mark.skipif(not X86, reason="looks for x86-64's instructions")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump: apt install binutils")
@pytest.mark.parametrize(
    "library",
    [_engine.__file__, _kernel.__file__, *precompiled()],
    ids=lambda library: Path(library).name.split(".")[0],
)
def test_nothing_but_the_chosen_kernels_needs_a_newer_cpu(library: str | Path) -> None:
    shown = subprocess.run(
        ["objdump", "-d", "-C", "--no-show-raw-insn", library],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    function, newer, dispatched = "", set(), 0
    for line in shown.stdout.splitlines():
        if line.endswith(">:"):
            function = line
            continue
        name = line.split("\t")[1].split()[0] if "\t" in line else ""
        if not NEWER.match(name) or name in NOT_NEWER:
            continue
        if "netfold::x86_64_v" in function:
            dispatched += 1
        else:
            newer.add((function, name))
    assert newer == set()
    assert (dispatched > 100) == (library == _engine.__file__), (
        "and the test knows newer instructions when it sees them"
    )
