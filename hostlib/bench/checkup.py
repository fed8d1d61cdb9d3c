"""`hostlib doctor`: check this host, the fabric, and its jobs."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from hostlib.errors import HostlibError
from hostlib.protocol.framing import ip_bytes
from hostlib.protocol.header import ELEMENTS
from hostlib.system.http_client import HttpError, controller_status
from hostlib.system.interfaces import ETHTOOL_GGRO, ETHTOOL_GGSO, interface_of, mtu_of, offload

BUFFER_BYTES = 8 << 20  # what hostlib/native/net/udp_socket.cpp asks for
UDP_SEGMENT, UDP_GRO = 103, 104
SEGMENT_BYTES, SEGMENTS = 1000, 4
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        state: ok, warn (it works, slower than it could) or fail (it does not work).
        remedy: what to change; empty if ok.
    """

    name: str
    state: str
    found: str
    remedy: str = ""


def examine(controller: str, address: str, patience_s: float) -> list[Check]:
    """Check this host, then the fabric, then each job and its ranks.

    Args:
        address: this host's IPv4 address towards the switch.
        patience_s: a rank is stalled after this time without a heartbeat, or without progress while others make some.

    Raises:
        HostlibError: no interface has the address.
    """
    status: dict[str, Any] | HttpError
    try:
        status = controller_status(controller)
    except HttpError as error:
        status = error
    elements = ELEMENTS if isinstance(status, HttpError) else status["elements"]
    return [*host(address, elements), *fabric(controller, status, patience_s)]


# ---- this host --------------------------------------------------------------------------------------------------


def host(address: str, elements: int) -> Iterator[Check]:
    """Check buffers, interface for packets of so many elements, segmentation and cores."""
    for name in ("rmem_max", "wmem_max"):
        yield _buffer(name)
    interface = _interface(address)
    yield _mtu(interface, elements)
    yield _offloads(interface)
    yield _segmentation()
    cores = len(os.sched_getaffinity(0))
    if cores >= 2:
        yield Check("cores", "ok", f"{cores}")
    else:
        yield Check("cores", "warn", "1", "the packet engine needs a core of its own: allow this process more")


def _buffer(name: str) -> Check:
    size = int(Path("/proc/sys/net/core", name).read_text())
    if size >= BUFFER_BYTES:
        return Check(f"socket buffer {name}", "ok", f"{size} bytes")
    remedy = f"sysctl -w net.core.{name}={BUFFER_BYTES}: otherwise bursts may be lost and retransmitted"
    return Check(f"socket buffer {name}", "warn", f"{size} bytes", remedy)


def _interface(address: str) -> str:
    try:
        name = "lo" if socket.inet_aton(address)[0] == 127 else interface_of(address)
    except OSError:
        name = None
    if name is None:
        raise HostlibError(f"no interface of this host has the IPv4 address {address}: name one with --address")
    return name


def _mtu(interface: str, elements: int) -> Check:
    mtu, needed = mtu_of(interface), ip_bytes(elements)
    if mtu >= needed:
        return Check(f"MTU of {interface}", "ok", f"{mtu} bytes, {needed} needed")
    return Check(
        f"MTU of {interface}",
        "fail",
        f"{mtu} bytes, {needed} needed",
        f"ip link set {interface} mtu {1500 if needed <= 1500 else 9000}, or controller start with fewer --elements",
    )


def _offloads(interface: str) -> Check:
    features = {"gso": offload(interface, ETHTOOL_GGSO), "gro": offload(interface, ETHTOOL_GGRO)}
    found = ", ".join(f"{name} {'unknown' if on is None else 'on' if on else 'off'}" for name, on in features.items())
    off = [name for name, on in features.items() if on is False]
    if not off:
        return Check(f"offloads of {interface}", "ok", found)
    switches = " ".join(f"{name} on" for name in off)
    return Check(f"offloads of {interface}", "warn", found, f"ethtool -K {interface} {switches}: fewer system calls")


def _segmentation() -> Check:
    """Check whether a batch of datagrams is sent, and received, in one call."""
    try:
        received = _bundle()
    except OSError as error:
        return Check("UDP GSO and GRO", "warn", error.strerror or str(error), "Linux 5.0 or later has both")
    if received == SEGMENTS * SEGMENT_BYTES:
        return Check("UDP GSO and GRO", "ok", f"{SEGMENTS} datagrams in one call")
    remedy = "each datagram is received with its own system call; Linux 5.0 or later receives batches"
    return Check("UDP GSO and GRO", "warn", f"{received} bytes of {SEGMENTS * SEGMENT_BYTES} in one call", remedy)


def _bundle() -> int:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(1.0)
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        segment = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", SEGMENT_BYTES))]
        sender.sendmsg([bytes(SEGMENTS * SEGMENT_BYTES)], segment, 0, receiver.getsockname())
        return len(receiver.recv(1 << 16))


# ---- the fabric and its jobs ------------------------------------------------------------------------------------


def fabric(controller: str, status: dict[str, Any] | HttpError, patience_s: float) -> Iterator[Check]:
    """Check the controller, by its status or why there is none, its switches, and every job's ranks."""
    if isinstance(status, HttpError):
        yield Check("controller", "fail", str(status), "controller start, or --controller URL")
        return
    yield Check("controller", "ok", f"{controller}, version {status['version']}, {status['elements']} elements")
    for switch in status["switches"]:
        where = f"{switch['program']} at {switch['p4rt']}"
        if switch["up"]:
            yield Check(f"switch {switch['name']}", "ok", where)
        else:
            remedy = "start it again: the controller finds it; or controller stop and controller start"
            yield Check(f"switch {switch['name']}", "fail", f"{where}: gone", remedy)
    if not status["jobs"]:
        yield Check("jobs", "ok", "none")
    for job in status["jobs"]:
        yield from _job(job, patience_s)


def _job(job: dict[str, Any], patience_s: float) -> Iterator[Check]:
    name, ranks = f"job {job['name']}", job["ranks"]
    absent = sorted(set(range(job["world_size"])) - {rank["rank"] for rank in ranks})
    if job["state"] != "ready" and absent:
        yield Check(name, "warn", f"waits for {_ranks(absent)}", "start them, or end the others")
    else:
        there = [rank for rank in ranks if rank["state"] == "joined"]
        idle_s = min((rank["last_progress_s"] for rank in there), default=0.0)
        found = f"{job['state']}, {len(there)} of {job['world_size']} ranks, last progress {idle_s:.1f} s ago"
        yield Check(name, "ok", found)
    furthest = max((rank["position"] for rank in ranks), default=0)
    for rank in ranks:
        yield _rank(name, rank, furthest, patience_s)


def _rank(job: str, rank: dict[str, Any], furthest: int, patience_s: float) -> Check:
    behind = furthest - rank["position"]
    found = (
        f"slot position {rank['position']}"
        + (f", {behind} behind" if behind else "")
        + f", {rank['state']}, last heartbeat {rank['last_heartbeat_s']:.1f} s ago, "
        f"last progress {rank['last_progress_s']:.1f} s ago"
    )
    name = f"{job}, rank {rank['rank']} at {rank['address']}"
    if rank["state"] == "left":
        return Check(name, "ok", found)
    if rank["state"] == "lost" or rank["last_heartbeat_s"] > patience_s:
        return Check(name, "fail", found, "its process is dead, stopped, or cut off from the controller: check it")
    if behind and rank["last_progress_s"] > patience_s:
        return Check(name, "fail", found, "the others wait for it: check its process, and its link")
    return Check(name, "ok", found)


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def print_checks(checks: list[Check], console: Console) -> None:
    """Print one line for each check."""
    for check in checks:
        remedy = f" -> {check.remedy}" if check.remedy else ""
        line = f"[{STYLES[check.state]}]{check.state:<5}[/]{escape(f'{check.name}: {check.found}{remedy}')}"
        console.print(line, highlight=False, soft_wrap=True)
