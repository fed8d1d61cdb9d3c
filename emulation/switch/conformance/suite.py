"""Run p4c's own v1model tests, a folder of NAME.p4 with NAME.stf beside it, through the embedded switch."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from emulation.errors import CompilerError, EmulationError, ProgramError
from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.cc import compile_program, find_compiler
from emulation.switch.compiler.program_writer import Generator
from emulation.switch.conformance.stf import Stf
from emulation.switch.dataplane import Dataplane

P4C = "p4c-bm2-ss"
CASE_S = 120  # of a test at most, and of its compiler
PATTERN = "*-bmv2.p4"
# How p4c reports that a program is for another target.
OTHER_ARCHITECTURE = ("main package", "wrong architecture")


class ConformanceError(EmulationError):
    """No tests to run, or no compiler for them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test's result: `verdict` is passed, unsupported or failed; `why` names the construct or the difference."""

    name: str
    verdict: str
    why: str = ""


@dataclass(slots=True)
class ConformanceReport:
    """The results of a folder."""

    passed: list[str] = field(default_factory=list)
    unsupported: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        if outcome.verdict == "passed":
            self.passed.append(outcome.name)
        else:
            getattr(self, outcome.verdict)[outcome.name] = outcome.why


def cases(folder: Path) -> list[Path]:
    """The programs of a folder that have a test.

    Raises:
        ConformanceError: there is none, or no compiler.
    """
    found = sorted(path for path in folder.glob(PATTERN) if path.with_suffix(".stf").exists())
    if not found:
        raise ConformanceError(
            f"{folder} holds no {PATTERN} with an .stf file beside it: give p4c's testdata/p4_16_samples"
        )
    if shutil.which(P4C) is None:
        raise ConformanceError(f"{P4C} is not on PATH (package p4lang-p4c): docs/p4c.md says where it is packaged")
    find_compiler()
    return found


def run(programs: list[Path], progress: Callable[[Outcome], None], jobs: int | None = None) -> ConformanceReport:
    """Run tests, each in its own process: a program that crashes the switch is a failed test and does not end the run."""
    report = ConformanceReport()
    with tempfile.TemporaryDirectory(prefix="netfold-conformance-") as scratch:
        for outcome in _all(programs, Path(scratch), jobs or os.cpu_count() or 1):
            report.add(outcome)
            progress(outcome)
    report.passed.sort()
    return report


def _all(programs: list[Path], scratch: Path, jobs: int) -> Iterator[Outcome]:
    waiting = list(reversed(programs))
    running: dict[Any, tuple[multiprocessing.Process, Path, float]] = {}  # and when it has to be done
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                program = waiting.pop()
                ours, theirs = multiprocessing.Pipe(duplex=False)
                process = multiprocessing.Process(target=_case, args=(program, scratch, theirs), daemon=True)
                process.start()
                theirs.close()
                running[ours] = process, program, time.monotonic() + CASE_S
            left_s = min(until for _, _, until in running.values()) - time.monotonic()
            done = wait(list(running), max(left_s, 0.0))
            for late in [
                ours for ours, (_, _, until) in running.items() if ours not in done and until <= time.monotonic()
            ]:
                process, program, _ = running.pop(late)
                process.kill()
                process.join()
                late.close()
                yield Outcome(program.stem, "failed", f"took longer than {CASE_S} s")
            for ready in done:
                process, program, _ = running.pop(ready)
                try:
                    yield cast(Connection, ready).recv()
                except EOFError:
                    process.join()
                    yield Outcome(program.stem, "failed", f"the switch crashed (exit code {process.exitcode})")
                process.join()
                ready.close()  # type: ignore[union-attr]
    finally:
        for process, _, _ in running.values():
            process.kill()


def _case(program: Path, scratch: Path, answer: Connection) -> None:
    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
    answer.send(judge(program, scratch))


def judge(program: Path, scratch: Path) -> Outcome:
    """Compile one program, load it, and run its test."""
    name = program.stem
    compiled = scratch / f"{name}.json"
    try:
        done = subprocess.run(
            [P4C, "--std", "p4-16", "--emit-externs", "-I", str(program.parent), "-o", str(compiled), str(program)],
            capture_output=True,
            text=True,
            timeout=CASE_S,
        )
    except subprocess.TimeoutExpired:
        return Outcome(name, "failed", f"{P4C} took longer than {CASE_S} s")
    if done.returncode != 0:
        why = next((line for line in done.stderr.splitlines() if "error" in line.lower()), f"{P4C} refused it")
        if any(words in done.stderr for words in OTHER_ARCHITECTURE):
            return Outcome(name, "unsupported", "another architecture than v1model")
        return Outcome(name, "failed", why)
    try:
        parsed = Program(compiled.read_bytes())
        dataplane = Dataplane(compile_program(Generator(parsed).generate()), parsed)
    except ProgramError as error:
        return Outcome(name, "unsupported", str(error))
    except CompilerError as error:
        return Outcome(name, "failed", str(error))
    try:
        Stf(parsed, dataplane).run(program.with_suffix(".stf").read_text())
    except EmulationError as error:
        return Outcome(name, "failed", str(error))
    finally:
        dataplane.close()
    return Outcome(name, "passed")
