"""Which parameter server sums which piece of a tensor.

Source: "How to Train your DNN", section 9.1 (whole variables and even parts); "Poseidon", section 4.1 (pairs of 2 MB).
"""

from __future__ import annotations

from typing import Literal

from hostlib.errors import ScheduleError

Assign = Literal["whole", "even", "pairs"]
PAIR_BYTES = 2_000_000


def placement(servers: int, assign: Assign, size: int, turn: int) -> tuple[int, ...]:
    """The server of each piece.

    Args:
        assign: `whole`: each tensor on one server, round robin, as TensorFlow assigns variables; `even`: a part of each
            tensor on every server; `pairs`: parts of at most 2 MB, round robin, as Poseidon's key-value store.
        size: of the tensor in bytes.
        turn: the tensor's number.

    Raises:
        ScheduleError: there is no server.
    """
    if servers < 1:
        raise ScheduleError(f"servers must be at least 1, not {servers}")
    if assign == "whole":
        return (turn % servers,)
    if assign == "even":
        return tuple(range(servers))
    return tuple((turn + piece) % servers for piece in range(max(1, -(-size // PAIR_BYTES))))
