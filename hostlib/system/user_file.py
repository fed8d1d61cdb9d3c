"""Read users' files, refusing endless or endlessly nested ones."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a file.

    Raises:
        OSError: it cannot be read, or has more than `most` bytes, as /dev/zero has.
    """
    with path.open("rb") as file:
        if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
            most = min(most, MOST_BYTES)
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", str(path))
    return found


def read_text(path: Path) -> str:
    """Read a UTF-8 file; line ends become newlines.

    Raises:
        OSError: as read_bytes().
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_bytes(path).decode("utf-8").replace("\r\n", "\n")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
