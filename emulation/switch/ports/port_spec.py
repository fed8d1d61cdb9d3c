"""Specifications of switch ports: their socket, and their link's effects on frames."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from typing import Any, ClassVar, Protocol

from emulation.errors import PortError
from hostlib.errors import QuantityError
from hostlib.text import units

HIGHEST_PORT = 510  # 511 is v1model's drop port


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An IPv4 address and UDP or TCP port."""

    address: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse `ADDRESS:PORT`.

        Raises:
            PortError: the text is not of that form.
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

    def as_c(self) -> tuple[ctypes.c_uint32, ctypes.c_uint16]:
        """Address and port in host order."""
        return ctypes.c_uint32(int(IPv4Address(self.address))), ctypes.c_uint16(self.port)

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of faults per packet, port and direction, drawn from streams determined by `seed`.

    Attributes:
        corrupt: one bit of the frame is flipped; on UDP ports, one of the datagram's.
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
        rate: bits of frames per second in output; None for unlimited.
        delay_ns: of a frame, in either direction (on a wire, from each end to the other).
        queue: frames that may wait for output; more are dropped.
        burst: bytes that may leave at once after a pause, faster than the rate.
        mark: frames in the queue at which marking begins, and those at which every frame is marked; None for never.
    """

    rate: float | None = None
    delay_ns: int = 0
    queue: int = 1000
    burst: int = 0
    mark: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.queue < 1:
            raise PortError(f"queue {self.queue}: at least 1 frame")
        if max(self.queue, self.burst) >= 2**31:
            raise PortError(f"queue {self.queue} and burst {self.burst}: both must be below 2^31")
        if self.burst < 0:
            raise PortError(f"burst {self.burst} is not a number of bytes")


def parse_rate(text: str) -> float:
    """Parse bits per second, from `100mbit`.

    Raises:
        PortError: not of that form, or not above 0.
    """
    rate = _read(units.bandwidth, text, "bandwidth")
    if rate < 1:
        raise PortError(f"bandwidth {text!r} is less than 1bit per second")
    return rate


def parse_delay(text: str) -> int:
    """Parse nanoseconds, from `2ms`.

    Raises:
        PortError: not of that form, or longer than an hour.
    """
    delay = round(_read(units.time_ns, text, "delay"))
    if delay > 3600 * 10**9:
        raise PortError(f"delay {text!r} is longer than an hour")
    return delay


def parse_mark(text: str) -> tuple[int, int]:
    """Parse the frames from which and to which a queue marks some, from `30:90`.

    Raises:
        PortError: not of that form, or the second is less than the first.
    """
    try:
        return units.frame_range(text, "mark")
    except QuantityError as error:
        raise PortError(str(error)) from None


def _read(parse: Callable[[str, str], float], text: str, what: str) -> float:
    try:
        return parse(text, what)
    except QuantityError as error:
        raise PortError(str(error)) from None


def _probability(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise PortError(f"{text!r} is not a probability in [0, 1)") from None


def _count(text: str) -> int:
    if not (text.isdecimal() and text.isascii()):
        raise PortError(f"{text!r} is not a whole number")
    return int(text)


FAULT_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "loss": _probability,
    "duplicate": _probability,
    "reorder": _probability,
    "corrupt": _probability,
    "seed": _count,
}
SHAPE_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "bandwidth": ("rate", parse_rate),
    "delay": ("delay_ns", parse_delay),
    "queue": ("queue", _count),
    "burst": ("burst", _count),
    "mark": ("mark", parse_mark),
}
LINK_OPTIONS = (*SHAPE_OPTIONS, *FAULT_OPTIONS)
RENAMED = {"rate": "bandwidth"}  # old names, for one version


def with_options(options: Mapping[str, str], faults: Faults, shape: Shape) -> tuple[Faults, Shape]:
    """Apply LINK_OPTIONS to `faults` and `shape`.

    Raises:
        PortError: an illegal value; the message names the option.
    """
    for name, value in options.items():
        try:
            if name in FAULT_OPTIONS:
                faults = replace(faults, **{name: FAULT_OPTIONS[name](value)})
            else:
                attribute, parse = SHAPE_OPTIONS[name]
                shape = replace(shape, **{attribute: parse(value)})
        except PortError as error:
            raise PortError(f"{name}={value}: {error}") from error
    return faults, shape


# ---- sockets -----------------------------------------------------------------------------------------------------


class Opened(Protocol):
    """An open socket, which outlives the programs that use it."""

    @property
    def socket(self) -> socket.socket: ...

    def attach(self, library: ctypes.CDLL, port: Sequence[Any], destination: Endpoint | None) -> int:
        """Attach the port to a compiled program; returns an errno.

        Args:
            library: has the kind's nf_*_port().
            port: its first arguments: number, descriptor, link.
            destination: destination address in headers that the port makes; None for the socket's own address.
        """
        ...

    def close(self) -> None: ...


class Place(Protocol):
    """A port's place, such as a socket's address; each kind has a frozen dataclass.

    Attributes:
        LISTED: key of the ready file for the addresses of such ports; None: they have none.
    """

    LISTED: ClassVar[str | None]

    def open(self) -> Opened:
        """Open its socket.

        Raises:
            PortError: it cannot be opened.
        """
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of port.

    Attributes:
        name: before the colon of WHERE.
        form: of WHERE, for messages.
        summary: the form and its meaning, for help texts.
        parse: makes the place from WHERE's parts after the colon, split at commas, and the kind's own options.
        options: the names and meanings of its own options.
        most_ends: maximum number of addresses in WHERE.
        bare: WHERE without a colon is of this kind.
    """

    name: str
    form: str
    summary: str
    parse: Callable[[Sequence[str], Mapping[str, str]], Place]
    options: Mapping[str, str] = field(default_factory=dict)
    most_ends: int = 1
    bare: bool = False


@dataclass(frozen=True, slots=True)
class PortSpec:
    """Port `number` of the switch: its place, and its link.

    Raises:
        PortError: v1model has no such port number, or there is no queue that could mark.
    """

    number: int
    place: Place
    faults: Faults = field(default_factory=Faults)
    shape: Shape = field(default_factory=Shape)

    def __post_init__(self) -> None:
        if not 0 <= self.number <= HIGHEST_PORT:
            raise PortError(f"port {self.number} is not in 0..{HIGHEST_PORT}")
        if self.shape.mark is not None and self.shape.rate is None:
            raise PortError(f"port {self.number}: mark needs a bandwidth: nothing waits for a link without one")
