"""A model cut in two behind one of its layers: its forward pass, traced by torch.fx, as two modules.

Both have the model's own parameters and buffers, under its own names.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from hostlib.errors import HostlibError
from hostlib.models.layer_info import LayerInfo


@dataclass(frozen=True, slots=True)
class Halves:
    """What `cut` makes of a model.

    Attributes:
        head: takes the model's input; its output is a tuple of tensors.
        tail: takes those; its output is the model's.
    """

    head: nn.Module
    tail: nn.Module


def cut(model: nn.Module, layer: LayerInfo, whole: Iterable[str], example: Tensor) -> Halves:
    """Everything that the forward pass does up to a layer, and everything after it.

    Args:
        layer: of hostlib.models.inspection: a module with the normalisation that belongs to it, or a function in a module.
        whole: names of modules that are taken as they are, without a look inside.
        example: an input of the meta device, for forward passes that look at its shape.

    Raises:
        HostlibError: the forward pass cannot be traced, or not be cut there; says why.
    """
    nodes = list(trace(model, whole, example).nodes)
    end = _end(layer, nodes)
    before, after = nodes[:end], nodes[end:]
    used_after = {used for node in after for used in node.all_input_nodes}
    handed = [node for node in before if node in used_after]
    halves = Halves(_head(model, before, handed), _tail(model, handed, after))
    _refuse_shared(halves, layer.name)
    return halves


def _end(layer: LayerInfo, nodes: Sequence[fx.Node]) -> int:
    """Where a layer's last call ends."""
    modules = {layer.name, *(member.rpartition(".")[0] for member in layer.members)}
    numbers: Counter[str] = Counter()
    end = 0
    for at, node in enumerate(nodes, start=1):
        inside = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        name = ".".join([*inside[-1:], getattr(node.target, "__name__", str(node.target))])
        numbers[name] += 1
        called = name if numbers[name] == 1 else f"{name}_{numbers[name]}"
        is_it = layer.name == called and node.op in ("call_function", "call_method")
        if is_it or not modules.isdisjoint(inside):
            end = at
    if end == 0:
        raise HostlibError(f"the model cannot be cut behind {layer.name}: its forward pass does not call it")
    return end


class _Tracer(fx.Tracer):
    """torch.fx's, for inputs of one shape: where a forward pass branches on that, it takes this shape's way."""

    def __init__(self, whole: Iterable[str], example: Tensor) -> None:
        super().__init__()
        self._whole, self._example = frozenset(whole), example

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return name in self._whole or super().is_leaf_module(module, name)

    def to_bool(self, value: fx.Proxy) -> bool:
        """What a condition is, computed without weights and data."""
        known: dict[fx.Node, fx.Node] = {}
        so_far = fx.Graph()
        so_far.graph_copy(self.graph, known)
        so_far.output(known[value.node])
        so_far.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
        shadow = fx.GraphModule(copy.deepcopy(self.root).to("meta"), so_far)
        return bool(_Forward(shadow).run(self._example))


class _Forward(fx.Interpreter):
    """While a tracer waits for calls of modules, these are none."""

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.fetch_attr(target).forward(*args, **kwargs)


def trace(model: nn.Module, whole: Iterable[str], example: Tensor) -> fx.Graph:
    """The forward pass as a graph; see `cut`.

    Raises:
        HostlibError: it cannot be traced; says why.
    """
    try:
        graph = _Tracer(whole, example).trace(model)
    except Exception as error:
        why = (str(error).strip() or repr(error)).splitlines()[0].partition(". ")[0]
        raise HostlibError(f"{type(model).__name__} cannot be cut: torch.fx cannot trace it ({why})") from error
    graph.eliminate_dead_code(lambda node: not _looks(node))  # what conditions looked at
    return graph


def _looks(node: fx.Node) -> bool:
    """Whether it changes no tensor for certain: methods and modules may work in place."""
    return node.op == "call_function" and (node.target is getattr or node.target in vars(operator).values())


def _head(model: nn.Module, before: list[fx.Node], handed: list[fx.Node]) -> nn.Module:
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in before:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[node] for node in handed))
    return fx.GraphModule(model, graph, "Head")


def _tail(model: nn.Module, handed: list[fx.Node], after: list[fx.Node]) -> nn.Module:
    graph = fx.Graph()
    made = {node: graph.placeholder(f"handed_{number}") for number, node in enumerate(handed)}
    for node in after:
        made[node] = graph.node_copy(node, made.__getitem__)
    return fx.GraphModule(model, graph, "Tail")


def _refuse_shared(halves: Halves, layer: str) -> None:
    in_head: dict[Any, str] = {parameter: name for name, parameter in halves.head.named_parameters()}
    for name, parameter in halves.tail.named_parameters():
        if parameter in in_head:
            raise HostlibError(
                f"the model cannot be cut behind {layer}: {in_head[parameter]}, before it, is {name}, after it"
            )


def require_tensors(handed: Sequence[object]) -> tuple[Tensor, ...]:
    """What a head hands on.

    Raises:
        HostlibError: something is no tensor, and cannot be sent.
    """
    for value in handed:
        if not isinstance(value, Tensor):
            raise HostlibError(
                f"the model cannot be cut here: its tail needs of its head what is no tensor but {type(value).__name__}"
            )
    return tuple(handed)  # type: ignore[arg-type]
