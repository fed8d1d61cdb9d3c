"""A collective as data: which piece of the tensor goes from whom to whom, and where it is summed.

In the spirit of MSCCL's programs. A schedule is read by the host runtime, the checker and the drawer; nobody but the
mechanism's own file knows which mechanism it is.
"""

from __future__ import annotations

from dataclasses import dataclass

SWITCH = "switch"


def worker(rank: int) -> str:
    """The node name of a rank."""
    return f"worker{rank}"


@dataclass(frozen=True, slots=True)
class Send:
    """Send a piece, as it is now, to a peer."""

    peer: str
    piece: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for a piece from a peer; add it to one's own (`reduce`) or take it over."""

    peer: str
    piece: int
    reduce: bool


@dataclass(frozen=True, slots=True)
class Aggregate:
    """In the fabric: wait for a piece from every peer and sum them."""

    peers: tuple[str, ...]
    piece: int


@dataclass(frozen=True, slots=True)
class Multicast:
    """In the fabric: send a piece once, to be replicated to every peer."""

    peers: tuple[str, ...]
    piece: int


Operation = Send | Receive | Aggregate | Multicast


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every node's ordered list of operations.

    Attributes:
        pieces: how many parts the tensor is split into, as evenly as its size allows; the first ones are larger.
        nodes: operations by node name; workers are worker0..worker{n-1}.
    """

    mechanism: str
    world_size: int
    pieces: int
    nodes: dict[str, tuple[Operation, ...]]


def piece_bounds(elements: int, pieces: int) -> list[tuple[int, int]]:
    """[start, end) of every piece of a tensor; pieces may be empty."""
    small, larger = divmod(elements, pieces)
    bounds, start = [], 0
    for piece in range(pieces):
        end = start + small + (piece < larger)
        bounds.append((start, end))
        start = end
    return bounds


def link_elements(schedule: Schedule, elements: int) -> dict[str, tuple[int, int]]:
    """Elements that each worker's link carries in one all-reduce: node -> (sent, received)."""
    sizes = [end - start for start, end in piece_bounds(elements, schedule.pieces)]
    carried = {}
    for node, operations in schedule.nodes.items():
        if node != SWITCH:
            sent = sum(sizes[op.piece] for op in operations if isinstance(op, Send))
            received = sum(sizes[op.piece] for op in operations if isinstance(op, Receive))
            carried[node] = (sent, received)
    return carried


def describe(operation: Operation) -> str:
    """One operation in words."""
    match operation:
        case Send(peer, piece):
            return f"send piece {piece} to {peer}"
        case Receive(peer, piece, reduce):
            return f"receive piece {piece} from {peer}, {'add' if reduce else 'copy'}"
        case Aggregate(peers, piece):
            return f"sum piece {piece} of {', '.join(peers)}"
        case Multicast(peers, piece):
            return f"multicast piece {piece} to {', '.join(peers)}"
