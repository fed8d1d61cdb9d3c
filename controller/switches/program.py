"""The compiled P4 programs, checked against their lock before one is pushed to a switch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from controller.errors import ArtifactError

PACKAGE = Path(__file__).resolve().parents[1]
ELEMENTS = (64, 256)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled program: BMv2 JSON and P4Info (text format)."""

    name: str
    elements: int
    program: bytes
    p4info: str


def build_dir() -> Path:
    """The p4/build folder of a source tree, or the copy that was installed with the package.

    Raises:
        ArtifactError: neither exists.
    """
    for candidate in (PACKAGE.parent / "p4" / "build", PACKAGE / "artifacts"):
        if (candidate / "lock.json").exists():
            return candidate
    raise ArtifactError("no compiled P4 programs found: p4/build/lock.json is missing (run make p4)")


def load_artifact(elements: int, directory: Path | None = None) -> Artifact:
    """Load the v1model program for vectors of `elements` int32.

    Raises:
        ArtifactError: there is no such build, or a file does not match the lock.
    """
    if elements not in ELEMENTS:
        raise ArtifactError(
            f"no program for {elements} elements per packet; there are {' and '.join(map(str, ELEMENTS))}"
        )
    directory = directory or build_dir()
    name = f"netfold-v1model-{elements}"
    try:
        locked = json.loads((directory / "lock.json").read_text())["artifacts"]
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{directory / 'lock.json'} cannot be read: {error}") from error
    contents = [_checked(directory / f"{name}{suffix}", locked) for suffix in (".json", ".p4info.txtpb")]
    return Artifact(name, elements, contents[0], contents[1].decode())


def _checked(path: Path, locked: dict[str, str]) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != locked.get(path.name):
        raise ArtifactError(f"{path} does not match {path.with_name('lock.json')}: run make p4, or restore it with git")
    return data
