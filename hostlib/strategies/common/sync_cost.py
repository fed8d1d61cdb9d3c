"""Poseidon's coordinator: the cost of synchronising a layer, and the cheapest scheme. Torch-free.

Source: "Poseidon", section 3.2 (table 1) and section 4.1 (algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from hostlib.errors import HostlibError, UnknownNameError
from hostlib.mechanisms.mechanism import Mechanism, find
from hostlib.models.layer_info import LayerInfo
from hostlib.schedules.schedule import link_elements

Scheme = Literal["PS", "SFB"]


@dataclass(frozen=True, slots=True)
class InformationBook:
    """The coordinator's information about model and cluster.

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
        """Find a layer by its name.

        Raises:
            UnknownNameError: there is no such layer.
        """
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise UnknownNameError("layer", name, (layer.name for layer in self.trained))

    def factors(self, layer: LayerInfo) -> int:
        """Pairs of sufficient factors that a worker has of a fully connected layer.

        One for each vector that passes through it: one per example, or per token or call if there are several.
        """
        assert layer.matrix is not None
        outputs, inputs = layer.matrix
        return self.batch * max(1, layer.flops // (2 * outputs * inputs))  # the output only covers the last call


@dataclass(frozen=True, slots=True)
class Cost:
    """A row of table 1: parameters that a node sends and receives for one layer in one iteration.

    Attributes:
        server, worker: of a node with one role; None if there is no server.
        both: of a node with both roles.
    """

    server: float | None
    worker: float
    both: float


def ps_cost(elements: int, workers: int, servers: int) -> Cost:
    """Cost of parameter servers with equal parts of the layer's elements (M x N)."""
    return Cost(2 * workers * elements / servers, 2 * elements, 2 * elements * (workers + servers - 2) / servers)


def sfb_cost(matrix: tuple[int, int], factors: int, workers: int) -> Cost:
    """Cost of broadcasting sufficient factors between all workers.

    Args:
        factors: pairs of one worker, K in the paper.
    """
    carried = 2 * factors * (workers - 1) * sum(matrix)
    return Cost(None, carried, carried)


def adam_cost(matrix: tuple[int, int], factors: int, workers: int) -> Cost:
    """Cost, at the busiest nodes, of sending factors to the layer's server, which returns whole matrices."""
    elements, pushed = matrix[0] * matrix[1], factors * sum(matrix)
    return Cost(workers * elements + workers * pushed, pushed + elements, (workers - 1) * (elements + pushed))


def costs(layer: LayerInfo, book: InformationBook) -> dict[Scheme, float | None]:
    """Parameters that a node with both roles carries for a layer; None for impossible schemes."""
    if layer.matrix is None:
        return {"PS": ps_cost(layer.params, book.workers, book.servers).both, "SFB": None}
    outputs, inputs = layer.matrix
    return {
        "PS": ps_cost(outputs * inputs, book.workers, book.servers).both,
        "SFB": sfb_cost(layer.matrix, book.factors(layer), book.workers).both,
    }


def best_scheme(layer: LayerInfo, book: InformationBook) -> Scheme:
    """Algorithm 1: sufficient factors for fully connected layers if they cost no more; else parameter servers."""
    if layer.matrix is None:
        return "PS"
    servers = ps_cost(layer.matrix[0] * layer.matrix[1], book.workers, book.servers).both
    return cheaper(layer.matrix, book.factors(layer), book.workers, servers)


def cheaper(matrix: tuple[int, int], factors: int, workers: int, dense: float) -> Scheme:
    """The comparison of algorithm 1.

    Args:
        factors: pairs of one worker.
        dense: cost of the whole matrix.
    """
    return "SFB" if sfb_cost(matrix, factors, workers).both <= dense else "PS"


def mechanism_cost(mechanism: Mechanism, workers: int, elements: int) -> float:
    """What the busiest host's link carries, in both directions, when a mechanism sums that many elements.

    Takes the place of the parameter servers' cost in algorithm 1. For `ps` with even parts and shared hosts it equals
    table 1; a library's own all-reduce counts as a ring.
    """
    if mechanism.build is None:
        return ps_cost(elements, workers, workers).both
    return _busiest(mechanism.name, workers, elements)


@lru_cache(maxsize=256)  # a model's layers are few, and a plan is made many times
def _busiest(name: str, workers: int, elements: int) -> float:
    carried = link_elements(find(name).schedule(workers, 4 * elements), elements)
    return max(sent + received for sent, received in carried.values())
