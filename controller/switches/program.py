"""The compiled P4 programs, checked against their lock before one is pushed to a switch."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path

from controller.errors import ArtifactError
from controller.target import V1MODEL, Target

PACKAGE = Path(__file__).resolve().parents[1]
ELEMENTS = V1MODEL.elements
_TABLES = "pipe/context.json"
_DEVICE_DATA = 3  # field of P4DeviceConfig


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled program: what P4Runtime takes as its device config, and P4Info (text format)."""

    name: str
    elements: int
    program: bytes
    p4info: str

    @property
    def cookie(self) -> int:
        """By which P4Runtime tells whether a switch runs it."""
        return int.from_bytes(hashlib.sha256(self.program).digest()[:8], "big")


def build_dir() -> Path:
    """The p4/build folder of a source tree, or the copy that was installed with the package.

    Raises:
        ArtifactError: neither exists.
    """
    for candidate in (PACKAGE.parent / "p4" / "build", PACKAGE / "artifacts"):
        if (candidate / "lock.json").exists():
            return candidate
    raise ArtifactError("no compiled P4 programs found: p4/build/lock.json is missing (run make p4)")


def load_artifact(elements: int, directory: Path | None = None, target: Target = V1MODEL) -> Artifact:
    """Load the program of a target for vectors of `elements` int32.

    Raises:
        ArtifactError: there is no such build, or a file does not match the lock.
    """
    if elements not in target.elements:
        where = "" if target is V1MODEL else f" on {target.name}"
        there = ", ".join(map(str, target.elements))
        raise ArtifactError(f"no program for {elements} elements per packet{where}; there are {there}")
    directory = directory or build_dir()
    name = f"netfold-{target.architecture}-{elements}"
    try:
        lock = json.loads((directory / "lock.json").read_text())
        locked = {**lock["artifacts"], **lock["tofino"]["artifacts"], **lock["tofino2"]["artifacts"]}
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{directory / 'lock.json'} cannot be read: {error}") from error
    suffix = ".json" if target is V1MODEL else ".tar.gz"
    program, p4info = (_checked(directory / f"{name}{each}", locked) for each in (suffix, ".p4info.txtpb"))
    config = program if target is V1MODEL else _device_config(name, program, f"pipe/{target.name}.bin")
    return Artifact(name, elements, config, p4info.decode())


def _device_config(name: str, archive: bytes, binary: str) -> bytes:
    """What a Tofino's driver takes: a P4DeviceConfig with the program's name, its binary, and its tables.

    Source: p4lang/open-p4studio, p4runtime_update_config.py; p4lang/PI, proto/p4/tmp/p4config.proto.
    """
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        parts = [name.encode()]
        for each in (binary, _TABLES):
            found = files.extractfile(each)
            assert found is not None, "make p4 packs it"
            parts.append(found.read())
    data = b"".join(struct.pack("<i", len(part)) + part for part in parts)
    return bytes([_DEVICE_DATA << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """A number in protobuf's wire format."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _checked(path: Path, locked: dict[str, str]) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != locked.get(path.name):
        raise ArtifactError(f"{path} does not match {path.with_name('lock.json')}: run make p4, or restore it with git")
    return data
