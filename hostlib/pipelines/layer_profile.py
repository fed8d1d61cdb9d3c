"""Measure a chain's layers: the times of both passes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from hostlib.errors import HostlibError
from hostlib.pipelines.model_chain import ModelChain
from hostlib.pipelines.partitioner import LayerCost
from hostlib.pipelines.stage_module import StageModule

REPEATS = 3  # after one that is not counted


def measured_layers(
    chain: ModelChain, inputs: Tensor, repeats: int = REPEATS, after_each: Callable[[], None] = lambda: None
) -> list[LayerCost]:
    """Each layer's costs for a batch: the fastest of several passes. The model is not changed.

    Args:
        inputs: a batch of the shape for which the chain was traced.
        after_each: called after each layer.

    Raises:
        HostlibError: the model's forward pass fails.
    """
    costs = []
    handed: tuple[Tensor, ...] = (inputs,)
    with torch.random.fork_rng(devices=[]):
        for number, layer in enumerate(chain.layers):
            piece = chain.piece(number, number + 1)
            module = copy.deepcopy(StageModule(piece, recompute=False))
            forwards, backwards = [], []
            for _ in range(1 + repeats):
                leaves = [
                    each.detach().requires_grad_(like.requires_grad)
                    for each, like in zip(handed, piece.inputs, strict=True)
                ]
                began_ns = time.perf_counter_ns()
                try:
                    made = module(*leaves)
                except Exception as error:  # the model may be the user's and raise anything
                    why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                    raise HostlibError(f"the model's forward pass fails at {layer.name}: {why}") from error
                outputs = made if isinstance(made, tuple) else (made,)
                trained = [each for each in outputs if each.requires_grad]
                gradients = [torch.ones_like(each) for each in trained]
                forward_ns = time.perf_counter_ns()
                torch.autograd.backward(trained, gradients)
                forwards.append(forward_ns - began_ns)
                backwards.append(time.perf_counter_ns() - forward_ns)
            handed = tuple(each.detach() for each in outputs)
            costs.append(
                LayerCost(
                    min(forwards[1:]),
                    min(backwards[1:]),
                    chain.activation_bytes(number),
                    sum(parameter.nbytes for parameter in layer.parameters),
                )
            )
            after_each()
    return costs


def describe_stages(chain: ModelChain, cuts: Sequence[int]) -> list[str]:
    """Each stage's first and last layer: `features.0 to features.3`."""
    bounds = (0, *cuts, len(chain))
    names = [layer.name for layer in chain.layers]
    return [
        names[first] if end - first == 1 else f"{names[first]} to {names[end - 1]}" for first, end in pairwise(bounds)
    ]
