"""Network namespaces of our own, with veth pairs: where real packets go without touching the machine's network."""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hostlib.errors import HostlibError

CLONE_NEWNET = 0x40000000
NAMESPACES = "/run/netns"  # by name
IP_S = 20
Returned = TypeVar("Returned")


class NamespaceError(HostlibError):
    """A namespace could not be made or entered."""


def ip(*arguments: str, command: str = "ip", lines: Iterable[str] = ()) -> None:
    """Run iproute2's `ip`, or another command of its.

    Args:
        lines: what the command reads, with `-batch -`.

    Raises:
        NamespaceError: it is not there, or failed.
    """
    try:
        done = subprocess.run(
            [command, *arguments], input="\n".join(lines), capture_output=True, text=True, timeout=IP_S
        )
    except FileNotFoundError:
        raise NamespaceError(f"no {command} on PATH: apt-get install iproute2") from None
    except subprocess.TimeoutExpired:
        raise NamespaceError(f"{command} {' '.join(arguments)} did not end within {IP_S} s") from None
    if done.returncode != 0:
        raise NamespaceError(f"{command} {' '.join(arguments)}: {' '.join(done.stderr.split())}")


@contextmanager
def namespace(purpose: str, name: str = "") -> Iterator[str]:
    """A namespace without IPv6, whose loopback is up; its own name, which begins with netfold-PURPOSE-PID.

    Raises:
        NamespaceError: none can be made; it needs root.
    """
    space = f"netfold-{purpose}-{os.getpid()}-{name or secrets.token_hex(2)}"
    try:
        make_namespace(space)
        yield space
    finally:
        delete_namespace(space)


def make_namespace(space: str) -> None:
    """A namespace without IPv6, whose loopback is up.

    Raises:
        NamespaceError: it cannot be made; it needs root.
    """
    ip("netns", "add", space)
    # Nothing but what we send is to be heard there.
    inside(space, lambda: Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1"))
    ip("-n", space, "link", "set", "lo", "up")


def delete_namespace(space: str) -> None:
    """If it is there."""
    subprocess.run(["ip", "netns", "delete", space], capture_output=True, timeout=IP_S)


def sweep() -> list[str]:
    """Remove the namespaces of processes that were killed before they could; which."""
    left = [entry.name for entry in Path(NAMESPACES).glob("netfold-*") if orphaned(entry.name)]
    for space in left:
        delete_namespace(space)
    return left


def orphaned(name: str) -> bool:
    """Whether something called netfold-PURPOSE-PID-... was made by a process that is gone."""
    maker = re.fullmatch(r"netfold-[a-z]+-(\d+)-\w+", name)
    return maker is not None and not Path("/proc", maker[1]).exists()


@contextmanager
def veths(count: int, purpose: str, mtu: int = 1500) -> Iterator[str]:
    """A namespace with veth pairs s1-h1, s2-h2, ..., up and silent; its name, which begins with netfold-PURPOSE.

    Raises:
        NamespaceError: no namespace can be made; it needs root.
    """
    with namespace(purpose) as space:
        for number in range(1, count + 1):
            ip("-n", space, "link", "add", f"s{number}", "type", "veth", "peer", "name", f"h{number}")
            for end in (f"s{number}", f"h{number}"):
                ip("-n", space, "link", "set", end, "up", "arp", "off", "mtu", str(mtu))
        yield space


def inside(space: str, do: Callable[[], Returned]) -> Returned:
    """Call `do` in a namespace, in a thread that ends there; sockets that it opens stay in it.

    Args:
        space: its name, or a path that leads to it (/proc/PID/ns/net).

    Raises:
        NamespaceError: there is no such namespace, or it may not be entered.
        Exception: whatever `do` raises.
    """
    found: list[Returned] = []
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            with Path(NAMESPACES, space).open() as entry:
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
