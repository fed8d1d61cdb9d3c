"""Options that commands share; what is made of them, simulation/experiments/single_iteration.py says."""

from __future__ import annotations

import click

from hostlib.errors import QuantityError
from hostlib.protocol.framing import FRAMINGS, JUMBO_MTU, MTU
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.system.command import Respelling
from hostlib.text import option_types as types
from hostlib.text.common_options import together
from simulation.errors import SimulationError
from simulation.experiments.scenario import BUCKET_BYTES, SEMANTICS
from simulation.experiments.single_iteration import SLOT_BYTES, number_of_slots
from simulation.models.architectures import BUILDERS
from simulation.models.compute import DEFAULT_BATCH, DEFAULT_TFLOPS
from simulation.models.gpus import GPUS
from simulation.models.host_links import DEFAULT_HOST_LINK, HOST_LINKS
from simulation.simulator.play import Order


def _number_of_slots(text: str) -> list[str] | None:
    """--slots as it was: a size with a unit."""
    if not text[:1].isdecimal() or not text[-1:].isalpha():
        return None
    try:
        return ["--slots", str(number_of_slots(text))]
    except QuantityError:
        return None


# What --model takes.
MODELS = (
    f"{', '.join(sorted(BUILDERS))}, with options as NAME:classes=10; MODULE:FACTORY of one's own; or a trace's file"
)

# Old spellings of the options below.
RESPELLED: dict[str, Respelling] = {
    "--slots": _number_of_slots,
    "--pipelined": lambda text: {"yes": ["--pipelined"], "no": ["--no-pipelined"]}.get(text),
}


def _yes_or_no(context: click.Context, parameter: click.Parameter, value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _extents(
    context: click.Context, parameter: click.Parameter, shape: tuple[int, ...] | None
) -> int | tuple[int, ...] | None:
    """One number as such: the width of square images, or so many tokens."""
    return shape[0] if shape is not None and len(shape) == 1 else shape


cell_options = together(
    click.option(
        "--mechanism",
        "mechanisms",
        type=types.MECHANISM.listed(),
        multiple=True,
        help="Mechanisms to compare [default: all that have a schedule].",
    ),
    click.option("--model", type=types.MODEL, help=f"Model to train: {MODELS}."),
    click.option("--trace", "trace_file", type=types.ANY_FILE, help="Train what this trace describes."),
    click.option(
        "--size",
        type=types.SIZE.typed(),
        help="Simulate one all-reduce of this size, without a model [default: 16MiB].",
    ),
    click.option("--workers", type=types.N, default=4, show_default=True, help="Number of workers."),
    click.option(
        "--bandwidth",
        type=types.RATE.typed(),
        default="25gbit",
        show_default=True,
        help="Bandwidth of every host's link, each way.",
    ),
    click.option(
        "--jobs", type=types.N, default=1, show_default=True, help="Number of identical jobs at the same time."
    ),
    click.option("--apart", is_flag=True, help="Give each job its own hosts, so that jobs share only switches."),
)

model_options = together(
    click.option(
        "--input",
        "pixels",
        type=types.SHAPE,
        callback=_extents,
        help="Shape of one example [default: what the model takes].",
    ),
    click.option(
        "--batch",
        type=types.N,
        help=f"Examples per worker and iteration [default: {DEFAULT_BATCH}, or as a trace was recorded].",
    ),
    click.option(
        "--forward", type=types.TIME.typed(), help="Time of the forward pass [default: published, else from --tflops]."
    ),
    click.option(
        "--backward",
        type=types.TIME.typed(),
        help="Time of the backward pass [default: published, else from --tflops].",
    ),
    click.option(
        "--tflops",
        type=types.NUMBER,
        help="Compute at this many TFLOP/s, as training achieves them, instead of in the published times "
        f"[default, where none are published: {DEFAULT_TFLOPS:g}].",
    ),
    click.option(
        "--gpu",
        type=types.GPU,
        help=f"Compute as training does on this GPU: its published peak times a usual share. One of {', '.join(GPUS)}.",
    ),
)

host_options = together(
    click.option(
        "--gpus-per-host",
        type=types.N,
        default=1,
        show_default=True,
        help="GPUs of each host, which sum among themselves first; --workers counts GPUs.",
    ),
    click.option(
        "--host-link",
        type=types.HOST_LINK,
        default=DEFAULT_HOST_LINK,
        show_default=True,
        help=f"Link of each GPU to the others of its host: {', '.join(HOST_LINKS)}, or a rate each way.",
    ),
    click.option(
        "--host-costs",
        type=types.ANY_FILE,
        help="What hosts' cores take, as `hostlib bench --calibrate --output FILE` measured it [default: they keep up "
        "with their links].",
    ),
    click.option(
        "--cores",
        type=types.N,
        help="Cores of each host for lanes of the slot protocol, of which it has at most four; needs --host-costs [default: all "
        "that its file has].",
    ),
)

network_options = together(
    click.option(
        "--latency",
        type=types.TIME.typed(),
        default="0us",
        show_default=True,
        help="One-way latency from host to host.",
    ),
    click.option(
        "--overhead",
        type=types.TIME.typed(),
        default="0us",
        show_default=True,
        help="Time for which each message occupies a host's link besides its bytes.",
    ),
    click.option(
        "--racks",
        type=types.N,
        default=1,
        show_default=True,
        help="Number of racks, with a leaf switch each under a spine; 1 is a single switch.",
    ),
    click.option(
        "--oversubscription",
        type=types.FACTOR,
        default=1.0,
        show_default=True,
        help="Oversubscription of each rack's uplink.",
    ),
    click.option(
        "--spines",
        type=types.N,
        default=1,
        show_default=True,
        help="Uplinks of each rack, each to a spine of its own, which share its bandwidth. Hosts' streams are spread over "
        "them by a hash; the first spine sums.",
    ),
    click.option(
        "--topology",
        type=types.ANY_FILE,
        help="Network of the table [topology] of this file, as experiments have it, in place of --racks.",
    ),
    click.option(
        "--semantics",
        type=click.Choice(list(SEMANTICS)),
        help="What hosts and switches do: as hostlib and the switches do it, in buckets and frames; or as papers "
        "simulate it, with whole tensors, no headers, and no limit of slots "
        "[default: runtime; papers with --store-and-aggregate and --store-and-forward].",
    ),
    click.option("--headers/--no-headers", default=None, help="Links carry headers too [default: with runtime]."),
    click.option(
        "--framing",
        type=click.Choice(list(FRAMINGS)),
        default="physical",
        show_default=True,
        help="Bytes that links count of a frame: on Ethernet, with preamble, check sequence and gap; or as emulated links do.",
    ),
    click.option(
        "--elements",
        type=types.N,
        help="Elements in a packet of the slot protocol: 32 or 64 on Tofino; with v1model 64 or 256, or 1024 or 2048 with "
        "an MTU of 9000 [default: 256].",
    ),
    click.option(
        "--mtu",
        type=types.N,
        help=f"Bytes of an IP packet that all links carry, the slot protocol's and TCP's [default: {MTU}; {JUMBO_MTU} where "
        "--topology has more than 256 elements].",
    ),
    click.option(
        "--recirculation",
        type=types.RATE.typed(),
        help="Rate of each switch's recirculation port, through which all sums pass once: 100gbit on Tofino with 64 elements "
        "[default: no limit].",
    ),
    click.option("--store-and-aggregate", is_flag=True, help="Switches hold the whole sum before they send it on."),
    click.option("--store-and-forward", is_flag=True, help="Switches hold every whole message before they send it on."),
    click.option(
        "--slots",
        type=types.Whole(0),
        help=f"Slots of a job on a switch, of {SLOT_BYTES // 1024} KiB each; 0 is no limit [default: {SLOTS_PER_POOL}; "
        "0 with papers].",
    ),
)

job_options = together(
    click.option(
        "--bucket",
        type=types.SIZE.typed(),
        help=f"Sum gradients together up to this size, as DDP does; 0 is each by itself [default: "
        f"{BUCKET_BYTES // 2**20}MiB; 0 with papers or --message].",
    ),
    click.option(
        "--message",
        type=types.SIZE.typed(),
        help="Sum each gradient by itself, split into messages of at most this size; 0 is no limit.",
    ),
    click.option(
        "--barrier",
        type=click.Choice(["global", "none"]),
        default="global",
        show_default=True,
        help="Barrier between iterations. With none, the time is the mean of all iterations but the first.",
    ),
    click.option(
        "--order",
        type=click.Choice([each.value for each in Order]),
        default=Order.ROUND_ROBIN.value,
        show_default=True,
        help="Order in which servers distribute parameters.",
    ),
    click.option(
        "--pipelined/--no-pipelined",
        default=None,
        callback=_yes_or_no,
        help="Start the forward pass when the first layer's parameters are there [default: with servers and papers].",
    ),
    click.option("--iterations", type=types.N, help="Iterations to simulate [default: 1; 3 without a barrier]."),
    click.option(
        "--jitter",
        type=types.FACTOR,
        default=0.0,
        show_default=True,
        help="Jitter of compute times: standard deviation over mean.",
    ),
    click.option(
        "--straggler",
        "stragglers",
        type=types.RANK_FACTOR,
        multiple=True,
        help="Make a rank this many times slower; repeat for more ranks.",
    ),
    click.option(
        "--seed", type=types.SEED, default=1, show_default=True, help="Seed of jitter and of the random order."
    ),
)


# What says nothing where a trace has its times already, and where nothing is computed.
OF_A_MODEL = ("--input", "--forward", "--backward")
OF_A_NETWORK = ("--racks", "--spines", "--oversubscription", "--latency")
OF_COMPUTING = (*OF_A_MODEL, "--tflops", "--gpu", "--batch", "--jitter", "--straggler")


def typed(context: click.Context) -> list[str]:
    """The options on the command line, arguments by their names."""
    source = click.core.ParameterSource.COMMANDLINE
    return [p.opts[0] for p in context.command.params if context.get_parameter_source(p.name or "") is source]


def refuse_what_says_nothing(context: click.Context, has_trace: bool, has_model: bool) -> None:
    """Before anything is simulated.

    Args:
        has_trace: a trace is simulated, perhaps among models.
        has_model: a model is, perhaps among traces.

    Raises:
        SimulationError: an option on the command line would change nothing.
    """
    asked = typed(context)
    if has_trace and (idle := [option for option in OF_A_MODEL if option in asked]):
        raise SimulationError(f"{', '.join(idle)}: a trace has its own times; with --model this is legal")
    if not (has_trace or has_model) and (idle := [option for option in OF_COMPUTING if option in asked]):
        raise SimulationError(f"{', '.join(idle)}: an all-reduce computes nothing; with --model this is legal")
    if context.params.get("apart") and context.params["jobs"] == 1:
        raise SimulationError("--apart is of several jobs: it needs --jobs of 2 or more")
    if context.params["topology"] is not None and (idle := [option for option in OF_A_NETWORK if option in asked]):
        raise SimulationError(f"{', '.join(idle)}: the file of --topology says this itself")
    if "--host-link" in asked and context.params["gpus_per_host"] == 1:
        raise SimulationError("--host-link is of several GPUs in a host: it needs --gpus-per-host of 2 or more")
    for option in ("--oversubscription", "--spines"):
        if option in asked and context.params["racks"] == 1:
            raise SimulationError(f"{option} is of racks' uplinks: it needs --racks of 2 or more")
