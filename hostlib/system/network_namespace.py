"""Network namespaces with veth pairs, so that real packets do not touch the machine's network."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil

from hostlib.errors import HostlibError
from hostlib.system.process import NAMESPACES

CLONE_NEWNET = 0x40000000
Returned = TypeVar("Returned")


class NamespaceError(HostlibError):
    """A namespace that could not be made or entered."""


@contextmanager
def namespace(purpose: str, name: str = "") -> Iterator[str]:
    """Make a namespace without IPv6, with loopback up; yields its name, which begins with netfold-PURPOSE-PID.

    Raises:
        NamespaceError: it cannot be made; it needs root.
    """
    space = f"netfold-{purpose}-{os.getpid()}-{name or secrets.token_hex(2)}"
    try:
        make_namespace(space)
        yield space
    finally:
        delete_namespace(space)


def make_namespace(space: str) -> None:
    """Make a namespace without IPv6, with loopback up.

    Raises:
        NamespaceError: it cannot be made; it needs root.
    """
    from pyroute2 import IPRoute, netns  # slow to import, and rarely needed

    def make() -> None:
        # Not netns.create: it forks this process, whose other threads may hold locks, and waits for two seconds.
        _call_libc("unshare", CLONE_NEWNET)
        netns.attach(space, "thread-self")
        # Only our own packets are to be heard there.
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
        with IPRoute() as kernel:
            kernel.link("set", index=1, state="up")  # lo

    try:
        _in_a_thread(make)
    except OSError as error:
        raise NamespaceError(f"cannot make the network namespace {space}: {error.strerror or error}") from None


def take_part_in_ecn() -> None:
    """Have TCP of this thread's namespace ask for ECN (RFC 3168), and not only grant it."""
    Path("/proc/sys/net/ipv4/tcp_ecn").write_text("1")


def delete_namespace(space: str) -> None:
    """Delete a namespace if it exists."""
    from pyroute2 import netns

    with contextlib.suppress(OSError):
        netns.remove(space)


def sweep() -> list[str]:
    """Remove the namespaces of processes that were killed before they could; returns their names."""
    left = [entry.name for entry in Path(NAMESPACES).glob("netfold-*") if orphaned(entry.name)]
    for space in left:
        delete_namespace(space)
    return left


def orphaned(name: str) -> bool:
    """Whether a namespace called netfold-PURPOSE-PID-... was made by a process that has ended."""
    maker = re.fullmatch(r"netfold-[a-z]+-(\d+)-\w+", name)
    return maker is not None and not psutil.pid_exists(int(maker[1]))


@contextmanager
def veths(count: int, purpose: str, mtu: int = 1500) -> Iterator[str]:
    """Make a namespace with veth pairs s1-h1, s2-h2, ..., up and silent; yields its name, netfold-PURPOSE-...

    Raises:
        NamespaceError: it cannot be made; it needs root.
    """
    with namespace(purpose) as space:
        inside(space, lambda: _cable(count, mtu))
        yield space


def _cable(count: int, mtu: int) -> None:
    from pyroute2 import IPRoute

    with IPRoute() as kernel:
        for number in range(1, count + 1):
            kernel.link("add", ifname=f"s{number}", kind="veth", peer=f"h{number}")
            for end in (f"s{number}", f"h{number}"):
                (index,) = kernel.link_lookup(ifname=end)
                kernel.link("set", index=index, state="up", arp=False, mtu=mtu)


def inside(space: str, do: Callable[[], Returned]) -> Returned:
    """Call `do` in a namespace, in a temporary thread; sockets that it opens stay in that namespace.

    Args:
        space: its name, or a path to it (/proc/PID/ns/net).

    Raises:
        NamespaceError: there is no such namespace, or permission is denied.
        Exception: whatever `do` raises.
    """

    def enter_and_do() -> Returned:
        try:
            with Path(NAMESPACES, space).open() as entry:
                _call_libc("setns", entry.fileno(), CLONE_NEWNET)
        except OSError as error:
            raise NamespaceError(f"cannot enter namespace {space}: {error.strerror}") from None
        return do()

    return _in_a_thread(enter_and_do)


def _call_libc(function: str, *values: int) -> None:
    """Call a function of libc that Python 3.11 has no name for.

    Raises:
        OSError: it failed.
    """
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*values) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _in_a_thread(do: Callable[[], Returned]) -> Returned:
    """What `do` returns, or raises, called in a thread that ends with it, and with it the thread's namespace."""
    found: list[Returned] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(do())
        except BaseException as failed:
            errors.append(failed)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]
