"""Read users' files, refusing endless or endlessly nested ones, and check those to be written; where to keep compiled code."""

from __future__ import annotations

import errno
import json
import os
import select
import stat
import time
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20
PIPE_WAIT_S = 2.0  # for somebody to open a pipe for writing


def cache_folder() -> Path:
    """Where compiled code is kept: $XDG_CACHE_HOME/netfold, or ~/.cache/netfold; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netfold"


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a file.

    Raises:
        OSError: it cannot be read, or has more than `most` bytes, as /dev/zero has, or is a pipe that
            nothing writes to.
    """
    if stat.S_ISFIFO(path.stat().st_mode):
        found = _read_pipe(path, most)
    else:
        with path.open("rb") as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
                most = min(most, MOST_BYTES)
            found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", str(path))
    return found


def _read_pipe(path: Path, most: int) -> bytes:
    """Read a pipe to its end; one that nothing opens for writing would never come to it."""
    found = b""
    deadline = time.monotonic() + PIPE_WAIT_S
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        while len(found) <= most:
            part = pipe.read(most + 1 - len(found))
            if part is None:
                select.select([pipe], [], [])  # whoever has it open writes later
            elif part:
                found += part
            elif found or time.monotonic() > deadline:
                break
            else:
                time.sleep(0.01)
    if not found:
        raise OSError(errno.EPIPE, "it is a pipe that nothing writes to", str(path))
    return found


def read_text(path: Path) -> str:
    """Read a UTF-8 file; line ends become newlines.

    Raises:
        OSError: as read_bytes().
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_bytes(path).decode("utf-8").replace("\r\n", "\n")


def is_writable(path: Path) -> bool:
    """Whether a file can be written there: it is no folder, and its folder exists."""
    return not path.is_dir() and os.access(path if path.exists() else path.absolute().parent, os.W_OK)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
