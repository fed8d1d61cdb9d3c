"""Whether this host is at the switch port where the controller placed it: packets that the switch sends back.

The packet is a NACK for a slot that there is not. If it comes in by the right port, from the right address and UDP port,
the switch sends it back, with a number in it that only the controller knows. Source: docs/protocol.md, "Echoes".
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from hostlib.errors import JoinError
from hostlib.protocol import constants
from hostlib.protocol.header import VALUE_BYTES, Header
from hostlib.protocol.slots import ECHO_SLOT

FIRST_WAIT_S, LONGEST_WAIT_S = 0.01, 0.04  # for an echo, before it is asked for again
SAID_EVERY_S = 1.0  # to the controller, that nothing comes back
ASKED_S = 7.0  # then the rank goes on, as nobody says that it is at the wrong port

# Sends a packet to an address and port and waits so many seconds for it; returns the rank in what comes back, or None.
EchoSocket = Callable[[str, int, bytes, float], int | None]
# Tells the controller what came back, by UDP port. Returns what it concludes; None if it does not answer, or the job is
# over.
Report = Callable[[list[int | None]], str | None]


class Member(Protocol):
    """What of a place in a job the check needs: see hostlib.fabric.job_client.Place."""

    @property
    def job_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def elements(self) -> int: ...
    @property
    def fabric_address(self) -> str: ...
    @property
    def fabric_port(self) -> int: ...


class PortCheck:
    """The check of one place in a job.

    Args:
        sockets: for each of `udp_ports`; a port that is there several times is asked once.

    Attributes:
        echoes: for each of the UDP ports the number that came back; None if nothing has yet.
    """

    def __init__(self, place: Member, udp_ports: Sequence[int], sockets: Sequence[EchoSocket]) -> None:
        self._place = place
        self._udp_ports = udp_ports
        self._missing = dict(zip(udp_ports, sockets, strict=True))
        self._found: dict[int, int] = {}
        self._wait_s = FIRST_WAIT_S
        # Nobody who has not seen it can make an echo of it.
        self._question = Header(
            operation=constants.OPERATION_NACK,
            job=place.job_id,
            rank=place.rank,
            epoch=place.epoch,
            generation=secrets.randbits(32),
            slot=ECHO_SLOT,
            element_count=place.elements,
        ).pack() + secrets.token_bytes(VALUE_BYTES * place.elements)

    @property
    def echoes(self) -> list[int | None]:
        return [self._found.get(udp_port) for udp_port in self._udp_ports]

    def ask(self) -> bool:
        """Ask the switch once by each UDP port that has had no echo; returns whether all have had one."""
        for udp_port, echo in list(self._missing.items()):
            number = echo(self._place.fabric_address, self._place.fabric_port, self._question, self._wait_s)
            if number is not None:
                self._found[udp_port] = number
                del self._missing[udp_port]
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        return not self._missing

    def run(self, report: Report, most_s: float, cancelled: threading.Event) -> bool:
        """Ask until everything has come back, for so many seconds at most.

        Returns:
            Whether it has. If not, it is unknown whether this host is at its port.

        Raises:
            WrongPortError: the controller has concluded that it is not.
        """
        began = said = time.monotonic()
        while not self.ask():
            now = time.monotonic()
            if cancelled.is_set() or now - began > min(most_s, ASKED_S):
                return False
            if now - said < SAID_EVERY_S:
                continue
            said = now
            concluded = report(self.echoes)
            if concluded == "silent":
                raise WrongPortError
            if concluded is None:
                return False
        return True


class WrongPortError(JoinError):
    """Nothing comes back from the switch port where this host was placed."""
