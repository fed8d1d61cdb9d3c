"""Compile generated C to a shared library, cached by the hash of all inputs.

netfold's own programs are compiled for any CPU of the architecture when netfold is built (precompile.py). They run where
there is no C compiler. With one, a program is compiled for this very CPU: that is two to four times as fast.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from emulation.errors import CompilerError
from hostlib.system.user_file import cache_folder

RUNTIME = Path(__file__).parents[1] / "runtime"
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-finline-limit=2000",  # A pipeline is one long function of short actions: inlining all of them is a tenth faster.
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror=incompatible-pointer-types",
    "-Wno-unused-function",
    "-Wno-unused-label",
    "-Wno-type-limits",
)
THIS_CPU = ("-march=native",)
ANY_CPU = ("-march=x86-64",) if platform.machine() == "x86_64" else ()


def find_compiler() -> str:
    """The C compiler: $CC, else cc, gcc or clang.

    Raises:
        CompilerError: there is none.
    """
    named = os.environ.get("CC")
    for candidate in [named] if named else ["cc", "gcc", "clang"]:
        found = shutil.which(candidate)
        if found:
            return found
    raise CompilerError(
        f"no C compiler ({named or 'cc, gcc or clang'}) on PATH: the switch compiles its program; "
        "apt-get install gcc libc6-dev, or set CC"
    )


def precompiled() -> list[Path]:
    """The libraries of netfold's own programs, where CMake installs: an editable install has no sources there."""
    engine = importlib.util.find_spec("hostlib._engine")
    if engine is None or engine.origin is None:
        return []
    return sorted(Path(engine.origin).parents[1].glob("emulation/switch/precompiled/*.so"))


def require_compiler() -> None:
    """For a switch that is yet to be told its program.

    Raises:
        CompilerError: there is no compiler, and no program that does without one.
    """
    if not precompiled():
        find_compiler()


def compile_program(generated: str, extra_flags: tuple[str, ...] = ()) -> Path:
    """The shared library of a generated program: from the cache, compiled now, or else precompiled.

    Raises:
        CompilerError: no compiler, or it refused; the message holds its first error. The program is not netfold's own.
    """
    code = with_headers(generated, program_headers())
    try:
        return _cached(code, extra_flags)
    except CompilerError:
        ending = f"-{source_digest(code, extra_flags)}.so"
        own = next((library for library in precompiled() if library.name.endswith(ending)), None)
        if own is None:
            raise
        return own


def precompile_program(generated: str, compiler: str, folder: Path, name: str) -> Path:
    """Compile a generated program for any CPU of the architecture, as compile_program() finds it.

    Raises:
        CompilerError: the compiler refused.
        OSError: the folder cannot be written.
    """
    code = with_headers(generated, program_headers())
    return _compile(compiler, (*FLAGS, *ANY_CPU), code, folder / f"{name}-{source_digest(code)}.so")


def program_headers() -> tuple[str, ...]:
    """The headers of the runtime that follow a program, which includes runtime.h and v1model.h itself."""
    # Whatever file is in ports/ is a kind of port.
    return (*(f"ports/{path.name}" for path in sorted((RUNTIME / "ports").glob("*.h"))), "bench.h", "exports.h")


def compile_library(code: str, headers: Sequence[str], extra_flags: tuple[str, ...] = ()) -> Path:
    """The shared library of C code and the runtime headers after it, from the cache if possible.

    Raises:
        CompilerError: as compile_program.
    """
    return _cached(with_headers(code, headers), extra_flags)


def with_headers(code: str, headers: Sequence[str]) -> str:
    """C code and the headers of the runtime that follow it."""
    return "\n".join([code, *(f'#include "{name}"' for name in headers), ""])


def source_digest(code: str, extra_flags: tuple[str, ...] = ()) -> str:
    """Of all that a library is made of, but for the compiler and the CPU."""
    runtime = "".join(path.read_text() for path in sorted(RUNTIME.rglob("*.h")))
    return _digest(code, runtime, *FLAGS, *extra_flags)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _cached(code: str, extra_flags: tuple[str, ...]) -> Path:
    compiler = find_compiler()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    library = cache_folder() / f"{_digest(source_digest(code, extra_flags), version, *THIS_CPU, _machine())}.so"
    if library.exists():
        return library
    try:
        return _compile(compiler, (*FLAGS, *THIS_CPU, *extra_flags), code, library)
    except OSError as error:
        raise CompilerError(
            f"the compiled program cannot be kept in {library.parent}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error


def _compile(compiler: str, flags: tuple[str, ...], text: str, library: Path) -> Path:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        c_file, partial = Path(scratch) / "program.c", Path(scratch) / "program.so"
        c_file.write_text(text)
        refused, messages = _run([compiler, *flags, f"-I{RUNTIME}", "-o", str(partial), str(c_file)])
        if refused:
            kept = library.with_suffix(".c")
            kept.write_text(text)
            raise CompilerError(f"{compiler} refused the generated program ({kept}): {_first_error(messages, text)}")
        # Renamed atomically: a killed compilation leaves nothing under the final name.
        os.replace(c_file, library.with_suffix(".c"))
        os.replace(partial, library)
    return library


def _run(command: list[str]) -> tuple[int, str]:
    """Run a command; returns (exit status, standard error). Its processes do not outlive the call."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as compiler:
        try:
            _, messages = compiler.communicate()
        except BaseException:
            os.killpg(compiler.pid, signal.SIGKILL)
            raise
    return compiler.returncode, messages


def _first_error(output: str, text: str) -> str:
    """The compiler's first error, with the line of P4 from which the line of C was generated."""
    first = next((line for line in output.splitlines() if "error" in line), output.strip())
    found = re.search(r"program\.c:(\d+)", first)
    above = text.splitlines()[: int(found[1])] if found else []
    comments = (re.search(r"//.*?(\S+\.p4:\d+.*)", line) for line in reversed(above))
    p4 = next((comment[1] for comment in comments if comment), None)
    return f"{first} (of {p4})" if p4 else first


def _machine() -> str:
    """What -march=native depends on, for caches that several machines share."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("flags")), "")
