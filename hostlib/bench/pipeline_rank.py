"""Measure a pipeline's bubble: stages that sleep for known times, so that workers need no core of their own.

`python -m hostlib.bench.pipeline_rank` is one worker; `hostlib bubble` starts them.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hostlib.bench.pipeline_bubble import Bubble, BubbleOptions
from hostlib.collectives.bootstrap import join_group
from hostlib.collectives.create import create_collective
from hostlib.mechanisms.mechanism import find
from hostlib.pipelines.bubble import bubble_share, iteration_ns
from hostlib.strategies.strategy import choose
from hostlib.strategies.trainer import TrainerContext
from hostlib.transport.launch_environment import LaunchEnvironment

NS_PER_S, NS_PER_MS = 1e9, 1e6
WARM_UP = 1
RING = find("ring")  # has nothing to sum, with one replica
WIDTH = 8  # elements of an example: messages are small
DEADLINE_S = 60.0


class SleepingLayer(nn.Module):
    """A layer that sleeps instead of computing. float32, any shape to the same.

    Attributes:
        slept_ns: so far, as measured.
    """

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.forward_s, self.backward_s = forward_s, backward_s
        self.slept_ns = 0

    def forward(self, x: Tensor) -> Tensor:
        return _Sleep.apply(x, self.weight, self)  # type: ignore[no-any-return]

    def sleep(self, seconds: float) -> None:
        began_ns = time.perf_counter_ns()
        time.sleep(seconds)
        self.slept_ns += time.perf_counter_ns() - began_ns


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, layer: SleepingLayer) -> Tensor:
        context.layer = layer
        context.save_for_backward(x, weight)  # also what recomputation has to compute again
        if not x.is_meta:
            layer.sleep(layer.forward_s)
        return x * weight

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = context.saved_tensors
        if not x.is_meta:
            context.layer.sleep(context.layer.backward_s)
        return gradients[0] * weight, (gradients[0] * x).sum(), None


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels).square().mean()


def _measure(options: BubbleOptions, here: LaunchEnvironment) -> dict[str, Any]:
    choice = choose(options.mechanism)
    pipeline = choice.strategy.options
    stages, count, chunks = pipeline.stages, pipeline.microbatches, pipeline.chunks
    layers = [SleepingLayer(options.forward_s / chunks, options.backward_s / chunks) for _ in range(stages * chunks)]
    torch.set_num_threads(1)
    with join_group(here, "bubble", DEADLINE_S) as (rank_context, job):
        alone, job = rank_context.own_part([here.rank])
        collective = create_collective(RING, alone, "", job)
        try:
            context = TrainerContext(
                rank_context,
                RING,
                nn.Sequential(*layers),
                _loss,
                partial(torch.optim.SGD, lr=1e-3),
                collective,
                batch_size=count,
                bucket_mb=1,
                example=lambda: torch.empty(1, WIDTH, device="meta"),
            )
            trainer = choice.strategy.trainer(context)
            batch = torch.rand(count * stages, WIDTH)
            lapses: list[tuple[int, int]] = []
            for _ in range(WARM_UP + options.iterations):
                dist.barrier()
                before_ns, began_ns = sum(layer.slept_ns for layer in layers), time.perf_counter_ns()
                trainer.step(batch, batch)
                lapses.append((time.perf_counter_ns() - began_ns, sum(layer.slept_ns for layer in layers) - before_ns))
            everybody: list[Any] = [None] * stages
            dist.all_gather_object(everybody, lapses[WARM_UP:])
        finally:
            collective.close()
    slowest_ns = [max(lapse for lapse, _ in ranks) for ranks in zip(*everybody, strict=True)]
    busy_ns = [statistics.mean(slept for _, slept in ranks) for ranks in zip(*everybody, strict=True)]
    idle = [1 - busy / slowest for busy, slowest in zip(busy_ns, slowest_ns, strict=True)]
    predicted_ns = iteration_ns(
        options.forward_s * NS_PER_S, options.backward_s * NS_PER_S, stages, count, chunks, pipeline.recompute
    )
    return asdict(
        Bubble(
            options.mechanism,
            stages,
            count,
            chunks,
            round(predicted_ns / NS_PER_MS, 3),
            round(statistics.median(slowest_ns) / NS_PER_MS, 3),
            round(bubble_share(stages, count, chunks), 4),
            round(statistics.median(idle), 4),
        )
    )


def main() -> None:
    from hostlib.launch.rank_main import run_part

    run_part("hostlib bubble", lambda text, here, tell: _measure(BubbleOptions(**json.loads(text)), here))


if __name__ == "__main__":
    main()
