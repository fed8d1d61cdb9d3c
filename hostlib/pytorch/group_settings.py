"""How a process group of the backend sums: the variables of the environment, and what they may be."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from torch.distributed.constants import default_pg_timeout

from hostlib.collectives.arguments import (
    require_deadline,
    require_lanes,
    require_own_address,
    require_silence,
    require_slots,
)
from hostlib.collectives.scheduled_collective import DEFAULT_FALLBACK
from hostlib.collectives.vendor import require_library
from hostlib.errors import HostlibError
from hostlib.fabric.job_client import DEFAULT_CONTROLLER
from hostlib.fabric.static_window import static_window
from hostlib.mechanisms.mechanism import Mechanism, find_fallback
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.transport.waits import PATIENCE_S, SILENCE_S

DEADLINE_S = 30.0

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a process group sums; docs/torch.md has the variables.

    Attributes:
        slots: of each pool; None for what the switch has room for.
        strict: whether what the mechanism does not sum is refused, not left to Gloo.
    """

    mechanism: Mechanism
    controller: str
    address: str
    fallback: str
    lanes: int
    slots: int | None
    deadline_s: float
    patience_s: float
    silence_s: float
    strict: bool

    @classmethod
    def of_environment(cls, mechanism: Mechanism, timeout: timedelta) -> GroupSettings:
        """Read the environment.

        Args:
            timeout: of init_process_group or new_group. Sums keep to it, and to NETFOLD_DEADLINE_S if that is set;
                torch's own default, half an hour, is nobody's wish, and means DEADLINE_S.

        Raises:
            HostlibError: an unknown mechanism or fallback, a missing library, or an illegal number or address.
        """
        deadline_s = _number("NETFOLD_DEADLINE_S", DEADLINE_S)
        require_deadline("NETFOLD_DEADLINE_S", deadline_s)
        if timeout != default_pg_timeout:
            require_deadline("timeout", timeout.total_seconds())
            given = "NETFOLD_DEADLINE_S" in os.environ
            deadline_s = min(deadline_s, timeout.total_seconds()) if given else timeout.total_seconds()
        patience_s = _number("NETFOLD_PATIENCE_S", PATIENCE_S)
        require_deadline("NETFOLD_PATIENCE_S", patience_s)
        silence_s = _number("NETFOLD_SILENCE_S", SILENCE_S)
        require_silence("NETFOLD_SILENCE_S", silence_s)
        lanes = _number("NETFOLD_LANES", 1)
        require_lanes("NETFOLD_LANES", lanes)
        slots = _number("NETFOLD_SLOTS", 1) if "NETFOLD_SLOTS" in os.environ else None
        if slots is not None:
            require_slots("NETFOLD_SLOTS", slots, lanes)
        static_window(SLOTS_PER_POOL if slots is None else slots)
        address = os.environ.get("NETFOLD_ADDRESS", "127.0.0.1")
        require_own_address("NETFOLD_ADDRESS", address)
        strict = os.environ.get("NETFOLD_STRICT", "0")
        if strict not in ("", "0", "1"):
            raise HostlibError(f"NETFOLD_STRICT must be 0 or 1, not {strict!r}")
        require_library(mechanism, "gloo")
        mechanism.require_hosts()
        fallback = os.environ.get("NETFOLD_FALLBACK", DEFAULT_FALLBACK)
        find_fallback(fallback)
        controller = os.environ.get("NETFOLD_CONTROLLER", DEFAULT_CONTROLLER)
        return cls(
            mechanism, controller, address, fallback, lanes, slots, deadline_s, patience_s, silence_s, strict == "1"
        )


def _number(name: str, default: Number) -> Number:
    text = os.environ.get(name, str(default))
    try:
        value = type(default)(text)
    except ValueError:
        value = type(default)(0)
    if not value > 0:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise HostlibError(f"{name} must be {kind} above 0, not {text!r}")
    return value
