"""Compile generated C to a shared library, cached by the hash of all inputs."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from emulation.errors import CompilerError

RUNTIME = Path(__file__).parents[1] / "runtime"
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-finline-limit=2000",  # A pipeline is one long function of short actions: inlining all is a tenth faster.
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Wno-unused-function",
    "-Wno-unused-label",
    "-Wno-type-limits",
)


def cache_dir() -> Path:
    """Where compiled programs are kept: $XDG_CACHE_HOME/netfold, or ~/.cache/netfold."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netfold"


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
        "apt-get install gcc, or set CC"
    )


def compile_program(generated: str, extra_flags: tuple[str, ...] = ()) -> Path:
    """The shared library of a generated program, from the cache if possible.

    Raises:
        CompilerError: there is no compiler, or it failed; the message has its first error.
    """
    # It includes runtime.h and v1model.h itself. Every file in ports/ is a kind of port.
    ports = [f"ports/{path.name}" for path in sorted((RUNTIME / "ports").glob("*.h"))]
    return compile_library(generated, (*ports, "bench.h", "exports.h"), extra_flags)


def compile_library(code: str, headers: Sequence[str], extra_flags: tuple[str, ...] = ()) -> Path:
    """The shared library of C code and the runtime headers after it, from the cache if possible.

    Raises:
        CompilerError: as compile_program.
    """
    compiler = find_compiler()
    text = "\n".join([code, *(f'#include "{name}"' for name in headers), ""])
    runtime = "".join(path.read_text() for path in sorted(RUNTIME.rglob("*.h")))
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    flags = (*FLAGS, *extra_flags)
    digest = hashlib.sha256("\0".join([text, runtime, version, *flags, _machine()]).encode()).hexdigest()[:32]
    library = cache_dir() / f"{digest}.so"
    if library.exists():
        return library
    try:
        return _compile(compiler, flags, text, library)
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
