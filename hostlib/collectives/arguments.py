"""Checks of the arguments that a user gives to a session, a backend or a run. Torch-free."""

from __future__ import annotations

from ipaddress import IPv4Address
from operator import index
from typing import Any

from hostlib.errors import RunError
from hostlib.protocol import constants
from hostlib.protocol.slots import LARGEST_POOLS
from hostlib.system.interfaces import interface_of
from hostlib.transport.waits import BEAT_S

SHORTEST_SILENCE_S = 3 * BEAT_S
LONGEST_DEADLINE_S = 1_000_000  # 11 days; torch's timers overflow far above


def require_lanes(what: str, lanes: Any) -> None:
    """Check a number of lanes: each needs a pool of slots. Raises RunError, with `what` as the subject."""
    try:
        number = index(lanes)
    except TypeError:
        raise RunError(f"{what} must be a whole number, not {lanes!r}") from None
    if number < 1:
        raise RunError(f"{what} must be above 0, not {lanes}")
    if number > LARGEST_POOLS:
        raise RunError(f"{what} must be at most {LARGEST_POOLS}, the pools of slots of a job, not {lanes}")


def require_deadline(what: str, seconds: Any) -> None:
    """Check a deadline in seconds. Raises RunError, with `what` as the subject."""
    if not isinstance(seconds, int | float):
        raise RunError(f"{what} must be a number of seconds, not {seconds!r}")
    if not seconds > 0:
        raise RunError(f"{what} must be above 0, not {seconds}")
    if seconds > LONGEST_DEADLINE_S:
        raise RunError(f"{what} must be at most {LONGEST_DEADLINE_S} s, not {seconds}")


def require_silence(what: str, seconds: Any) -> None:
    """Check how long a rank may be silent, in seconds. Raises RunError, with `what` as the subject."""
    require_deadline(what, seconds)
    if seconds < SHORTEST_SILENCE_S:
        raise RunError(
            f"{what} must be at least {SHORTEST_SILENCE_S} s, as ranks give a sign of life every {BEAT_S} s, not {seconds}"
        )


def require_slots(what: str, slots: Any, lanes: int) -> None:
    """Check a number of slots of each pool. Raises RunError, with `what` as the subject."""
    most = constants.SLOTS // lanes
    if not isinstance(slots, int) or not 1 <= slots <= most or slots & (slots - 1):
        raise RunError(f"{what} must be a power of two, at most {most} ({constants.SLOTS} on a switch), not {slots!r}")


def require_text(what: str, text: Any) -> None:
    """Check that a name or a URL is a text. Raises RunError, with `what` as the subject."""
    if not isinstance(text, str):
        raise RunError(f"{what} must be a text, not {text!r}")


def require_own_address(what: str, address: Any) -> None:
    """Check that an address is one of this host's IPv4 addresses. Raises RunError, with `what` as the subject."""
    require_text(what, address)
    try:
        is_loopback = IPv4Address(address).is_loopback
    except ValueError:
        raise RunError(f"{what} must be an IPv4 address, as 127.0.0.1, not {address!r}") from None
    if not is_loopback and interface_of(address) is None:
        raise RunError(f"{what}: no interface of this host has the IPv4 address {address}")
