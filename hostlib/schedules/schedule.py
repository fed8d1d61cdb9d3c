"""A collective as data: which piece of the tensor goes from which node to which, and where it is summed.

Similar to MSCCL's programs. The host runtime, the checker, the simulator and the drawer read schedules; only the
mechanism's own file knows which mechanism it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from hostlib.errors import OperationError
from hostlib.schedules.contract import Collective

SWITCH = "switch"  # the switch of a star; in a tree (hierarchy.py) each switch has its own name


def worker(rank: int) -> str:
    """Node name of a rank."""
    return f"worker{rank}"


def server(number: int) -> str:
    """Node name of a parameter server with a host of its own."""
    return f"server{number}"


def is_host(node: str) -> bool:
    """Whether a node is a worker or a server; otherwise it is a switch."""
    return node.startswith(("worker", "server"))


@dataclass(frozen=True, slots=True)
class Send:
    """Send a piece, as it is now, to a peer."""

    peer: str
    piece: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for a piece from a peer; add it to the local one (`reduce`) or replace that."""

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


@dataclass(frozen=True, slots=True)
class Compute:
    """At a host: work on a piece for some time; a host works on one piece at a time, first come, first served."""

    piece: int
    duration_ns: int


Operation = Send | Receive | Aggregate | Multicast | Compute
OPERATIONS: tuple[type[Operation], ...] = (Send, Receive, Aggregate, Multicast, Compute)


class FabricUse(Enum):
    """A use of the switches that hosts and switches support together."""

    SUM = "the switch sums and multicasts"
    VIA_SERVER = "the switch sums for a server, whose result it multicasts"
    TO_SERVER = "the switch sums for a server, which sends its result to each worker"
    MULTICAST = "the switch multicasts what a server, or each worker, has summed"
    TO_OWNERS = "the switch sums a shard for the worker that owns it"


Require = Callable[[str, object], None]  # of a node's operations


class Lists(Mapping[str, tuple[Operation, ...]]):
    """Each node's list of operations, built on demand: of a thousand workers, one may be all that is needed.

    Args:
        makers: node -> function that makes its operations.
        require: called with a node and its operations before they are returned; raises if they are invalid.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Iterable[Operation]]], require: Require | None = None) -> None:
        self._makers = dict(makers)
        self._require = require

    def required(self, require: Require) -> Lists:
        """The same lists, checked by `require`."""
        return Lists(self._makers, require)

    def __getitem__(self, node: str) -> tuple[Operation, ...]:
        operations = tuple(self._makers[node]())
        if self._require is not None:
            self._require(node, operations)
        return operations

    def __contains__(self, node: object) -> bool:
        return node in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class Symmetry(Enum):
    """How worker r's list follows from worker 0's, so that executing one list covers all workers.

    ROTATION: ranks and pieces are shifted by r, modulo the world size and the number of pieces.
    XOR: ranks and pieces are combined with r by exclusive or.
    """

    NONE = "none"
    ROTATION = "rotation"
    XOR = "xor"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every node's ordered list of operations for one tensor. Sends do not block; all other operations do.

    Attributes:
        pieces: number of parts that the tensor is split into, as evenly as its size allows; the first ones are larger.
        nodes: operations by node name. Workers are worker0..worker{n-1}; a node that is neither a worker nor a server
            is a switch.
        symmetry: of the workers' lists; only if there are no other nodes.
        fabric_use: declared use of the switches, for schedules that hosts run; None if it can only be simulated, or has
            no switch. `hostlib.schedules.fabric_use.require_fit` compares it with the operations.
        collective: what it does; `hostlib.schedules.checker.check` proves it.
        root: of a broadcast or reduce.

    Raises:
        OperationError: a node's operations are invalid, or name a piece or node that does not exist. With `Lists`,
            raised when the node's list is requested.
    """

    mechanism: str
    world_size: int
    pieces: int
    nodes: Mapping[str, tuple[Operation, ...]]
    symmetry: Symmetry = Symmetry.NONE
    fabric_use: FabricUse | None = None
    collective: Collective = Collective.ALL_REDUCE
    root: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.pieces, int) or self.pieces < 1:
            raise OperationError(f"{self.mechanism}: pieces must be a number of at least 1, not {self.pieces!r}")
        if not isinstance(self.nodes, Mapping):
            raise OperationError(f"{self.mechanism}: nodes must be a mapping, not a {type(self.nodes).__name__}")
        require = partial(_require_operations, self.mechanism, self.pieces, self.nodes.keys())
        if isinstance(self.nodes, Lists):
            object.__setattr__(self, "nodes", self.nodes.required(require))
            return
        for node, operations in self.nodes.items():
            if operations != ():  # as most workers' are in an exchange of one with a server
                require(node, operations)

    @property
    def needs_fabric(self) -> bool:
        """Whether the schedule has switches."""
        return not all(map(is_host, self.nodes))

    @property
    def multicast_sources(self) -> dict[int, str]:
        """Piece -> the host whose copy is multicast to all other workers; empty if the switch does anything else."""
        workers = {worker(rank) for rank in range(self.world_size)}
        operations = iter(self.nodes.get(SWITCH, ()))
        sources = {}
        for got in operations:
            match got, next(operations, None):
                case Receive(source, piece, False), Multicast(to, sent) if (
                    piece == sent and is_host(source) and set(to) == workers - {source}
                ):
                    sources[piece] = source
                case _:
                    return {}
        return sources

    @property
    def runs_on_hosts(self) -> bool:
        """Whether hosts can run it: on hosts, the fabric works for one server or none."""
        return not self.needs_fabric or (self.fabric_use is not None and len(self.servers) <= 1)

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers with hosts of their own."""
        return tuple(node for node in self.nodes if node.startswith("server"))


Phase = Callable[[int, int], Iterable[Operation]]  # takes a rank and the world size


def by_workers(
    mechanism: str,
    world_size: int,
    pieces: int,
    *phases: Phase,
    symmetry: Symmetry = Symmetry.NONE,
    switch: Callable[[], Iterable[Operation]] | None = None,
    fabric_use: FabricUse | None = None,
) -> Schedule:
    """Make the schedule of workers that do phases one after the other, without servers.

    Args:
        switch: makes the operations of the one switch, which a single worker does not need; None for no switch.
    """
    makers: dict[str, Callable[[], Iterable[Operation]]] = {
        worker(rank): partial(_in_phases, phases, rank, world_size) for rank in range(world_size)
    }
    if switch is None or world_size == 1:
        return Schedule(mechanism, world_size, pieces, Lists(makers), symmetry)
    return Schedule(mechanism, world_size, pieces, Lists({**makers, SWITCH: switch}), symmetry, fabric_use)


def _in_phases(phases: Iterable[Phase], rank: int, world_size: int) -> Iterator[Operation]:
    for phase in phases:
        yield from phase(rank, world_size)


def rooted(schedule: Schedule, root: int) -> Schedule:
    """The schedule of a broadcast or reduce with another root: ranks are shifted, so that rank 0's part falls to it."""
    if root == schedule.root:
        return schedule
    nodes, shift, n = schedule.nodes, root - schedule.root, schedule.world_size

    def turned(node: str, by: int) -> str:
        return worker((int(node.removeprefix("worker")) + by) % n) if node.startswith("worker") else node

    def operations(node: str) -> Iterator[Operation]:
        for operation in nodes[turned(node, -shift)]:
            match operation:
                case Send(peer, _) | Receive(peer, _, _):
                    yield replace(operation, peer=turned(peer, shift))
                case Aggregate(peers, _) | Multicast(peers, _):
                    yield replace(operation, peers=tuple(turned(peer, shift) for peer in peers))
                case _:
                    yield operation

    lists = Lists({node: partial(operations, node) for node in nodes})
    return replace(schedule, nodes=lists, symmetry=Symmetry.NONE, root=root)


def _require_operations(mechanism: str, pieces: int, nodes: Collection[str], node: str, operations: object) -> None:
    """Check a node's operations. Raises OperationError."""
    if not isinstance(operations, tuple):
        raise OperationError(
            f"{mechanism}: the operations of {node} must be a tuple, not a {type(operations).__name__}"
        )
    for number, operation in enumerate(operations, start=1):
        if error := _error_of(operation, pieces, nodes):
            raise OperationError(f"{mechanism}: operation {number} of {node}, {operation!r}, {error}")


def _error_of(operation: object, pieces: int, nodes: Collection[str]) -> str | None:
    # Schedules have up to millions of these two, so they are checked first, and fast.
    if type(operation) is Send or (type(operation) is Receive and type(operation.reduce) is bool):
        piece, peer = operation.piece, operation.peer
        if type(piece) is int and 0 <= piece < pieces and type(peer) is str and peer in nodes:
            return None
    if not isinstance(operation, OPERATIONS):
        return f"must be one of {', '.join(kind.__name__ for kind in OPERATIONS)}"
    if type(operation.piece) is not int or not 0 <= operation.piece < pieces:
        return f"must name a piece of 0..{pieces - 1}"
    if isinstance(operation, Compute):
        return None if isinstance(operation.duration_ns, int) else "must take a whole number of nanoseconds"
    if isinstance(operation, Aggregate | Multicast):
        if not isinstance(operation.peers, tuple):
            return f"must have a tuple of peers, not a {type(operation.peers).__name__}"
        peers: tuple[str, ...] = operation.peers
    else:
        peers = (operation.peer,)
    if isinstance(operation, Receive) and not isinstance(operation.reduce, bool):
        return "must say True or False for reduce"
    for peer in peers:
        if not isinstance(peer, str) or peer not in nodes:
            return f"names {peer!r}, which is not a node of the schedule"
    return None


def image(schedule: Schedule, operation: Operation, rank: int) -> Operation:
    """Return what worker `rank` does where worker 0 does `operation`, by the schedule's symmetry.

    Raises:
        ValueError: the schedule has no symmetry, or the operation is a switch's.
    """

    def turned(number: int, count: int) -> int:
        return (number + rank) % count if schedule.symmetry is Symmetry.ROTATION else number ^ rank

    if schedule.symmetry is Symmetry.NONE or not isinstance(operation, Send | Receive):
        raise ValueError(f"{schedule.mechanism}: {describe(operation)} has no image")
    peer = worker(turned(int(operation.peer.removeprefix("worker")), schedule.world_size))
    piece = turned(operation.piece, schedule.pieces) if schedule.pieces > 1 else 0
    if isinstance(operation, Send):
        return Send(peer, piece)
    return Receive(peer, piece, operation.reduce)


def piece_bounds(elements: int, pieces: int, blocks: int = 1) -> list[tuple[int, int]]:
    """Bounds [start, end) of every piece of a tensor, which is cut into blocks, and those into pieces, as evenly as can
    be. Pieces may be empty.
    """
    bounds, start = [], 0
    for block in range(blocks):
        size = elements // blocks + (block < elements % blocks)
        small, larger = divmod(size, pieces // blocks)
        for piece in range(pieces // blocks):
            end = start + small + (piece < larger)
            bounds.append((start, end))
            start = end
    return bounds


def bounds_of(schedule: Schedule, elements: int) -> list[tuple[int, int]]:
    """Bounds of every piece of the schedule's tensor."""
    return piece_bounds(elements, schedule.pieces, schedule.collective.blocks(schedule.world_size))


def link_elements(schedule: Schedule, elements: int) -> dict[str, tuple[int, int]]:
    """Elements that each host's link carries in one collective: node -> (sent, received).

    Args:
        elements: of the schedule's tensor, see Collective.tensor_bytes.
    """
    sizes = [end - start for start, end in bounds_of(schedule, elements)]
    carried = {}
    for node in filter(is_host, schedule.nodes):
        operations = schedule.nodes[node]
        sent = sum(sizes[op.piece] for op in operations if isinstance(op, Send))
        received = sum(sizes[op.piece] for op in operations if isinstance(op, Receive))
        carried[node] = (sent, received)
    return carried


def describe(operation: Operation) -> str:
    """Describe one operation in words."""
    match operation:
        case Send(peer, piece):
            return f"send piece {piece} to {peer}"
        case Receive(peer, piece, reduce):
            return f"receive piece {piece} from {peer}, {'add' if reduce else 'copy'}"
        case Aggregate(peers, piece):
            return f"sum piece {piece} of {', '.join(peers)}"
        case Multicast(peers, piece):
            return f"multicast piece {piece} to {', '.join(peers)}"
        case Compute(piece, duration_ns):
            return f"work on piece {piece} for {duration_ns / 1e6:g} ms"
