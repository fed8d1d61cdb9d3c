"""A model's forward pass as a graph: traced by torch.fx for inputs of one shape."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, fx, nn

from hostlib.errors import HostlibError


class _Tracer(fx.Tracer):
    """torch.fx's tracer for inputs of one shape: branches on the shape are resolved.

    Args:
        keep_untraceable: modules that cannot be traced stay whole, so that only the model's own forward pass matters.
    """

    def __init__(self, whole: Iterable[str], example: Tensor, keep_untraceable: bool) -> None:
        super().__init__()
        self._whole, self._example, self._keep = frozenset(whole), example, keep_untraceable

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return name in self._whole or super().is_leaf_module(module, name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not self._keep:
            return super().call_module(m, forward, args, kwargs)
        before, inside = len(self.graph.nodes), list(self.module_stack)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:  # a user's module may raise anything
            for node in reversed(list(self.graph.nodes)[before:]):
                self.graph.erase_node(node)
            for key in [key for key in self.module_stack if key not in inside]:
                del self.module_stack[key]
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)

    def to_bool(self, value: fx.Proxy) -> bool:
        """Evaluate a condition without weights and data."""
        known: dict[fx.Node, fx.Node] = {}
        so_far = fx.Graph()
        so_far.graph_copy(self.graph, known)
        so_far.output(known[value.node])
        so_far.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
        shadow = fx.GraphModule(copy.deepcopy(self.root).to("meta"), so_far)
        return bool(_Forward(shadow).run(self._example))


class _Forward(fx.Interpreter):
    """While a tracer is active, makes calls of modules ordinary calls."""

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.fetch_attr(target).forward(*args, **kwargs)


def trace(model: nn.Module, whole: Iterable[str], example: Tensor, keep_untraceable: bool = False) -> fx.Graph:
    """The forward pass as a graph.

    Args:
        whole: names of modules that are not traced into.
        example: an input on the meta device, for forward passes that depend on its shape.
        keep_untraceable: do not trace into modules that cannot be traced.

    Raises:
        HostlibError: it cannot be traced; the message says why.
    """
    try:
        graph = _Tracer(whole, example, keep_untraceable).trace(model)
    except Exception as error:
        why = (str(error).strip() or repr(error)).splitlines()[0].partition(". ")[0]
        raise HostlibError(f"{type(model).__name__} cannot be cut: torch.fx cannot trace it ({why})") from error
    graph.eliminate_dead_code(lambda node: not _looks(node))  # the nodes that conditions depended on
    return graph


def _looks(node: fx.Node) -> bool:
    """Whether a node certainly changes no tensor: methods and modules may work in place."""
    return node.op == "call_function" and (node.target is getattr or node.target in vars(operator).values())
