"""veth pairs in a network namespace of a test's own."""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

CLONE_NEWNET = 0x40000000
Returned = TypeVar("Returned")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network namespace and packet sockets")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@contextmanager
def veths(count: int) -> Iterator[str]:
    """A namespace with s1-h1, s2-h2, ... up and silent; its name."""
    space = f"netfold-test-{os.getpid()}-{secrets.token_hex(2)}"
    ip("netns", "add", space)
    try:
        inside(space, lambda: Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1"))
        for number in range(1, count + 1):
            ip("-n", space, "link", "add", f"s{number}", "type", "veth", "peer", "name", f"h{number}")
            for end in (f"s{number}", f"h{number}"):
                ip("-n", space, "link", "set", end, "up", "arp", "off")
        yield space
    finally:
        ip("netns", "delete", space)


def inside(space: str, do: Callable[[], Returned]) -> Returned:
    """Call `do` in a namespace, in a thread that ends there; sockets that it opens stay in it."""
    found: list[Returned] = []
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            with open(f"/run/netns/{space}") as entry:
                assert ctypes.CDLL(None).setns(entry.fileno(), CLONE_NEWNET) == 0
            found.append(do())
        except BaseException as failed:
            wrong.append(failed)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if wrong:
        raise wrong[0]
    return found[0]
