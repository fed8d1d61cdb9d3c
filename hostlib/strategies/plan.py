"""Plans: a strategy applied to a model's trace. What workers compute, what is summed, and which messages are its own.

The simulator executes plans in virtual time, the emulation with real bytes. Whatever the mechanism does not sum is an
exchange: a schedule, as mechanisms have them, whose pieces have sizes of their own. Torch-free.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.models.layer_info import LayerInfo
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import SWITCH, Compute, FabricUse, Multicast, Operation, Receive, Schedule, Send, worker
from hostlib.traces.trace import Trace

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class PlanContext:
    """The environment of a strategy.

    Attributes:
        choice: strategy and mechanism, as the user named them.
        layers: of the model; empty if only a trace is known.
        batch: examples of one worker and iteration.
        servers: node names of the hosts of the strategy's own servers.
    """

    choice: str
    layers: tuple[LayerInfo, ...]
    workers: int
    batch: int
    mechanism: Mechanism
    servers: tuple[str, ...]

    def known_layers(self) -> tuple[LayerInfo, ...]:
        """The model's layers. Raises HostlibError: they are unknown."""
        if not self.layers:
            raise HostlibError(
                f"{self.choice} needs layers' kinds, matrices and outputs, which a trace does not contain: "
                "name a model (simulation run --help lists them) instead of a file"
            )
        return self.layers


@dataclass(frozen=True, slots=True)
class Exchange:
    """A strategy's own messages.

    Attributes:
        name: of what it carries.
        schedule: which exchanges of the same shape share.
        sizes: of the schedule's pieces, in bytes.
        slowdown: computing takes so many times as long as the schedule has it.
    """

    name: str
    schedule: Schedule
    sizes: tuple[int, ...]
    slowdown: float = 1.0

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    def scaled(self, factor: float) -> Exchange:
        """The same exchange with its pieces' sizes times a factor, rounded to whole values; no piece becomes empty."""
        return replace(
            self, sizes=tuple(FLOAT_BYTES * max(1, round(size * factor / FLOAT_BYTES)) for size in self.sizes)
        )

    def slowed(self, factor: float) -> Exchange:
        """The same exchange, in which computing takes `factor` times as long."""
        return replace(self, slowdown=self.slowdown * factor)

    def compute_ns(self, node: str) -> int:
        """How long a node computes in it."""
        operations = self.schedule.nodes.get(node, ())
        return sum(round(each.duration_ns * self.slowdown) for each in operations if isinstance(each, Compute))


@dataclass(frozen=True, slots=True)
class GradientExchange:
    """Gradients that an exchange carries instead of the mechanism; it begins when the last of them is ready."""

    parameters: tuple[str, ...]
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class SummingGroup:
    """Workers that sum some gradients among themselves; one worker alone sums nothing."""

    workers: tuple[int, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeightGather:
    """An all-gather of weights that workers keep in shards, by the mechanism.

    An iteration's steps are its layers' forward passes, then its gradients in the order in which they are ready.

    Attributes:
        name: of what is gathered, and for what.
        parameters: the weights.
        asked: the step at which a worker begins it, as soon as it comes to that step.
        needed: the step that waits for it, the same or a later one.
    """

    name: str
    parameters: tuple[str, ...]
    asked: int
    needed: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One iteration.

    Attributes:
        trace: what workers compute; the mechanism sums its gradients, except for those that an exchange carries.
        blocking: exchanges between the passes: a worker begins its backward pass once those that it takes part in are
            complete. Their schedules may have workers compute, each something else: a pipeline is one such exchange.
        chunks: groups of gradients that are each summed in one piece, in this order, when the last one is ready;
            gradients in no chunk are summed when they are ready.
        groups: who sums what, if not all workers have all gradients; then each gradient is in a group, or in several,
            and there are no chunks.
        summing: the collective that sums gradients; each of its own kind has its own turns at a worker.
        gathers: of weights, in the order in which they are begun.
    """

    trace: Trace
    carried: tuple[GradientExchange, ...] = ()
    blocking: tuple[Exchange, ...] = ()
    chunks: tuple[tuple[str, ...], ...] = ()
    groups: tuple[SummingGroup, ...] = ()
    summing: Collective = Collective.ALL_REDUCE
    gathers: tuple[WeightGather, ...] = ()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return (*(each.exchange for each in self.carried), *self.blocking)

    @property
    def is_sharded(self) -> bool:
        """Whether the mechanism does more than all-reduces."""
        return bool(self.gathers) or self.summing is not Collective.ALL_REDUCE

    @property
    def has_own_messages(self) -> bool:
        return bool(self.exchanges)

    def scaled(self, factor: float) -> Plan:
        """The same plan with all bytes times a factor."""
        trace = self.trace if factor == 1 else self.trace.scale_sizes(factor)
        return replace(self, trace=trace).with_exchanges_scaled(factor)

    def with_exchanges_scaled(self, factor: float) -> Plan:
        """The same plan with all bytes but those that the mechanism sums times a factor."""
        if factor == 1:
            return self
        return replace(
            self,
            carried=tuple(replace(each, exchange=each.exchange.scaled(factor)) for each in self.carried),
            blocking=tuple(each.scaled(factor) for each in self.blocking),
        )


# ---- exchanges -----------------------------------------------------------------------------------------------------


def everybody_to_everybody(name: str, workers: int, size: int, by_switch: bool = False) -> Exchange:
    """Each worker's piece to all others: from peer to peer, or once to the switch, which multicasts it."""
    return Exchange(name, _everybody_to_everybody(workers, by_switch), (size,) * workers)


@lru_cache(maxsize=4)  # all of a model's layers share it
def _everybody_to_everybody(workers: int, by_switch: bool) -> Schedule:
    names = [worker(rank) for rank in range(workers)]
    nodes: dict[str, tuple[Operation, ...]] = {}
    for rank, node in enumerate(names):
        # Each starts with its successor, so that the workers do not all send to one host at once.
        others = [(rank + step) % workers for step in range(1, workers)]
        sends = [Send(SWITCH, rank)] if by_switch else [Send(names[other], rank) for other in others]
        comes = [Receive(SWITCH if by_switch else names[other], other, False) for other in reversed(others)]
        nodes[node] = (*sends, *comes)
    if by_switch:
        nodes[SWITCH] = tuple(
            operation
            for rank, node in enumerate(names)
            for operation in (
                Receive(node, rank, False),
                Multicast(tuple(other for other in names if other != node), rank),
            )
        )
    use = FabricUse.MULTICAST if by_switch else None
    return Schedule("everybody to everybody", workers, workers, nodes, fabric_use=use)


def by_server(name: str, workers: int, server: str, up: int, down: int) -> Exchange:
    """Each worker's piece to a server and back; a server that is a worker as well also has its own piece."""
    names = [worker(rank) for rank in range(workers)]
    nodes: dict[str, tuple[Operation, ...]] = {
        node: (Send(server, rank), Receive(server, workers, False)) for rank, node in enumerate(names)
    }
    others = [(rank, node) for rank, node in enumerate(names) if node != server]
    nodes[server] = (
        *(Receive(node, rank, False) for rank, node in others),
        *(Send(node, workers) for _, node in others),
    )
    return Exchange(name, Schedule(name, workers, workers + 1, nodes), (*(up,) * workers, down))


def sync_exchange(name: str, workers: int, rank: int, server: str, size: int, compute_ns: int) -> Exchange:
    """One worker's piece to a server, which processes one at a time and sends back as many bytes."""
    nodes: dict[str, tuple[Operation, ...]] = {worker(other): () for other in range(workers)}
    nodes[worker(rank)] = (Send(server, 0), Receive(server, 0, False))
    nodes[server] = (Receive(worker(rank), 0, False), Compute(0, compute_ns), Send(worker(rank), 0))
    return Exchange(name, Schedule(name, workers, 1, nodes), (size,))


def sync_exchange_of_all(name: str, workers: int, server: str, size: int, compute_ns: int) -> Exchange:
    """All workers' pieces to a server, which processes them together and sends back as many bytes to each."""
    names = [worker(rank) for rank in range(workers)]
    nodes: dict[str, tuple[Operation, ...]] = {
        node: (Send(server, rank), Receive(server, rank, False)) for rank, node in enumerate(names)
    }
    nodes[server] = (
        *(Receive(node, rank, False) for rank, node in enumerate(names)),
        Compute(0, compute_ns),
        *(Send(node, rank) for rank, node in enumerate(names)),
    )
    return Exchange(name, Schedule(name, workers, workers, nodes), (size,) * workers)


def at_the_host(name: str, workers: int, size: int, compute_ns: int) -> Exchange:
    """Each worker's piece to the host that all share, which works on it for that time; no messages."""
    nodes = {worker(rank): (Compute(0, compute_ns),) for rank in range(workers)}
    return Exchange(name, Schedule(name, workers, 1, nodes), (size,))


# ---- traces --------------------------------------------------------------------------------------------------------


def head(trace: Trace, last: str) -> Trace:
    """The trace up to a layer, without the layers after it."""
    names = [layer.name for layer in trace.layers]
    layers = trace.layers[: names.index(last) + 1]
    kept = {layer.name for layer in layers}
    parameters = tuple(p for p in trace.parameters if p.layer in kept)
    gradients = {p.name for p in parameters}
    events = []
    for name in trace.workers:
        mine = [event for event in trace.aggregation(name) if event.parameter in gradients]
        events += [replace(event, time_ns=event.time_ns - mine[0].time_ns) for event in mine]
    events += [event for event in trace.distribution if event.parameter in gradients]
    return Trace(layers, parameters, tuple(events))


def tail_ns(trace: Trace, last: str) -> int:
    """Computing time of the layers after a layer, both passes together."""
    names = [layer.name for layer in trace.layers]
    return sum(layer.forward_ns + layer.backward_ns for layer in trace.layers[names.index(last) + 1 :])


def still(trace: Trace) -> Trace:
    """The trace without computing: all gradients are ready at once."""
    layers = tuple(replace(layer, forward_ns=0, backward_ns=0) for layer in trace.layers)
    events = tuple(replace(event, time_ns=0) for event in trace.aggregation(trace.workers[0]))
    return replace(trace, layers=layers, events=(*events, *trace.distribution))


def gradients(trace: Trace) -> tuple[str, ...]:
    """The trained parameters, in the order in which their gradients are ready."""
    return tuple(event.parameter for event in trace.aggregation(trace.workers[0]))


def pausing(trace: Trace, chunks: Iterable[tuple[str, ...]], pause_ns: int) -> Trace:
    """A trace in which workers pause whenever all gradients of a chunk are ready, before they are sent."""
    step = {name: number for number, name in enumerate(gradients(trace))}
    last = list(accumulate((max(step[name] for name in chunk) for chunk in chunks), max))
    late_ns = {name: pause_ns * bisect_right(last, number) for name, number in step.items()}
    late = [
        replace(event, time_ns=event.time_ns + late_ns.get(event.parameter, 0))
        for name in trace.workers
        for event in trace.aggregation(name)
    ]
    return replace(trace, events=(*late, *trace.distribution))


# ---- fully connected layers ----------------------------------------------------------------------------------------


def by_layers(
    trace: Trace, context: PlanContext, how: Callable[[int, LayerInfo], Exchange | None], with_bias: bool = True
) -> Plan:
    """Plan in which exchanges carry fully connected layers' gradients and the mechanism sums all others.

    Args:
        how: a layer's exchange, by its number, counted from the last layer; None for the mechanism.
        with_bias: whether an exchange also carries the bias's gradient.

    Raises:
        HostlibError: the layers are unknown.
    """
    carried = []
    sizes = {p.name: p.bytes for p in trace.parameters}
    connected = [layer for layer in context.known_layers() if layer.matrix is not None]
    for number, layer in enumerate(reversed(connected)):
        outputs, inputs = layer.matrix or (0, 0)
        mine = [n for n in layer.members if n in sizes and (with_bias or sizes[n] == FLOAT_BYTES * outputs * inputs)]
        exchange = how(number, layer)
        if exchange is not None and mine:
            carried.append(GradientExchange(tuple(mine), exchange))
    return Plan(trace, tuple(carried))


def factors(layer: LayerInfo, context: PlanContext, by_switch: bool = False) -> Exchange:
    """Exchange of a layer's sufficient factors between all workers."""
    return everybody_to_everybody(layer.name, context.workers, factor_bytes(layer, context.batch), by_switch)


def factor_bytes(layer: LayerInfo, batch: int) -> int:
    """Bytes of a worker's sufficient factors: an input and an output's gradient for each vector that passes through."""
    return FLOAT_BYTES * vectors(layer, batch) * sum(layer.matrix or ())


def vectors(layer: LayerInfo, batch: int) -> int:
    """Number of vectors that pass through a fully connected layer: one for each example, or for each of its tokens."""
    outputs, _ = layer.matrix or (layer.output, 0)
    return batch * max(1, layer.output // outputs)
