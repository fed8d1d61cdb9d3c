"""Options of a cell's workers and servers, and the names of their barriers. Torch-free, for the process that starts
them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass
from typing import Any

from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import Compute, Receive, Send, is_host
from hostlib.strategies.plan import FLOAT_BYTES, Exchange

WARM_UP, MEASURED, DONE = "warm-up", "measured", "done"
PHASES = (WARM_UP, MEASURED, DONE)
# What workers can do with a bare tensor.
REPLAYED = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER, Collective.BROADCAST)


OPERATIONS = {kind.__name__: kind for kind in (Send, Receive, Compute)}  # operations of a host in an exchange


@dataclass(frozen=True, slots=True)
class ExchangeRole:
    """A host's role in an exchange.

    Attributes:
        number: of the exchange's tensor.
        elements: of its pieces.
        sources: piece that a switch multicasts -> the node that sends it.
    """

    number: int
    elements: tuple[int, ...]
    operations: tuple[Send | Receive | Compute, ...]
    sources: dict[int, str]

    @property
    def multicasts(self) -> bool:
        """Whether this host sends a piece that a switch multicasts."""
        return any(isinstance(each, Send) and not is_host(each.peer) for each in self.operations)

    def to_json(self) -> dict[str, Any]:
        operations = [[type(each).__name__, *astuple(each)] for each in self.operations]
        return {**asdict(self), "operations": operations}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ExchangeRole:
        return cls(
            fields["number"],
            tuple(fields["elements"]),
            tuple(OPERATIONS[kind](*values) for kind, *values in fields["operations"]),
            {int(piece): source for piece, source in fields["sources"].items()},
        )


def role_in(number: int, exchange: Exchange, node: str, dilation: float) -> ExchangeRole | None:
    """A node's role in an exchange; None if it has none.

    Args:
        dilation: factor by which computing takes longer.
    """
    operations: list[Send | Receive | Compute] = []
    for operation in exchange.schedule.nodes.get(node, ()):
        match operation:
            case Compute(piece, duration_ns):
                operations.append(Compute(piece, round(duration_ns * dilation)))
            case Receive(peer, piece, _):
                operations.append(Receive(peer, piece, False))  # the same number of bytes; nothing is summed
            case Send():
                operations.append(operation)
    elements = tuple(size // FLOAT_BYTES for size in exchange.sizes)
    sources = exchange.schedule.multicast_sources
    return ExchangeRole(number, elements, tuple(operations), sources) if operations else None


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a worker, or server.

    Attributes:
        slots, segment_bytes: see RankContext.
        elements: of each tensor; 0 for one that an exchange carries, or that other workers sum.
        collectives: what is done with each tensor, by name; empty for the mechanism's all-reduce.
        group: the ranks that sum this worker's tensors; empty for all, or if it sums none.
        forward: ns of each step, dilated; one for the whole pass if nothing is gathered in it.
        backward: (ns, tensors that are ready then) by step, dilated.
        errands: the tensors that are exchanged between the passes.
        asked, awaited: the tensors that are begun, and waited for, before each step, forward then backward.
        own_messages: whether there are exchanges.
        hosts: node -> number of the process that has a role in them.
        roles: this process's roles.
        result: file for its WorkerReport as JSON. Empty on real hosts: the report is printed, and ranks form their
            barrier themselves.
    """

    mechanism: str
    controller: str
    address: str
    deadline_s: float
    slots: int
    segment_bytes: int
    elements: tuple[int, ...]
    collectives: tuple[str, ...]
    group: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[tuple[int, tuple[int, ...]], ...]
    errands: tuple[int, ...]
    asked: tuple[tuple[int, ...], ...]
    awaited: tuple[tuple[int, ...], ...]
    own_messages: bool
    hosts: dict[str, int]
    roles: tuple[ExchangeRole, ...]
    warm_up: int
    iterations: int
    result: str

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "roles": [role.to_json() for role in self.roles]})

    @classmethod
    def from_json(cls, text: str) -> ReplayOptions:
        fields: dict[str, Any] = json.loads(text)
        lists = {name: tuple(fields[name]) for name in ("elements", "collectives", "group", "forward", "errands")}
        lists |= {name: tuple(map(tuple, fields[name])) for name in ("asked", "awaited")}
        backward = tuple((duration_ns, tuple(ready)) for duration_ns, ready in fields["backward"])
        roles = tuple(ExchangeRole.from_json(role) for role in fields["roles"])
        return cls(**{**fields, **lists, "backward": backward, "roles": roles})


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options of a worker, or server, of real training.

    Attributes:
        train: fields of TrainOptions; steps are warm_up and iterations together.
        result: as in ReplayOptions.
    """

    train: dict[str, Any]
    warm_up: int
    result: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrainingOptions:
        return cls(**json.loads(text))
