"""Options that commands share, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hostlib.strategies.strategy import choose
from hostlib.text import units
from hostlib.traces.trace import Trace
from simulation.errors import SimulationError
from simulation.models.synthetic_trace import DEFAULT_BATCH, DEFAULT_TFLOPS, model_trace
from simulation.models.workload_source import WorkloadSource, bare, known, recorded
from simulation.simulator.network import Network
from simulation.simulator.play import Job, Order
from simulation.simulator.workload import Variation

PLAIN_WIDTH = 120


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


model_options = together(
    click.option("--input", "pixels", type=int, help="Width of the model's square images [default: the model's own]."),
    click.option("--batch", default=DEFAULT_BATCH, show_default=True, help="Images per worker and iteration."),
    click.option("--forward", "forward", help="Time of the forward pass [default: published, else by --tflops]."),
    click.option("--backward", "backward", help="Time of the backward pass [default: likewise]."),
    click.option(
        "--tflops",
        type=float,
        help=f"Compute by operations at this rate, not by published times [for others: {DEFAULT_TFLOPS:g}].",
    ),
)

network_options = together(
    click.option("--latency", default="0us", show_default=True, help="One way, host to host."),
    click.option(
        "--overhead", default="0us", show_default=True, help="A host's link is taken so long by each message."
    ),
    click.option("--racks", default=1, show_default=True, help="Switches of a leaf-spine network; 1 is a star."),
    click.option("--oversubscription", default=1.0, show_default=True, help="Of each rack's way to the spine."),
    click.option("--store-and-aggregate", is_flag=True, help="Switches have the whole sum before they send it on."),
    click.option("--store-and-forward", is_flag=True, help="Switches have any whole message before they send it on."),
    click.option("--slots", default="0", help="Bytes that a switch can sum at a time [default: any]."),
)

job_options = together(
    click.option(
        "--message", default="0", help="Split tensors into messages of at most so many bytes [default: whole]."
    ),
    click.option(
        "--barrier",
        type=click.Choice(["global", "none"]),
        default="global",
        show_default=True,
        help="Between iterations. With none, the time is the mean of all but the first.",
    ),
    click.option(
        "--order",
        type=click.Choice([each.value for each in Order]),
        default=Order.ROUND_ROBIN.value,
        show_default=True,
        help="In which servers distribute.",
    ),
    click.option(
        "--pipelined",
        type=click.Choice(["yes", "no"]),
        help="The forward pass begins with the first layer's parameters [default: with servers].",
    ),
    click.option("--iterations", type=int, help="[default: 1; 3 without a barrier]"),
    click.option("--jitter", default=0.0, show_default=True, help="Of compute times: standard deviation over mean."),
    click.option("--straggler", "stragglers", multiple=True, metavar="RANK=FACTOR", help="A rank that is slower."),
    click.option("--seed", default=1, show_default=True, help="Of jitter and of the random order."),
)


def network_of(bandwidth: str, options: dict[str, Any]) -> Network:
    aggregate, forward = options.pop("store_and_aggregate"), options.pop("store_and_forward")
    return Network(
        units.bandwidth(bandwidth),
        units.time_ns(options.pop("latency")),
        units.time_ns(options.pop("overhead")),
        options.pop("racks"),
        options.pop("oversubscription"),
        store_and_forward=forward,
        store_and_aggregate=aggregate or forward,
        slot_bytes=units.size(options.pop("slots")),
    )


def seconds(text: str | None) -> float | None:
    return None if text is None else units.time_ns(text) / 1e9


def trace_of(name: str, options: dict[str, Any]) -> Trace:
    return model_trace(
        name,
        options["pixels"],
        seconds(options["forward"]),
        seconds(options["backward"]),
        options["batch"],
        options["tflops"],
    )


def job_of(subject: WorkloadSource, mechanism: str, workers: int, options: dict[str, Any]) -> Job:
    barrier = options["barrier"] == "global"
    stragglers = {}
    for text in options["stragglers"]:
        rank, _, factor = text.partition("=")
        try:
            stragglers[int(rank)] = float(factor)
        except ValueError:
            raise SimulationError(f"--straggler takes RANK=FACTOR, not {text!r}") from None
    choice = choose(mechanism)
    return Job(
        subject.workload(choice, workers),
        choice.mechanism,
        workers,
        iterations=options["iterations"] if options["iterations"] is not None else 1 if barrier else 3,
        barrier=barrier,
        pipelined=None if options["pipelined"] is None else options["pipelined"] == "yes",
        bare=subject.bare,
        order=Order(options["order"]),
        variation=Variation(options["jitter"], stragglers, options["seed"]),
    )


def subject_of(
    model: str | None, trace_file: Path | None, size: str | None, options: dict[str, Any]
) -> tuple[WorkloadSource, str]:
    if sum(each is not None for each in (model, trace_file, size)) > 1:
        raise SimulationError("--model, --trace and --size exclude each other")
    message = units.size(options["message"])
    if model is not None:
        return known(model, trace_of(model, options), options["pixels"], options["batch"], message), model
    if trace_file is not None:
        return recorded(trace_file, options["batch"], message), str(trace_file)
    bytes_ = units.size(size or "16MiB")
    if bytes_ < 1:
        raise SimulationError(f"--size must be at least 1 byte, not {size}")
    return bare(bytes_, message), f"all-reduce of {size or '16MiB'}"


def console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)
