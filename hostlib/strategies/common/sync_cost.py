"""What it costs to synchronise a layer, and which way is the cheapest: Poseidon's coordinator. Torch-free.

Source: "Poseidon", section 3.2 (table 1) and section 4.1 (algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hostlib.errors import HostlibError, UnknownNameError
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.models.layer_info import LayerInfo
from hostlib.schedules.schedule import link_elements

Scheme = Literal["PS", "SFB"]


@dataclass(frozen=True, slots=True)
class InformationBook:
    """What the coordinator knows of the model and the cluster.

    Attributes:
        batch: examples of one worker.

    Raises:
        HostlibError: a number below 1.
    """

    layers: tuple[LayerInfo, ...]
    workers: int
    servers: int
    batch: int

    def __post_init__(self) -> None:
        for name in ("workers", "servers", "batch"):
            if getattr(self, name) < 1:
                raise HostlibError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def trained(self) -> tuple[LayerInfo, ...]:
        """The layers that have parameters."""
        return tuple(layer for layer in self.layers if layer.params > 0)

    def query(self, name: str) -> LayerInfo:
        """The layer of a name.

        Raises:
            UnknownNameError: there is none.
        """
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise UnknownNameError("layer", name, (layer.name for layer in self.trained))

    def factors(self, layer: LayerInfo) -> int:
        """Pairs of sufficient factors that a worker has of a fully connected layer: one for each vector that goes
        through it, so one per example, or per token or call where there are several."""
        assert layer.matrix is not None
        outputs, inputs = layer.matrix
        return self.batch * max(1, layer.flops // (2 * outputs * inputs))  # the output is the last call's alone


@dataclass(frozen=True, slots=True)
class Cost:
    """A row of table 1: parameters that a node sends and receives for one layer in one iteration.

    Attributes:
        server, worker: of a node that is one of the two; None where there is no server.
        both: of a node that is both.
    """

    server: float | None
    worker: float
    both: float


def ps_cost(elements: int, workers: int, servers: int) -> Cost:
    """Parameter servers that have equal parts of the layer's elements (M x N)."""
    return Cost(2 * workers * elements / servers, 2 * elements, 2 * elements * (workers + servers - 2) / servers)


def sfb_cost(matrix: tuple[int, int], factors: int, workers: int) -> Cost:
    """Sufficient factors from everybody to everybody.

    Args:
        factors: pairs of one worker, K in the paper.
    """
    carried = 2 * factors * (workers - 1) * sum(matrix)
    return Cost(None, carried, carried)


def adam_cost(matrix: tuple[int, int], factors: int, workers: int) -> Cost:
    """Sufficient factors to the one server that owns the layer, which sends whole matrices back: the busiest nodes."""
    elements, pushed = matrix[0] * matrix[1], factors * sum(matrix)
    return Cost(workers * elements + workers * pushed, pushed + elements, (workers - 1) * (elements + pushed))


def costs(layer: LayerInfo, book: InformationBook) -> dict[Scheme, float | None]:
    """What a node that is worker and server carries for a layer, in parameters; None for what cannot be."""
    if layer.matrix is None:
        return {"PS": ps_cost(layer.params, book.workers, book.servers).both, "SFB": None}
    outputs, inputs = layer.matrix
    return {
        "PS": ps_cost(outputs * inputs, book.workers, book.servers).both,
        "SFB": sfb_cost(layer.matrix, book.factors(layer), book.workers).both,
    }


def best_scheme(layer: LayerInfo, book: InformationBook) -> Scheme:
    """Algorithm 1: sufficient factors for fully connected layers where they are no more; else parameter servers."""
    if layer.matrix is None:
        return "PS"
    servers = ps_cost(layer.matrix[0] * layer.matrix[1], book.workers, book.servers).both
    return cheaper(layer.matrix, book.factors(layer), book.workers, servers)


def cheaper(matrix: tuple[int, int], factors: int, workers: int, dense: float) -> Scheme:
    """Algorithm 1's comparison.

    Args:
        factors: pairs of one worker.
        dense: what the whole matrix costs.
    """
    return "SFB" if sfb_cost(matrix, factors, workers).both <= dense else "PS"


def mechanism_cost(mechanism: Mechanism, workers: int, elements: int) -> float:
    """What the busiest host's link carries, both ways together, when a mechanism sums so many elements: what algorithm 1
    has the parameter servers' cost for. For `ps` with even parts and shared hosts it is table 1's; a library's own
    all-reduce counts as a ring.
    """
    if mechanism.build is None:
        return ps_cost(elements, workers, workers).both
    carried = link_elements(mechanism.schedule(workers, 4 * elements), elements)
    return max(sent + received for sent, received in carried.values())
