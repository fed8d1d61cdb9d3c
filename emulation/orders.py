"""What workers and servers of a cell are told, and where they wait for each other. Torch-free: who tells them needs none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from hostlib.plan import FLOAT_BYTES, Exchange
from hostlib.schedule import Compute, Receive, Send, is_host

WARM_UP, MEASURED, DONE = "warm-up", "measured", "done"
PHASES = (WARM_UP, MEASURED, DONE)


class Step(NamedTuple):
    """An operation of this host.

    Attributes:
        what: "send", "receive", "compute"; of what the switch multicasts, "multicast" and "hear".
        peer: its number among the strategy's processes, of what is heard the source's; -1 where there is none.
        duration_ns: of computing.
    """

    what: str
    peer: int
    piece: int
    duration_ns: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What this host does in an exchange.

    Attributes:
        number: of the exchange's tensor.
        elements: of its pieces.
    """

    number: int
    elements: tuple[int, ...]
    steps: tuple[Step, ...]

    @classmethod
    def from_json(cls, number: int, elements: Sequence[int], steps: Sequence[Any]) -> Part:
        return cls(number, tuple(elements), tuple(Step(*step) for step in steps))


def part_of(number: int, exchange: Exchange, node: str, peers: Mapping[str, int], dilation: float) -> Part | None:
    """A node's part of an exchange; None where it has none.

    Args:
        peers: the numbers of all nodes.
        dilation: times which computing lasts longer.
    """
    steps = []
    sources = exchange.schedule.multicast_sources
    for operation in exchange.schedule.nodes.get(node, ()):
        match operation:
            case Send(peer, piece) if not is_host(peer):
                steps.append(Step("multicast", -1, piece))
            case Receive(peer, piece, _) if not is_host(peer):
                steps.append(Step("hear", peers[sources[piece]], piece))
            case Send(peer, piece):
                steps.append(Step("send", peers[peer], piece))
            case Receive(peer, piece, _):
                steps.append(Step("receive", peers[peer], piece))
            case Compute(piece, duration_ns):
                steps.append(Step("compute", -1, piece, round(duration_ns * dilation)))
    elements = tuple(size // FLOAT_BYTES for size in exchange.sizes)
    return Part(number, elements, tuple(steps)) if steps else None


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What a worker, or server, is told.

    Attributes:
        elements: of each tensor; 0 of what an exchange brings.
        forward_ns: of the whole pass, dilated.
        backward: (ns, tensors that are ready then) by step, dilated.
        errands: the tensors that are exchanged between the passes.
        own_messages: whether there are exchanges, and
        parts: what this process does in them.
        result: the file it leaves: a Report as JSON. Empty on real hosts: it says the report, and the ranks meet by
            themselves.
    """

    mechanism: str
    controller: str
    address: str
    deadline_s: float
    elements: tuple[int, ...]
    forward_ns: int
    backward: tuple[tuple[int, tuple[int, ...]], ...]
    errands: tuple[int, ...]
    own_messages: bool
    parts: tuple[Part, ...]
    warm_up: int
    iterations: int
    result: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ReplayOptions:
        told: dict[str, Any] = json.loads(text)
        parts = tuple(Part.from_json(**part) for part in told.pop("parts"))
        return cls(**told, parts=parts)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What a worker, or server, is told.

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
