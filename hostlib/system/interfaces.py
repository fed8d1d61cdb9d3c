"""This machine's network interfaces: addresses, MTU and offloads; and which UDP ports are unused."""

from __future__ import annotations

import array
import errno
import fcntl
import random
import socket
import struct
from ipaddress import IPv4Address
from pathlib import Path

from hostlib.system.tcp_counters import ByteCounts

# Source: netdevice(7), linux/sockios.h, linux/if_arp.h, linux/ethtool.h. An ifreq is a 16-byte name and a 24-byte union.
SIOCGIFCONF = 0x8912
SIOCGIFHWADDR = 0x8927
SIOCGIFMTU = 0x8921
SIOCETHTOOL, ETHTOOL_GGSO, ETHTOOL_GGRO = 0x8946, 0x23, 0x2B
ARPHRD_ETHER = 1
IFREQ_BYTES = 40
MOST_ADDRESSES = 1024
# UDP ports that can be told before their process starts. As Linux comes, it gives those above to whoever asks for any
# port; only who chooses from these, too, may take one meanwhile.
CHOSEN_FROM = range(20000, 32768)
TRIES = 1000


def mac_of(address: str) -> str | None:
    """The MAC (aa:bb:cc:dd:ee:ff) of the Ethernet interface with an IPv4 address.

    None on loopback, on an interface without a MAC, and if no interface has the address.
    """
    if IPv4Address(address).is_loopback:
        return None
    name = interface_of(address)
    if name is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        kind, mac = struct.unpack_from(
            "<16xH6s", fcntl.ioctl(asking, SIOCGIFHWADDR, struct.pack("16s24x", name.encode()))
        )
    return mac.hex(":") if kind == ARPHRD_ETHER else None


def interface_of(address: str) -> str | None:
    """The interface with an IPv4 address; None if there is none."""
    # SIOCGIFCONF also lists an interface's additional addresses; SIOCGIFADDR only gives the first one.
    listed = array.array("B", bytes(MOST_ADDRESSES * IFREQ_BYTES))
    where, size = listed.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, SIOCGIFCONF, struct.pack("iL", size, where))
    (used,) = struct.unpack_from("i", answer)
    for at in range(0, used, IFREQ_BYTES):
        name, found = struct.unpack_from("16s4x4s", listed, at)
        if found == socket.inet_aton(address):
            return bytes(name).split(b"\0")[0].split(b":")[0].decode()
    return None


def link_bytes(address: str) -> ByteCounts | None:
    """Bytes of frames that have passed the interface with an IPv4 address, Ethernet headers included.

    None on loopback, and if no interface has the address. What a sender hands over as one (GSO) counts one header.

    Source: proc_net(5), /proc/net/dev: that of this process's namespace.
    """
    name = None if IPv4Address(address).is_loopback else interface_of(address)
    if name is None:
        return None
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        interface, _, counts = line.partition(":")
        if interface.strip() == name:
            numbers = [int(each) for each in counts.split()]
            return ByteCounts(sent=numbers[8], received=numbers[0])
    return None


def mtu_of(interface: str) -> int:
    """The MTU of an interface, in bytes of an IP packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, SIOCGIFMTU, struct.pack("16s24x", interface.encode()))
    return int(struct.unpack_from("i", answer, 16)[0])


def offload(interface: str, command: int) -> bool | None:
    """Whether an offload is on; None if the interface does not report it.

    Args:
        command: ETHTOOL_GGSO or ETHTOOL_GGRO.
    """
    asked = array.array("I", [command, 0])
    request = struct.pack("16sP16x", interface.encode(), asked.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            fcntl.ioctl(asking, SIOCETHTOOL, request)
        except OSError:
            return None
    return bool(asked[1])


def unused_udp_ports(address: str, count: int) -> list[int]:
    """Choose different UDP ports that nobody has bound.

    Raises:
        OSError: `address` is not this machine's, or too few ports are unused.
    """
    chosen: list[int] = []
    tried = random.SystemRandom().sample(CHOSEN_FROM, TRIES)
    while len(chosen) < count:
        if not tried:
            raise OSError(f"{address} has no {count} unused UDP ports in {CHOSEN_FROM.start}..{CHOSEN_FROM.stop - 1}")
        port = tried.pop()
        if _unused(address, port):
            chosen.append(port)
    return chosen


def _unused(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True
