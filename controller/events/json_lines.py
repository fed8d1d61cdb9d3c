"""A bounded file of JSON lines: when it is full it is renamed, and the oldest one is deleted."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20
FILES = 4

log = logging.getLogger(__name__)


class JsonLines:
    """Append-only records in PATH, PATH.1, ..., newest first.

    A disk that is full or gone does not stop the writer: the error is logged once, and records are lost until it recovers.

    Args:
        path: None to keep nothing.
        most_bytes: of each file.
        files: how many there are at most.
    """

    def __init__(self, path: Path | None, most_bytes: int = MOST_BYTES, files: int = FILES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._files = files
        self.failed: str | None = None

    def _file(self, number: int) -> Path:
        assert self._path is not None
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")

    def append(self, record: dict[str, Any]) -> None:
        if self._path is None:
            return
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            self._write(line)
            self.failed = None
        except OSError as error:
            if self.failed is None:
                log.warning("%s cannot be written: %s; what happens is not kept", self._path, error.strerror or error)
            self.failed = str(error.strerror or error)

    def _write(self, line: bytes) -> None:
        path = self._file(0)
        size = path.stat().st_size if path.exists() else 0
        if size and size + len(line) > self._most_bytes:
            for number in range(self._files - 1, 0, -1):
                older = self._file(number - 1)
                if older.exists():
                    older.replace(self._file(number))
        with path.open("ab") as file:
            path.chmod(0o600)
            if file.tell() and not _ends_a_line(path):
                line = b"\n" + line  # The writer was killed, or the disk full, within a record.
            file.write(line)

    def read(self) -> list[dict[str, Any]]:
        """All records, oldest first; what is not a whole record is left out."""
        found: list[dict[str, Any]] = []
        if self._path is None:
            return found
        for number in range(self._files - 1, -1, -1):
            try:
                lines = self._file(number).read_bytes().splitlines()
            except OSError:
                continue
            for line in lines:
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(record, dict):
                    found.append(record)
        return found


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
