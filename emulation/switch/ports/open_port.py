"""Ports with their sockets, which successive programs take over."""

from __future__ import annotations

import ctypes
import os
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from emulation.errors import PortError
from emulation.switch.ports.port_sockets import reason
from emulation.switch.ports.port_spec import Endpoint, Opened, PortSpec


class _Link(ctypes.Structure):
    """link_t of runtime/shape.h."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("loss", "duplicate", "reorder", "corrupt", "rate")),
        *((name, ctypes.c_uint64) for name in ("delay_ns", "burst", "queue", "seed", "mark_from", "mark_to")),
    ]

    @classmethod
    def of(cls, spec: PortSpec) -> _Link:
        faults, shape = spec.faults, spec.shape
        return cls(
            faults.loss,
            faults.duplicate,
            faults.reorder,
            faults.corrupt,
            shape.rate or 0.0,
            shape.delay_ns,
            shape.burst,
            shape.queue,
            faults.seed,
            *(shape.mark or (0, 0)),
        )


@dataclass(frozen=True, slots=True)
class OpenPort:
    """A port with its bound socket."""

    spec: PortSpec
    opened: Opened

    @property
    def number(self) -> int:
        return self.spec.number

    @property
    def socket(self) -> socket.socket:
        return self.opened.socket

    @property
    def endpoint(self) -> Endpoint:
        """The address of a UDP socket."""
        return Endpoint(*self.socket.getsockname())

    def attach(self, library: ctypes.CDLL, destination: Endpoint | None) -> None:
        """Attach this port to a compiled program; `destination` is as of Opened.attach.

        Raises:
            PortError: out of memory.
        """
        link = _Link.of(self.spec)
        port = ctypes.c_uint32(self.number), ctypes.c_int(self.socket.fileno()), ctypes.byref(link)
        error = self.opened.attach(library, port, destination)
        if error:
            raise PortError(f"port {self.number}: the program cannot have it: {os.strerror(error)}")

    def close(self) -> None:
        self.opened.close()


def open_ports(specs: Sequence[PortSpec], spare: int = 0) -> list[OpenPort]:
    """Bind every port, or none.

    Args:
        spare: number of further files that must remain available afterwards.

    Raises:
        PortError: a duplicate number, an unavailable address or interface, or too many ports for the limit of open
            files.
    """
    numbers = Counter(spec.number for spec in specs)
    twice = next((number for number, times in numbers.items() if times > 1), None)
    if twice is not None:
        raise PortError(f"port {twice} is given twice")
    with ExitStack() as stack:
        opened = []
        for spec in specs:
            try:
                opened.append(OpenPort(spec, spec.place.open()))
            except PortError as error:
                raise PortError(f"port {spec.number}: {error}") from error
            stack.callback(opened[-1].close)
        _require_spare(spare, len(specs))
        stack.pop_all()
    return opened


def _require_spare(count: int, ports: int) -> None:
    with ExitStack() as stack:
        try:
            for _ in range(count):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            raise PortError(f"{ports} ports leave too few files: {reason(error)}") from error
