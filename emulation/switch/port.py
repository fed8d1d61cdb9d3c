"""Switch ports: UDP sockets on loopback, wires to other switches, network interfaces; and what their links do."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from emulation.errors import PortError
from emulation.switch.interface import Interface, enlarge_buffers, packet_socket
from hostlib import quantity
from hostlib.errors import QuantityError

HIGHEST_PORT = 510  # 511 is v1model's drop port
FORMS = "udp:ADDRESS:PORT (as in 1=udp:127.0.0.1:9001), wire:ADDRESS:PORT[,ADDRESS:PORT], eth:INTERFACE or INTERFACE"
UDP_GRO = 104  # of linux/udp.h: Python has no name for it


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An IPv4 address and UDP or TCP port."""

    address: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """From `ADDRESS:PORT`.

        Raises:
            PortError: not of that form.
        """
        address, _, port = text.rpartition(":")
        try:
            socket.inet_aton(socket.gethostbyname(address))
            number = int(port)
            if not 0 <= number <= 65535:
                raise ValueError(port)
        except (OSError, ValueError):
            raise PortError(f"{text!r} is not ADDRESS:PORT (as in 127.0.0.1:4793)") from None
        return cls(socket.gethostbyname(address), number)

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities per packet, port and direction, drawn from streams that `seed` determines.

    Attributes:
        corrupt: that one bit of the frame is flipped; of UDP ports, one of the datagram's.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    seed: int = 0
    corrupt: float = 0.0

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder", "corrupt"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise PortError(f"{name} {getattr(self, name)} is not a probability in [0, 1)")


@dataclass(frozen=True, slots=True)
class Shape:
    """The link of a port.

    Attributes:
        rate: bits of frames per second that leave; None for as many as come.
        delay_ns: how long a frame takes, in either direction (on a wire, from each end to the other).
        queue: frames that may wait to leave; what comes when the queue is full is dropped.
        burst: bytes that may leave at once after a pause, faster than the rate.
    """

    rate: float | None = None
    delay_ns: int = 0
    queue: int = 1000
    burst: int = 0

    def __post_init__(self) -> None:
        if self.queue < 1:
            raise PortError(f"queue {self.queue}: at least 1 frame")
        if self.burst < 0:
            raise PortError(f"burst {self.burst} is not a number of bytes")


def parse_rate(text: str) -> float:
    """Bits per second, from `100mbit`.

    Raises:
        PortError: not of that form, or not above 0.
    """
    rate = _read(quantity.bandwidth, text, "rate")
    if rate < 1:
        raise PortError(f"rate {text!r} is less than 1bit per second")
    return rate


def parse_delay(text: str) -> int:
    """Nanoseconds, from `2ms`.

    Raises:
        PortError: not of that form, or longer than an hour.
    """
    delay = round(_read(quantity.time_ns, text, "delay"))
    if delay > 3600 * 10**9:
        raise PortError(f"delay {text!r} is longer than an hour")
    return delay


def _read(parse: Callable[[str, str], float], text: str, what: str) -> float:
    try:
        return parse(text, what)
    except QuantityError as wrong:
        raise PortError(str(wrong)) from None


def _probability(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise PortError(f"{text!r} is not a probability in [0, 1)") from None


def _count(text: str) -> int:
    if not text.isdigit():
        raise PortError(f"{text!r} is not a whole number")
    return int(text)


FAULT_OPTIONS = {
    "loss": _probability,
    "duplicate": _probability,
    "reorder": _probability,
    "corrupt": _probability,
    "seed": _count,
}
SHAPE_OPTIONS = {
    "rate": ("rate", parse_rate),
    "delay": ("delay_ns", parse_delay),
    "queue": ("queue", _count),
    "burst": ("burst", _count),
}


@dataclass(frozen=True, slots=True)
class PortSpec:
    """Port `number` of the switch, on UDP socket `bind` or on a network interface.

    Attributes:
        bind: None for a port on `interface`.
        wire: the port leads to another switch; its datagrams are whole Ethernet frames.
        peer: of a wire: its other end; None for whoever sends first.
        interface: the name of a network interface; None for a UDP socket.
        direct: what leaves an interface may go past its taps, where it has no queue.
    """

    number: int
    bind: Endpoint | None = None
    wire: bool = False
    peer: Endpoint | None = None
    interface: str | None = None
    faults: Faults = field(default_factory=Faults)
    shape: Shape = field(default_factory=Shape)
    direct: bool = True

    @classmethod
    def parse(cls, text: str, faults: Faults | None = None, shape: Shape | None = None) -> PortSpec:
        """From `N=WHERE[,NAME=VALUE...]`; what no NAME says is as in `faults` and `shape`.

        Raises:
            PortError: not of that form, or a number that no v1model port can have.
        """
        number, equals, where = text.partition("=")
        words = where.split(",")
        options = [word for word in words[1:] if "=" in word]
        ends = [words[0], *(word for word in words[1:] if "=" not in word)]
        kind, colon, own = ends[0].partition(":")
        kind, own = (kind, own) if colon else ("eth", ends[0])
        if not equals or not number.isdigit() or kind not in ("udp", "wire", "eth") or not own:
            raise PortError(f"port {text!r} is not NUMBER=WHERE[,NAME=VALUE...], with WHERE one of {FORMS}")
        if int(number) > HIGHEST_PORT:
            raise PortError(f"port {number} is not in 0..{HIGHEST_PORT}")
        if len(ends) > (2 if kind == "wire" else 1):
            raise PortError(
                f"port {text!r}: {ends[-1]!r} is not NAME=VALUE, and only a wire has another end (exactly one)"
            )
        choices = [word.partition("=")[2] for word in options if word.startswith("direct=")]
        if choices and (kind != "eth" or choices[-1] not in ("yes", "no")):
            raise PortError(f"port {text!r}: direct is yes or no, and of a network interface alone")
        options = [word for word in options if not word.startswith("direct=")]
        changed = _with_options(text, options, faults or Faults(), shape or Shape())
        if kind == "eth":
            if len(own.encode()) > 15 or re.search(r"[\s/:=]", own):
                raise PortError(f"port {text!r}: {own!r} cannot be the name of a network interface")
            return cls(int(number), None, False, None, own, *changed, direct=choices[-1:] != ["no"])
        peer = Endpoint.parse(ends[1]) if len(ends) > 1 else None
        return cls(int(number), Endpoint.parse(own), kind == "wire", peer, None, *changed)


def _with_options(text: str, options: list[str], faults: Faults, shape: Shape) -> tuple[Faults, Shape]:
    for option in options:
        name, _, value = option.partition("=")
        try:
            if name in FAULT_OPTIONS:
                faults = replace(faults, **{name: FAULT_OPTIONS[name](value)})
            elif name in SHAPE_OPTIONS:
                attribute, parse = SHAPE_OPTIONS[name]
                shape = replace(shape, **{attribute: parse(value)})
            else:
                raise PortError(
                    f"there is no {name!r}; there are {', '.join([*SHAPE_OPTIONS, *FAULT_OPTIONS])}, direct"
                )
        except PortError as wrong:
            raise PortError(f"port {text!r}: {option}: {wrong}") from wrong
    return faults, shape


@dataclass(frozen=True, slots=True)
class OpenPort:
    """A port with its bound socket.

    Attributes:
        interface: of a port on a network interface: what else it has; None of UDP sockets.
    """

    spec: PortSpec
    socket: socket.socket
    interface: Interface | None = None

    @property
    def number(self) -> int:
        return self.spec.number

    @property
    def endpoint(self) -> Endpoint:
        """Of a UDP socket."""
        return Endpoint(*self.socket.getsockname())

    def close(self) -> None:
        self.socket.close()
        if self.interface is not None:
            self.interface.close()


def open_ports(specs: list[PortSpec]) -> list[OpenPort]:
    """Bind every port, or none.

    Raises:
        PortError: a number is given twice, or an address or interface cannot be had.
    """
    numbers = [spec.number for spec in specs]
    twice = next((n for n in numbers if numbers.count(n) > 1), None)
    if twice is not None:
        raise PortError(f"port {twice} is given twice")
    opened: list[OpenPort] = []
    try:
        for spec in specs:
            opened.append(_open_interface(spec) if spec.interface else OpenPort(spec, _open_udp(spec)))
    except PortError:
        for port in opened:
            port.close()
        raise
    return opened


def _open_udp(spec: PortSpec) -> socket.socket:
    assert spec.bind is not None
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        enlarge_buffers(sock)
        sock.bind((spec.bind.address, spec.bind.port))
    except OSError as wrong:
        sock.close()
        raise PortError(f"port {spec.number}: cannot bind udp {spec.bind}: {wrong.strerror}") from wrong
    sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    if spec.peer is not None:
        sock.sendto(b"", (spec.peer.address, spec.peer.port))  # So that it knows where this end is.
    return sock


def _open_interface(spec: PortSpec) -> OpenPort:
    assert spec.interface is not None
    try:
        sock = packet_socket(spec.interface)
    except PortError as wrong:
        raise PortError(f"port {spec.number}: {wrong}") from wrong
    try:
        return OpenPort(spec, sock, Interface.of(spec.interface, sock, spec.direct))
    except OSError as wrong:
        sock.close()
        raise PortError(f"port {spec.number}: cannot open interface {spec.interface}: {wrong.strerror}") from wrong
