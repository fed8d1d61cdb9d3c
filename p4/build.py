"""`make p4`: compile the P4 programs with p4c when it is there, else verify the committed artifacts.

Both leave p4/build/ as its lock.json says: sha256 of every source and artifact, and the version of p4c.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

P4 = Path(__file__).resolve().parent
BUILD = P4 / "build"
LOCK = BUILD / "lock.json"
ELEMENTS = (64, 256)
COMPILER = "p4c-bm2-ss"


def digests(paths: list[Path]) -> dict[str, str]:
    """sha256 by path relative to p4/, in sorted order."""
    return {p.relative_to(P4).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(paths)}


def sources() -> list[Path]:
    return [*P4.glob("common/*.p4"), *P4.glob("v1model/*.p4")]


def run(*command: str) -> str:
    """Run a command in p4/; its output. Relative paths keep the machine out of the artifacts."""
    done = subprocess.run(command, cwd=P4, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{done.stderr.strip()}\nerror: {command[0]} failed with exit code {done.returncode}")
    return done.stdout + done.stderr


def compile_program(elements: int, into: Path) -> list[str]:
    """Compile the v1model program for one vector size; the names of the artifacts."""
    program = f"netfold-v1model-{elements}"
    json_file, p4info = into / f"{program}.json", into / f"{program}.p4info.txtpb"
    run(
        COMPILER,
        "--std",
        "p4-16",
        f"-DELEMENTS={elements}",
        "-o",
        str(json_file),
        "--p4runtime-files",
        str(p4info),
        "v1model/netfold.p4",
    )
    # The compiler writes the name of its input file in several spellings; one spelling keeps artifacts reproducible.
    described = json.loads(json_file.read_text())
    described["program"] = "v1model/netfold.p4"
    json_file.write_text(json.dumps(described, indent=1) + "\n")
    return [json_file.name, p4info.name]


def build() -> None:
    """Compile everything; artifacts and lock change together or not at all."""
    found = re.search(r"Version (\S+)", run(COMPILER, "--version"))
    version = found.group(1) if found else "unknown"
    with tempfile.TemporaryDirectory(dir=P4) as scratch:
        names = [name for e in ELEMENTS for name in compile_program(e, Path(scratch))]
        BUILD.mkdir(exist_ok=True)
        for name in names:
            shutil.move(Path(scratch) / name, BUILD / name)
    lock = {
        "p4c": version,
        "sources": digests(sources()),
        "artifacts": {n: hashlib.sha256((BUILD / n).read_bytes()).hexdigest() for n in sorted(names)},
    }
    LOCK.write_text(json.dumps(lock, indent=1) + "\n")
    print(f"p4: compiled {len(ELEMENTS)} programs with p4c {version}")


def verify() -> None:
    """Raise SystemExit, with one line naming the file, unless sources and artifacts are those of the lock."""
    if not LOCK.exists():
        raise SystemExit(f"error: {LOCK} is missing: install p4c (docs/p4c.md) and run make p4")
    lock = json.loads(LOCK.read_text())
    artifacts = {
        n: hashlib.sha256((BUILD / n).read_bytes()).hexdigest() if (BUILD / n).exists() else "missing"
        for n in lock["artifacts"]
    }
    for kind, now, locked in (
        ("source", digests(sources()), lock["sources"]),
        ("artifact", artifacts, lock["artifacts"]),
    ):
        for name in sorted(now.keys() | locked.keys()):
            if now.get(name) != locked.get(name):
                raise SystemExit(
                    f"error: {kind} {name} does not fit p4/build/lock.json: install p4c (docs/p4c.md) "
                    "and run make p4, or restore the file with git"
                )
    print(f"p4: artifacts fit their lock (compiled by p4c {lock['p4c']}; no {COMPILER} on PATH)")


if __name__ == "__main__":
    if "--verify" in sys.argv[1:] or shutil.which(COMPILER) is None:
        verify()
    else:
        build()
