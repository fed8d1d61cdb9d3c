"""`hostlib pipeline` and `hostlib bubble`: where a model is cut into stages, and how long its workers idle."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from hostlib.bench.pipeline_bubble import Bubble, BubbleOptions, measured_bubbles, require_pipeline
from hostlib.errors import RunError
from hostlib.pipelines.bubble import bubble_share, iteration_ns
from hostlib.pipelines.partitioner import Link, partition
from hostlib.pipelines.pipeline_options import microbatch_size
from hostlib.system.command import Command, json_option
from hostlib.system.interrupts import interrupt_on
from hostlib.text import option_types as types
from hostlib.text.common_options import input_option
from hostlib.text.output import output
from hostlib.text.status_line import StatusLine

NS_PER_MS, NS_PER_S = 1e6, 1e9
MIB = 1 << 20


@click.command(cls=Command)
@click.argument("model")
@click.option(
    "--mechanism",
    type=types.MECHANISM,
    default="gpipe",
    show_default=True,
    help="The pipeline with its options; see `netfold mechanisms`.",
)
@click.option("--batch", type=types.N, default=16, show_default=True, help="Examples per worker and iteration.")
@click.option("--bandwidth", type=types.RATE, help="Of the links between stages [default: transfers take no time].")
@input_option()
@json_option
def pipeline(
    model: str,
    mechanism: str,
    batch: int,
    bandwidth: float | None,
    shape: tuple[int, ...] | None,
    as_json: bool,
) -> None:
    """Measure MODEL's layers on this host and cut it into stages, the slowest of which is as fast as possible.

    MODEL is one of `netfold models`, or MODULE:FACTORY.

    \b
    Examples
        hostlib pipeline resnet18 --mechanism gpipe:stages=4 --input 32
        hostlib pipeline vgg16 --mechanism 1f1b:stages=2:microbatches=2 --batch 2 --bandwidth 10gbit --json
    """
    if batch < 1:
        raise RunError(f"--batch must be at least 1, not {batch}")
    options = require_pipeline(mechanism).options
    stages, microbatches, chunks = options.stages, options.microbatches, options.chunks
    size = microbatch_size(options, batch)
    cut = _cut(model, shape, size, stages * chunks, bandwidth)
    predicted_ms = max(
        iteration_ns(
            chunks * part["forward_ms"],
            chunks * part["backward_ms"],
            stages,
            microbatches,
            chunks,
            options.recompute,
        )
        for part in cut
    )
    idle = bubble_share(stages, microbatches, chunks)
    result = {
        "model": model,
        "stages": cut,
        "iteration_ms": round(predicted_ms, 3),
        "bubble": round(idle, 4),
    }
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    table = Table(
        "worker",
        "layers",
        "forward (ms)",
        "backward (ms)",
        "parameters (MiB)",
        "sends (MiB)",
        title=f"{model}, {stages} workers, micro-batches of {size}",
        title_justify="left",
    )
    for number, part in enumerate(cut):
        figures = (part["forward_ms"], part["backward_ms"], part["parameter_bytes"] / MIB, part["sent_bytes"] / MIB)
        table.add_row(str(number % stages), part["layers"], *(f"{figure:.2f}" for figure in figures))
    console = output()
    console.print(table)
    console.print(
        f"{microbatches} micro-batches: an iteration of {predicted_ms:.1f} ms if all stages take as long as the slowest, "
        f"{100 * idle:.0f} % of it idle.",
        highlight=False,
        soft_wrap=True,
    )


def _cut(
    name: str, shape: tuple[int, ...] | None, examples: int, parts: int, bandwidth: float | None
) -> list[dict[str, Any]]:
    """Each part's layers and costs.

    Args:
        examples: of a micro-batch.
        bandwidth: in bit/s.
    """
    import torch

    from hostlib.models.inspection import example, input_of
    from hostlib.models.loading import image_shape, load_model
    from hostlib.pipelines.layer_profile import describe_stages, measured_layers
    from hostlib.pipelines.model_chain import ModelChain

    torch.set_num_threads(1)
    shape = image_shape(name, shape)
    model = load_model(name, shape)
    like = example(model, shape or input_of(model))
    inputs = torch.empty(examples, *like.shape[1:], dtype=like.dtype, device="meta")
    chain = ModelChain(model, inputs, parts)
    try:
        costs = measured_layers(chain, torch.zeros_like(inputs, device="cpu"))
    except RuntimeError as error:  # a batch that does not fit into memory
        raise RunError(f"micro-batches of {examples} cannot be computed: {str(error).splitlines()[0]}") from error
    link = None if bandwidth is None else Link(bandwidth / 8 / NS_PER_S)
    found = partition(costs, parts, link)
    parts_of = zip(found.stages, describe_stages(chain, found.cuts), strict=True)
    return [
        {
            "layers": layers,
            "forward_ms": round(sum(each.forward_ns for each in costs[part.first : part.end]) / NS_PER_MS, 3),
            "backward_ms": round(sum(each.backward_ns for each in costs[part.first : part.end]) / NS_PER_MS, 3),
            "parameter_bytes": sum(each.parameter_bytes for each in costs[part.first : part.end]),
            "sent_bytes": costs[part.end - 1].activation_bytes,
        }
        for part, layers in parts_of
    ]


@click.command(cls=Command)
@click.option(
    "--mechanism",
    "mechanisms",
    type=types.MECHANISM.listed(),
    default="gpipe:stages=4:microbatches=8,1f1b:stages=4:microbatches=8,interleaved:stages=4:microbatches=8",
    show_default=True,
    help="Pipelines to measure; see `netfold mechanisms`.",
)
@click.option(
    "--forward",
    "forward_s",
    type=types.TIME_ABOVE_0,
    default="20ms",
    show_default=True,
    help="Forward pass of one worker's part of the model, for one micro-batch.",
)
@click.option(
    "--backward",
    "backward_s",
    type=types.TIME_ABOVE_0,
    default="40ms",
    show_default=True,
    help="Its backward pass.",
)
@click.option("--iterations", type=types.N, default=5, show_default=True, help="Timed iterations of each pipeline.")
@json_option
def bubble(mechanisms: str, forward_s: float, backward_s: float, iterations: int, as_json: bool) -> None:
    """Measure how long a pipeline's workers idle, and compare that with the formula.

    Workers are processes of this host that sleep for the stages' times, so that a few cores are enough.

    \b
    Examples
        hostlib bubble
        hostlib bubble --mechanism gpipe:stages=2:microbatches=4,modelparallel --forward 5ms --backward 10ms
    """
    names = types.parts_of(mechanisms)
    if not names:
        raise RunError("--mechanism names nothing to measure; see `hostlib mechanisms`")
    asked = [BubbleOptions(name, forward_s, backward_s, iterations) for name in names]
    interrupt_on(signal.SIGTERM)
    with StatusLine("starting") as status:
        rows = measured_bubbles(asked, status.update)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _print(rows)


def _print(rows: list[Bubble]) -> None:
    table = Table("pipeline", "iteration (ms)", "measured", "error", "bubble", "measured", "error")
    for row in rows:
        table.add_row(
            row.mechanism,
            f"{row.iteration_ms:.1f}",
            f"{row.measured_ms:.1f}",
            f"{100 * (row.measured_ms / row.iteration_ms - 1):+.1f} %",
            f"{100 * row.bubble:.2f} %",
            f"{100 * row.measured_bubble:.2f} %",
            f"{100 * (row.measured_bubble / row.bubble - 1):+.1f} %",
        )
    output().print(table)


PLACE = 105
COMMANDS = (pipeline, bubble)
