"""Network interfaces as ports: a packet socket and, if the kernel supports it, a fast path for output past its queues.

The C code is runtime/ports/packet.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import re
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from emulation.errors import PortError
from emulation.switch.ports.port_sockets import enlarge_buffers, reason
from emulation.switch.ports.port_spec import Endpoint, Kind

TX_BYTES = 64 * 9728  # of runtime/ports/port.h

# From kernel headers; Python has no names for them.
AF_XDP = 44
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_IGNORE_OUTGOING = 263, 1, 23
PACKET_MR_PROMISC, ETH_P_ALL, ARPHRD_ETHER, ARPHRD_LOOPBACK = 1, 3, 1, 772
SIOCGIFMTU, VLAN_HEADER_BYTES = 0x8921, 18
RTM_GETLINK, NLM_F_REQUEST, IFLA_QDISC = 18, 1, 6
NLMSG_HEADER, LINK_HEADER, ATTRIBUTE_HEADER = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), struct.Struct("=HH")

Socket = socket.socket  # a name that a field called `socket` does not hide


@dataclass(frozen=True, slots=True)
class PacketSocket:
    """A network interface by name.

    Attributes:
        direct: output may bypass the interface's taps, if it has no queue.
    """

    LISTED: ClassVar[str | None] = None
    interface: str
    direct: bool = True

    @classmethod
    def parse(cls, ends: Sequence[str], options: Mapping[str, str]) -> PacketSocket:
        """Parse an interface's name and options. Raises PortError: the name or the value of `direct` is illegal."""
        name, direct = ends[0], options.get("direct", "yes")
        if len(name.encode()) > 15 or re.search(r"[\s/:=]", name):
            raise PortError(f"{name!r} cannot be the name of a network interface")
        if direct not in ("yes", "no"):
            raise PortError(f"direct={direct}: direct is yes or no")
        return cls(name, direct == "yes")

    def open(self) -> OpenPacketSocket:
        sock = packet_socket(self.interface)
        try:
            return OpenPacketSocket.of(self.interface, sock, self.direct)
        except OSError as error:
            sock.close()
            raise PortError(f"cannot open interface {self.interface}: {reason(error)}") from error


@dataclass(frozen=True, slots=True)
class OpenPacketSocket:
    """A packet socket with the other state of a port on an interface; it is passed on between programs.

    Attributes:
        longest_frame: bytes that the interface takes, VLAN tag included.
        waiting: memory for frames in the output queue.
        xdp: a socket for the transmit ring of runtime/ports/xdp.h; None if frames have to use the packet socket.
    """

    socket: Socket
    longest_frame: int
    waiting: mmap.mmap
    xdp: Socket | None

    @classmethod
    def of(cls, name: str, packet: Socket, direct: bool) -> OpenPacketSocket:
        """Wrap an interface's packet socket; `direct`: with the fast path for output, if the interface has no queue."""
        described = fcntl.ioctl(packet, SIOCGIFMTU, struct.pack("16s16x", name.encode()))
        longest = struct.unpack_from("i", described, 16)[0] + VLAN_HEADER_BYTES
        return cls(packet, longest, mmap.mmap(-1, TX_BYTES), _xdp_socket() if direct and queueless(name) else None)

    def attach(self, library: ctypes.CDLL, port: Sequence[Any], destination: Endpoint | None) -> int:
        waiting = ctypes.addressof(ctypes.c_char.from_buffer(self.waiting))
        xdp = -1 if self.xdp is None else self.xdp.fileno()
        longest = ctypes.c_uint32(self.longest_frame)
        memory = ctypes.c_void_p(waiting), ctypes.c_size_t(TX_BYTES)
        return int(library.nf_packet_port(*port, longest, ctypes.c_int(xdp), *memory))

    def close(self) -> None:
        self.socket.close()
        if self.xdp is not None:
            self.xdp.close()


def packet_socket(name: str) -> socket.socket:
    """Open a packet socket that receives all frames of an interface.

    Raises:
        PortError: there is no such interface, or it cannot be opened.
    """
    sock = None
    try:
        if name not in (known := [name for _, name in socket.if_nameindex()]):
            raise PortError(f"there is no network interface {name}; there are {', '.join(known)}")
        # Protocol 0: nothing is received before the socket is bound to its interface.
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        # What the kernel's queue holds, the program does not see: it gets no more than from others.
        enlarge_buffers(sock, sending=queueless(name))
        sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        sock.bind((name, ETH_P_ALL))
        if sock.getsockname()[3] not in (ARPHRD_ETHER, ARPHRD_LOOPBACK):
            raise OSError(0, "it has no Ethernet frames")
        membership = struct.pack("@iHH8s", socket.if_nametoindex(name), PACKET_MR_PROMISC, 0, b"")
        sock.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, membership)
    except OSError as error:
        if sock is None and isinstance(error, PermissionError):
            raise PortError(f"{name}: packet sockets need root (CAP_NET_RAW)") from error
        if sock is not None:
            sock.close()
        raise PortError(f"cannot open interface {name}: {reason(error)}") from error
    return sock


def queueless(name: str) -> bool:
    """Whether an interface sends at once (as veth does) and has no queueing discipline."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        asked = LINK_HEADER.pack(0, 0, socket.if_nametoindex(name), 0, 0)
        header = NLMSG_HEADER.pack(NLMSG_HEADER.size + len(asked), RTM_GETLINK, NLM_F_REQUEST, 1, 0)
        netlink.sendto(header + asked, (0, 0))
        answer = netlink.recv(1 << 16)
    at = NLMSG_HEADER.size + LINK_HEADER.size
    while at + ATTRIBUTE_HEADER.size <= len(answer):
        size, kind = ATTRIBUTE_HEADER.unpack_from(answer, at)
        if kind == IFLA_QDISC:
            return answer[at + ATTRIBUTE_HEADER.size : at + size].rstrip(b"\0") == b"noqueue"
        at += max(ATTRIBUTE_HEADER.size, size + 3 & ~3)
    return False


def _xdp_socket() -> socket.socket | None:
    try:
        sock = socket.socket(AF_XDP, socket.SOCK_RAW, 0)
    except OSError:  # Kernels without them.
        return None
    enlarge_buffers(sock)
    return sock


KIND = Kind(
    name="eth",
    form="eth:INTERFACE or INTERFACE",
    summary="INTERFACE or eth:INTERFACE, a network interface (needs root)",
    parse=PacketSocket.parse,
    options={"direct": "direct=no: what leaves passes the interface's taps (tcpdump), and is slower"},
    bare=True,
)
