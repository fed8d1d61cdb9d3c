"""The packet engine's C++ under the compiler's sanitizers, at work: driver.cpp says at what."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "hostlib/native"
SANITIZERS = {"address-undefined": "address,undefined", "thread": "thread"}
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sanitizers", SANITIZERS.values(), ids=SANITIZERS.keys())
def test_the_engines_at_work_are_clean(sanitizers: str, tmp_path: Path) -> None:
    sources = sorted(path for path in NATIVE.rglob("*.cpp") if path.parent.name != "bindings")
    flags = ["-std=c++20", "-O1", "-g1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    compiling = [
        subprocess.Popen(["g++", *flags, f"-I{NATIVE}", "-c", str(path), "-o", str(tmp_path / f"{path.stem}.o")])
        for path in (*sources, HERE / "driver.cpp")
    ]
    assert [each.wait(timeout=200) for each in compiling] == [0] * len(compiling)
    program = tmp_path / "driver"
    objects = [str(path) for path in sorted(tmp_path.glob("*.o"))]
    subprocess.run(["g++", f"-fsanitize={sanitizers}", *objects, "-o", str(program)], check=True, timeout=100)
    done = subprocess.run([program], env=os.environ | OPTIONS, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
