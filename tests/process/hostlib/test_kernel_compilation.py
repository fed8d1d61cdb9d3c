"""The Triton kernels as the compiler makes them for a GPU, without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.conftest import ROOT

COMPILE = """
import json, re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hostlib.staging import triton_kernels as kernels

constants = {"KIND": 1, "ELEMENTS": 256, "PLACES": 28, "RANKS": 3, "ROWS": 8, "COLUMNS": 256}
pointers = {"values": "*i16", "codes": "*i16", "words": "*i32"}
said = {}
for kernel in (kernels._block_codes, kernels._quantise, kernels._dequantise):
    mine = {name: constants[name] for name in kernel.arg_names if name in constants}
    signature = {n: "constexpr" if n in mine else pointers.get(n, "i32") for n in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=mine)
    text = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"enable_fp_fusion": False}).asm["ptx"]
    said[kernel.__name__] = sorted(set(re.findall(r"\\b(?:div|mul|add|sub|fma|cvt)(?:\\.\\w+)*\\.f(?:16|32)[.\\w]*", text)))
print(json.dumps(said))
"""


def test_kernels_compile_to_exact_instructions() -> None:
    """Conversions and the one division round to nearest, and none flushes denormals."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "_block_codes": ["cvt.f32.f16", "cvt.rn.f32.s32"],
        "_quantise": ["cvt.f32.f16"],
        "_dequantise": ["cvt.rn.f16.f32", "cvt.rn.f32.s32", "div.rn.f32"],
    }
