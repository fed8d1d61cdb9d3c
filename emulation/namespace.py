"""Network namespaces of our own, with veth pairs: where real packets go without touching the machine's network."""

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

from emulation.errors import EmulationError

CLONE_NEWNET = 0x40000000
IP_S = 20
Returned = TypeVar("Returned")


class NamespaceError(EmulationError):
    """A namespace could not be made or entered."""


def ip(*arguments: str) -> None:
    """Run iproute2's `ip`.

    Raises:
        NamespaceError: it is not there, or failed.
    """
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=IP_S)
    except FileNotFoundError:
        raise NamespaceError("no ip on PATH: apt-get install iproute2") from None
    if done.returncode != 0:
        raise NamespaceError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def veths(count: int, purpose: str, mtu: int = 1500) -> Iterator[str]:
    """A namespace with veth pairs s1-h1, s2-h2, ..., up and silent; its name, which begins with netfold-PURPOSE.

    Raises:
        NamespaceError: no namespace can be made; it needs root.
    """
    space = f"netfold-{purpose}-{os.getpid()}-{secrets.token_hex(2)}"
    try:
        ip("netns", "add", space)
        # Nothing but what we send is to be heard there.
        inside(space, lambda: Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1"))
        ip("-n", space, "link", "set", "lo", "up")
        for number in range(1, count + 1):
            ip("-n", space, "link", "add", f"s{number}", "type", "veth", "peer", "name", f"h{number}")
            for end in (f"s{number}", f"h{number}"):
                ip("-n", space, "link", "set", end, "up", "arp", "off", "mtu", str(mtu))
        yield space
    finally:
        subprocess.run(["ip", "netns", "delete", space], capture_output=True, timeout=IP_S)


def inside(space: str, do: Callable[[], Returned]) -> Returned:
    """Call `do` in a namespace, in a thread that ends there; sockets that it opens stay in it.

    Raises:
        NamespaceError: there is no such namespace, or it may not be entered.
        Exception: whatever `do` raises.
    """
    found: list[Returned] = []
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            with open(f"/run/netns/{space}") as entry:
                if ctypes.CDLL(None, use_errno=True).setns(entry.fileno(), CLONE_NEWNET) != 0:
                    raise NamespaceError(f"cannot enter namespace {space}: {os.strerror(ctypes.get_errno())}")
            found.append(do())
        except BaseException as failed:
            wrong.append(failed)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if wrong:
        raise wrong[0]
    return found[0]
