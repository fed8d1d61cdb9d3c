"""Split a model after one of its layers: its forward pass, traced by torch.fx, as two modules.

Both have the model's own parameters and buffers, under the same names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from hostlib.errors import HostlibError
from hostlib.models.forward_graph import trace
from hostlib.models.layer_info import LayerInfo


@dataclass(frozen=True, slots=True)
class Halves:
    """The two parts of a split model.

    Attributes:
        head: takes the model's input; its output is a tuple of tensors.
        tail: takes those; its output is the model's.
    """

    head: nn.Module
    tail: nn.Module


def cut(model: nn.Module, layer: LayerInfo, whole: Iterable[str], example: Tensor) -> Halves:
    """Split a model into its forward pass up to a layer, and the rest.

    Args:
        layer: of hostlib.models.inspection: a module with the normalisation that belongs to it, or a function in a
            module.
        whole: names of modules that are not traced into.
        example: an input on the meta device, for forward passes that depend on its shape.

    Raises:
        HostlibError: the forward pass cannot be traced, or not split there; the message says why.
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
    """Index of the node after a layer's last call."""
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
    """Check that a head's outputs are tensors.

    Raises:
        HostlibError: one is not a tensor, and cannot be sent.
    """
    for value in handed:
        if not isinstance(value, Tensor):
            raise HostlibError(
                f"the model cannot be cut here: its head passes {type(value).__name__}, not a tensor, to its tail"
            )
    return tuple(handed)  # type: ignore[arg-type]
