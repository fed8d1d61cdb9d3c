"""Predict what each node sends and receives in one iteration, by scheme, to compare with measurements. Torch-free.

Source: "Poseidon", table 1 and figure 10.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hostlib.models.layer_info import LayerInfo
from hostlib.strategies.common.sync_cost import InformationBook, best_scheme

ELEMENT_BYTES = 4
BITS = 8

Synchronisation = Literal["ps", "sfb", "adam", "hybcomm", "onebit"]


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """Payload bytes of one node's link in each direction."""

    sent: float = 0.0
    received: float = 0.0

    def __add__(self, other: LinkTraffic) -> LinkTraffic:
        return LinkTraffic(self.sent + other.sent, self.received + other.received)


@dataclass(frozen=True, slots=True)
class Flow:
    """A number of bytes from one node to another: "worker3", "server0"."""

    source: str
    destination: str
    size_bytes: float


def per_node(book: InformationBook, scheme: Synchronisation, colocated: bool = True) -> dict[str, LinkTraffic]:
    """The traffic of every node, averaged over iterations if servers take turns.

    Args:
        colocated: server i is on worker i's node, and messages between the two are no traffic; else it has its own
            node.
    """
    total: dict[str, LinkTraffic] = {f"worker{rank}": LinkTraffic() for rank in range(book.workers)}
    if scheme != "sfb" or not colocated:
        total |= {_node(f"server{number}", colocated): LinkTraffic() for number in range(book.servers)}
    for message in messages(book, scheme):
        source, destination = _node(message.source, colocated), _node(message.destination, colocated)
        if source != destination:
            total[source] += LinkTraffic(sent=message.size_bytes)
            total[destination] += LinkTraffic(received=message.size_bytes)
    return total


def _node(end: str, colocated: bool) -> str:
    return end.replace("server", "worker") if colocated else end


def messages(book: InformationBook, scheme: Synchronisation) -> Iterator[Flow]:
    """All messages of one iteration. Layers' owners are counted in backward order."""
    owners: dict[str, int] = defaultdict(int)
    for layer in reversed(book.trained):
        way = _way(layer, book, scheme)
        if way == "ps":
            yield from _by_servers(layer.params, book)
        elif way == "adam":
            yield from _by_owner(layer, book, owners[way] % book.servers)
        elif way == "onebit":
            outputs, inputs = layer.matrix or (0, 0)
            yield from _to_everybody(-(-outputs * inputs // BITS) + 2 * ELEMENT_BYTES * inputs, book)
            yield from _by_servers(layer.params - outputs * inputs, book)
        else:
            yield from _to_everybody(_factor_bytes(layer, book), book)
        owners[way] += 1


def _way(layer: LayerInfo, book: InformationBook, scheme: Synchronisation) -> Synchronisation:
    if layer.matrix is None:
        return "ps"
    if scheme == "hybcomm":
        return "sfb" if best_scheme(layer, book) == "SFB" else "ps"
    return scheme


def _factor_bytes(layer: LayerInfo, book: InformationBook) -> int:
    return ELEMENT_BYTES * book.factors(layer) * sum(layer.matrix or ())


def _by_servers(elements: int, book: InformationBook) -> Iterator[Flow]:
    part = ELEMENT_BYTES * elements / book.servers
    for rank in range(book.workers):
        for number in range(book.servers):
            yield Flow(f"worker{rank}", f"server{number}", part)
            yield Flow(f"server{number}", f"worker{rank}", part)


def _by_owner(layer: LayerInfo, book: InformationBook, owner: int) -> Iterator[Flow]:
    for rank in range(book.workers):
        yield Flow(f"worker{rank}", f"server{owner}", _factor_bytes(layer, book))
        yield Flow(f"server{owner}", f"worker{rank}", ELEMENT_BYTES * layer.params)


def _to_everybody(size_bytes: int, book: InformationBook) -> Iterator[Flow]:
    for source in range(book.workers):
        for destination in range(book.workers):
            if source != destination:
                yield Flow(f"worker{source}", f"worker{destination}", size_bytes)
