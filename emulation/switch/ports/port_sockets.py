"""Helpers for the sockets of all kinds of port."""

from __future__ import annotations

import errno
import resource
import socket

from emulation.errors import PortError
from emulation.switch.ports.port_spec import Endpoint

SOCKET_BUFFER_BYTES = 8 << 20

# From kernel headers; Python has no names for them.
SO_SNDBUFFORCE, SO_RCVBUFFORCE, UDP_GRO = 32, 33, 104


def enlarge_buffers(sock: socket.socket, sending: bool = True) -> None:
    """Enlarge a socket's buffers, beyond the system's limit for users if permitted; `sending`: that for output, too."""
    both = (SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)
    for force, option in both if sending else both[:1]:
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, SOCKET_BUFFER_BYTES)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)


def reason(error: OSError) -> str:
    """Why the system refused, with the limit if one was reached."""
    if error.errno == errno.EMFILE:
        return f"{error.strerror}: a process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} (ulimit -n)"
    return error.strerror or str(error)


def udp_socket(bind: Endpoint) -> socket.socket:
    """A bound UDP socket that receives several datagrams as one.

    Raises:
        PortError: the address is taken or unavailable.
    """
    sock = None
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        enlarge_buffers(sock)
        sock.bind((bind.address, bind.port))
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise PortError(f"cannot bind udp {bind}: {reason(error)}") from error
    return sock
