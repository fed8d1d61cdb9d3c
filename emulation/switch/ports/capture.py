"""Frames of ports in files, as tcpdump and Wireshark read them.

Source: the pcap format (draft-ietf-opsawg-pcap); the names of the files are those of BMv2's `--pcap`.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emulation.errors import PortError
from emulation.switch.ports.open_port import OpenPort
from emulation.switch.ports.port_sockets import reason

MAGIC, VERSION, LINKTYPE_ETHERNET, LONGEST = 0xA1B2C3D4, (2, 4), 1, 262144  # microseconds; bytes of a frame
HEADER = struct.pack("=IHHiIII", MAGIC, *VERSION, 0, 0, LONGEST, LINKTYPE_ETHERNET)
WAYS = ("in", "out")


@dataclass(frozen=True, slots=True)
class Capture:
    """A port's files, which successive programs write to.

    Attributes:
        files: descriptors: of what comes in, and of what leaves.
    """

    port: int
    files: tuple[int, int]

    def attach(self, library: ctypes.CDLL) -> None:
        """Have a compiled program write them; runtime/pcap.h does."""
        library.nf_capture(ctypes.c_uint32(self.port), *map(ctypes.c_int, self.files))

    def close(self) -> None:
        for file in self.files:
            os.close(file)


def captures(folder: Path | None, ports: Sequence[OpenPort]) -> list[Capture]:
    """Begin files NAME_in.pcap and NAME_out.pcap of all ports in a folder; NAME is an interface, or else port and number.

    Args:
        folder: None: no captures.

    Raises:
        PortError: a file cannot be written.
    """
    made: list[Capture] = []
    for port in ports if folder is not None else ():
        name = getattr(port.spec.place, "interface", f"port{port.number}")
        files: list[int] = []
        for way in WAYS:
            path = Path(folder or "") / f"{name}_{way}.pcap"
            try:
                files.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
                os.write(files[-1], HEADER)
            except OSError as error:
                for file in (*files, *(file for capture in made for file in capture.files)):
                    os.close(file)
                raise PortError(f"port {port.number}: {path} cannot be written: {reason(error)}") from error
        made.append(Capture(port.number, (files[0], files[1])))
    return made
