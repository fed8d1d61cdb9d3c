"""A model as a chain of layers that can be cut between any two of them: its forward pass, traced by torch.fx.

A cut is possible where only tensors go on, none of which shares memory with another. Everything that later layers need
is handed on from stage to stage, so that a stage sends to the next one only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from hostlib.errors import HostlibError, ModelError
from hostlib.models.forward_graph import trace
from hostlib.models.inspection import layers_of

Handed = tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """Neighbouring operations that are not cut apart: usually one with parameters, and those without that follow it.

    Attributes:
        name: of the module or function that comes first.
        parameters: the trained ones that it uses.
        handed: the values that later layers need from this one and those before it; none after the last layer.
    """

    name: str
    nodes: tuple[fx.Node, ...]
    parameters: tuple[nn.Parameter, ...]
    handed: Handed


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring layers as a module.

    Attributes:
        module: has the model's own parameters and buffers, under the same names.
        inputs, outputs: tensors on the meta device with the shapes, dtypes and `requires_grad` of a micro-batch's.
        in_place: it may overwrite its inputs.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    in_place: bool


class ModelChain:
    """A model's forward pass for inputs of one shape, as a chain of layers.

    Numbers that depend on the input's shape become constants, so the pieces take inputs of that shape only.

    Args:
        example: a batch on the meta device.
        parts: into how many it will be cut. If it has fewer operations with parameters, others are layers, too.

    Raises:
        HostlibError: the forward pass cannot be traced, depends on values, or has too few operations; the message says
            what to do.
    """

    def __init__(self, model: nn.Module, example: Tensor, parts: int = 1) -> None:
        self._model, self._example = model, example
        graph = _traced(model, example)
        values = _values(model, graph, example)
        self._input = next(node for node in graph.nodes if node.op == "placeholder")
        self._output = next(node for node in graph.nodes if node.op == "output")
        self._constants = {
            node: _literal(values[node], model)
            for node in graph.nodes
            if node not in (self._input, self._output) and _fixed(values[node])
        }
        self._values = values
        nodes = [node for node in graph.nodes if self._computes(node)]
        self.layers = tuple(self._layers(nodes, any_operation=False))
        if len(self.layers) < parts:
            self.layers = tuple(self._layers(nodes, any_operation=True))
        if len(self.layers) < parts:
            raise HostlibError(f"{type(model).__name__} can be cut into {len(self.layers)} parts at most, not {parts}")

    def __len__(self) -> int:
        return len(self.layers)

    def activation_bytes(self, layer: int) -> int:
        """Bytes that a cut behind that layer sends forward."""
        return sum(self._values[node].nbytes for node in self.layers[layer].handed)

    def piece(self, first: int, end: int) -> Piece:
        """Layers `first` to `end` - 1 as a module."""
        handed = self.layers[first - 1].handed if first else (self._input,)
        nodes = [node for layer in self.layers[first:end] for node in layer.nodes]
        graph = fx.Graph()
        made: dict[fx.Node, Any] = {
            node: graph.placeholder(f"handed_{number}") for number, node in enumerate(handed)
        } | self._constants

        def argument(node: fx.Node) -> Any:
            if node not in made:  # a parameter or buffer
                made[node] = graph.node_copy(node)
            return made[node]

        for node in nodes:
            for used in node.all_input_nodes:
                argument(used)
            made[node] = graph.node_copy(node, argument)
        if end < len(self.layers):
            outgoing: Any = tuple(made[node] for node in self.layers[end - 1].handed)
            after = [self._values[node] for node in self.layers[end - 1].handed]
        else:
            outgoing = fx.map_arg(self._output.args[0], argument)
            after = [self._values[node] for node in self._output.all_input_nodes if node not in self._constants]
        graph.output(outgoing)
        return Piece(
            fx.GraphModule(self._model, graph, "Piece"),
            tuple(_empty(self._values[node]) for node in handed),
            tuple(_empty(value) for value in after),
            any(_may_work_in_place(self._model, node) for node in nodes),
        )

    def _computes(self, node: fx.Node) -> bool:
        return node.op in ("call_module", "call_function", "call_method") and node not in self._constants

    def _layers(self, nodes: Sequence[fx.Node], any_operation: bool) -> Iterator[ChainLayer]:
        """Cut in front of each operation, or of each one that has parameters, where that is possible."""
        place = {node: number for number, node in enumerate(nodes)}
        last_use = {
            used: place.get(node, len(nodes))
            for node in (*nodes, self._output)
            for used in node.all_input_nodes
            if used in place or used is self._input
        }
        begin = 0
        handed: Handed = (self._input,)
        alive: dict[fx.Node, None] = {self._input: None}
        trained = False
        for number, node in enumerate(nodes):
            own = _parameters(self._model, node)
            if trained and (own or any_operation) and self._can_be_handed(handed):
                yield self._layer(nodes[begin:number], handed)
                begin = number
            trained = trained or bool(own)
            alive[node] = None
            alive = {each: None for each in alive if last_use.get(each, -1) > number}
            handed = tuple(alive)
        if not trained:
            raise HostlibError(f"{type(self._model).__name__} has no trained parameters")
        yield self._layer(nodes[begin:], ())

    def _layer(self, nodes: Sequence[fx.Node], handed: Handed) -> ChainLayer:
        own = {id(p): p for node in nodes for p in _parameters(self._model, node)}
        named = next((node for node in nodes if _parameters(self._model, node)), nodes[0])
        return ChainLayer(_name(named), tuple(nodes), tuple(own.values()), handed)

    def _can_be_handed(self, nodes: Handed) -> bool:
        values = [self._values[node] for node in nodes]
        if not values or not all(isinstance(value, Tensor) for value in values):
            return False
        apart = {value.untyped_storage()._cdata for value in values}
        return len(apart) == len(values) and any(value.requires_grad for value in values)


def _traced(model: nn.Module, example: Tensor) -> fx.Graph:
    try:
        whole = [layer.name for layer in layers_of(model, example) if layer.kind != "other"]
    except ModelError:
        whole = []  # The trace below says more exactly what the matter is.
    try:
        return trace(model, whole, example, keep_untraceable=True)
    except HostlibError as error:
        raise HostlibError(
            f"{error}; make it a torch.nn.Sequential of its parts, or train it whole, as wfbp does"
        ) from error


def _values(model: nn.Module, graph: fx.Graph, example: Tensor) -> dict[fx.Node, Any]:
    """Every node's value for an example, on the meta device."""
    recorder = _Recorder(_without_weights(model), graph=graph, garbage_collect_values=False)
    try:
        with torch.random.fork_rng(devices=[]):
            recorder.run(example)
    except Exception as error:  # the model may be the user's and raise anything
        why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise HostlibError(
            f"{type(model).__name__} cannot be cut: its forward pass depends on values, or rejects a micro-batch of "
            f"{len(example)} ({why}); train it whole, as wfbp does"
        ) from error
    return recorder.values


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps every node's value."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n] = super().run_node(n)
        return self.values[n]


def _without_weights(model: nn.Module) -> nn.Module:
    """A copy on the meta device, whose weights are not copied."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def _fixed(value: Any) -> bool:
    """Whether a value has no tensors, so that it is the same for all inputs of the shape."""
    if isinstance(value, tuple | list):
        return all(_fixed(each) for each in value)
    if isinstance(value, dict):
        return all(_fixed(each) for each in value.values())
    return not isinstance(value, Tensor)


def _literal(value: Any, model: nn.Module) -> Any:
    """A value as an argument of a graph's operations, on the model's device."""
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, torch.device):
        return next(model.parameters()).device
    return value


def _empty(value: Tensor) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype, device="meta", requires_grad=value.requires_grad)


def _parameters(model: nn.Module, node: fx.Node) -> tuple[nn.Parameter, ...]:
    """The trained parameters that an operation uses: its module's, and those among its arguments."""
    found: list[nn.Parameter] = []
    if node.op == "call_module":
        found += model.get_submodule(str(node.target)).parameters()
    for used in node.all_input_nodes:
        if used.op == "get_attr" and isinstance(value := _attribute(model, str(used.target)), nn.Parameter):
            found.append(value)
    return tuple(parameter for parameter in found if parameter.requires_grad)


def _attribute(model: nn.Module, path: str) -> Any:
    found: Any = model
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _may_work_in_place(model: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return any(getattr(each, "inplace", False) for each in module.modules()) or not _is_torchs(module)
    name = str(getattr(node.target, "__name__", node.target))
    return bool(node.kwargs.get("inplace")) or name.endswith("_") or name in ("setitem", *_IN_PLACE_OPERATORS)


_IN_PLACE_OPERATORS = frozenset(f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "and", "or"))


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _name(node: fx.Node) -> str:
    """A module's path, or a function's name behind the path of the module that calls it."""
    if node.op == "call_module":
        return str(node.target)
    inside = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return ".".join([*inside[-1:], getattr(node.target, "__name__", str(node.target))])
