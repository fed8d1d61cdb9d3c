"""`hostlib bench`: how fast mechanisms' collectives are."""

from __future__ import annotations

import json
import re
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hostlib.errors import RunError
from hostlib.system.command import Command, json_option
from hostlib.system.interrupts import interrupt_on
from hostlib.system.user_file import is_writable
from hostlib.text import option_types as types
from hostlib.text.common_options import faults
from hostlib.text.output import output as console_of

KERNELS_S, CALIBRATION_S = 2.0, 4.0


def _place(old: str) -> list[str] | None:
    """--hosts as it was: `local`, or `netns:N`."""
    kind, _, number = old.partition(":")
    if old == "local":
        return ["--on", "loopback"]
    return ["--on", "netns", "--workers", number] if kind == "netns" and re.fullmatch("[0-9]+", number) else None


@click.command(
    cls=Command,
    renamed={"--world-size": "--workers", "--mechanisms": "--mechanism", "--rate": "--bandwidth", "--sizes": "--size"},
    respelled={"--hosts": _place},
)
@click.option(
    "--mechanism",
    "mechanisms",
    type=types.MECHANISM.listed(),
    help="Mechanisms to measure; see `netfold mechanisms` [default: all that these ranks can run].",
)
@click.option(
    "--collective",
    "collectives",
    type=types.COLLECTIVE.listed(),
    default="all_reduce",
    show_default=True,
    help="What to measure: all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, and rs+ag, a "
    "reduce-scatter and an all-gather at once. Mechanisms are measured with those that they can do.",
)
@click.option("--size", "sizes", type=types.SIZE.listed(), help="Sizes of the tensor to measure [default: 64K,1M,16M].")
@click.option("--from", "first", type=types.SIZE.typed(), help="Smallest size of a series; needs --to.")
@click.option("--to", "last", type=types.SIZE.typed(), help="Largest size of a series; needs --from.")
@click.option(
    "--factor", type=types.N, default=4, show_default=True, help="In a series, each size is this many times the last."
)
@click.option(
    "--dtype", "dtypes", type=types.DTYPE.listed(), default="float32", show_default=True, help="Types of the elements."
)
@click.option("--workers", "world_size", type=types.N, help="Number of workers [default: 4].")
@click.option(
    "--iterations", type=types.N, help="Collectives timed together [default: as many as take a quarter of a second]."
)
@click.option(
    "--repeats", type=types.N, default=3, show_default=True, help="How often to measure; the table has the median."
)
@click.option("--warm-up", type=types.N, default=1, show_default=True, help="Collectives before the clock starts.")
@click.option(
    "--on",
    type=click.Choice(["loopback", "netns"]),
    default="loopback",
    show_default=True,
    help="Where hosts are: processes on loopback, or a network namespace each (needs root).",
)
@click.option(
    "--ranks-per-host",
    type=types.N,
    default=1,
    show_default=True,
    help="Workers in each namespace; needs --on netns.",
)
@click.option(
    "--bandwidth",
    "rate",
    type=types.RATE.typed(),
    help="Bandwidth of each link, each way; needs --on netns [default: no limit].",
)
@click.option(
    "--queue",
    type=types.N,
    help="Frames that wait at each end of a link, more are dropped; needs --bandwidth [default: 1000].",
)
@click.option(
    "--elements",
    type=types.N,
    default=256,
    show_default=True,
    help="Elements in a packet: 64, 256, 1024 or 2048. With more than 256, links of --on netns have an MTU of 9000.",
)
@click.option(
    "--window",
    type=types.N,
    help="Packets of an all-reduce, or of each shard of a reduce-scatter, that each rank has outstanding, 1 to 128, "
    "however many are lost "
    "[default: NETFOLD_WINDOW or, without it, as many as losses and the pool's 128 slots allow].",
)
@click.option(
    "--beside-tcp",
    is_flag=True,
    help="Send a TCP stream (CUBIC) from the first host to one more, over the same link; needs --bandwidth.",
)
@click.option(
    "--beside-tcp-in",
    is_flag=True,
    help="As --beside-tcp, but from one more host to the first: results wait in the same queue of the switch.",
)
@click.option(
    "--beside-job",
    is_flag=True,
    help="Run a second job of the same mechanism with the same ranks, which sums tensors all the time.",
)
@click.option(
    "--mark",
    type=types.FRAMES.typed(),
    help="Have the switch mark frames of its queues with ECN, as `emulation switch --mark` does, and the hosts' TCP ask "
    "for marks; needs --bandwidth [default: none].",
)
@click.option("--delay", type=types.TIME.typed(), help="Delay of each link of the embedded switch [default: none].")
@faults("--loss", "--duplicate", "--reorder", "--corrupt")
@click.option("--seed", type=types.SEED, default=0, show_default=True, help="Seed of the data and of the faults.")
@click.option("--controller", type=types.URLS, help="Controller of a running fabric [default: start one if needed].")
@click.option(
    "--deadline",
    "deadline_s",
    type=types.TIME,
    default="30s",
    show_default=True,
    help="How long a rank may make no progress before the run ends and names it.",
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Measure only what this host's cores take for a rank's work: sums, packing, packets, TCP.",
)
@click.option(
    "--path",
    "host_path",
    is_flag=True,
    help="Measure only what a gradient's way through one rank's engine takes of a core, by size of the packets.",
)
@click.option(
    "--probe", is_flag=True, help="Measure only latency and bandwidth of messages between each two ranks, pair by pair."
)
@click.option(
    "--output",
    type=types.ANY_FILE,
    help="With --calibrate, write what `netfold ask --host-costs` reads to this file; with --probe, the links.",
)
@click.option("--kernels", is_flag=True, help="Also measure the packet engine's kernels, beside memcpy.")
@click.option(
    "--device",
    type=types.DEVICE,
    default="cpu",
    show_default=True,
    help="Where the ranks' tensors are; with --kernels, whose kernels to measure, and a bucket's cost.",
)
@json_option
def bench(
    mechanisms: str | None,
    collectives: str,
    sizes: str | None,
    first: str | None,
    last: str | None,
    factor: int,
    dtypes: str,
    on: str,
    calibrate: bool,
    host_path: bool,
    probe: bool,
    output: Path | None,
    kernels: bool,
    device: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast mechanisms sum a tensor over all ranks, or do another collective, as nccl-tests does.

    Starts the ranks and, where a mechanism needs them, a controller and an embedded switch, and stops them at the end.
    Results are checked: `#wrong` counts wrong elements. If there are any, or if the switch failed and the hosts went on
    without it, the exit code is 1. docs/bench.md explains the table.

    \b
    Examples
        hostlib bench --mechanism inagg+mcast,ring --workers 2 --from 4K --to 16M
        hostlib bench --collective reduce_scatter,all_gather,rs+ag --mechanism ring,gloo --workers 4
        hostlib bench --collective all_to_all --mechanism butterfly,ring,gloo --workers 4
        hostlib bench --on netns --workers 8 --bandwidth 100mbit --size 16M
        hostlib bench --on netns --workers 8 --bandwidth 100mbit --mechanism inagg+mcast --loss 0.01
        hostlib bench --on netns --workers 2 --bandwidth 100mbit --queue 100 --size 16M --beside-tcp
        hostlib bench --on netns --workers 2 --bandwidth 100mbit --mechanism inagg+mcast --queue 100 --mark 30:90 --size 16M --beside-tcp-in
        hostlib bench --on netns --workers 2 --bandwidth 100mbit --mechanism inagg+mcast --queue 100 --size 16M --beside-job
        hostlib bench --device cuda --mechanism inagg+mcast,ring,gloo --workers 2 --size 1M,25M
        hostlib bench --kernels --device cuda
        hostlib bench --calibrate --output costs.json
        hostlib bench --probe --on netns --workers 4 --bandwidth 1gbit
        hostlib bench --path
    """
    interrupt_on(signal.SIGTERM)
    if host_path:
        _path(as_json)
        return
    if probe:
        _probe(on == "netns", output, as_json, **{name: options[name] for name in ("world_size", "rate", "deadline_s")})
        return
    if calibrate or output is not None:
        _calibrate(calibrate, output, as_json)
        return
    from hostlib.bench.allreduce import (
        DEFAULT_WORLD_SIZE,
        LOCAL,
        BenchOptions,
        BenchProgress,
        measurable,
        measurements,
        parse_sizes,
        print_rows,
        run_bench,
    )
    from hostlib.bench.local_fabric import Faults

    if device != "cpu" and kernels:
        _cuda_figures(device, as_json)
        return
    asked_faults = Faults(
        **{name: options.pop(name) for name in ("loss", "duplicate", "reorder", "corrupt", "delay", "seed")}
    )
    hosts, workers, each = LOCAL, options["world_size"] or DEFAULT_WORLD_SIZE, max(1, options["ranks_per_host"])
    if on == "netns":
        if workers % each:
            raise RunError(f"--ranks-per-host {each} does not divide --workers {workers}")
        hosts = f"netns:{workers // each}"
    names = types.parts_of(collectives)
    asked = BenchOptions(
        measurable(hosts, names) if mechanisms is None else types.parts_of(mechanisms),
        parse_sizes(sizes, first, last, factor),
        types.parts_of(dtypes),
        hosts=hosts,
        faults=asked_faults,
        collectives=names,
        device=device,
        **options,
    )
    if device != "cpu":
        from hostlib.staging.find_device import require_cuda

        require_cuda(device)
    rates = _kernel_rates() if kernels else []
    with BenchProgress(Console(stderr=True), measurements(asked)) as report:
        rows = run_bench(asked, report)
    if as_json:
        records = [row.as_json() for row in rows]
        click.echo(
            json.dumps({"rows": records, "kernels": [asdict(r) for r in rates]} if kernels else records, indent=2)
        )
    else:
        console = console_of(134 + max(map(len, asked.mechanisms)))
        print_rows(asked, rows, console)
        if kernels:
            from hostlib.bench.kernels import print_table

            print_table(rates, console)
    if any(row.wrong or row.by_hosts for row in rows):
        sys.exit(1)


def _cuda_figures(device: str, as_json: bool) -> None:
    from hostlib.bench.device_bench import measure_cuda, print_tables

    figures = measure_cuda(KERNELS_S, device)
    if as_json:
        click.echo(json.dumps(asdict(figures), indent=2))
    else:
        print_tables(figures, console_of())


def _calibrate(asked: bool, path: Path | None, as_json: bool) -> None:
    if not asked:
        raise RunError("--output is of --calibrate and --probe: add one of them")
    _require_only(
        "--calibrate", "measures this host alone; --output and --json are legal beside it", ("--output", "--json")
    )
    _require_writable(path)
    from hostlib.bench.calibration import calibrate, print_costs
    from hostlib.system.host_costs import write_costs

    costs = calibrate(CALIBRATION_S)
    if path is not None:
        write_costs(costs, path)
    if as_json:
        click.echo(json.dumps(costs.as_json(), indent=2))
    else:
        print_costs(costs, console_of())


def _path(as_json: bool) -> None:
    _require_only("--path", "measures one rank's engine alone; --json is legal beside it", ("--json",))
    from hostlib.bench.host_path import PATHS, measure_paths, print_rates
    from hostlib.protocol.framing import V1MODEL_ELEMENTS
    from hostlib.text.progress_lines import PlainProgress

    with PlainProgress("rows", len(PATHS) * len(V1MODEL_ELEMENTS)) as advance:

        def skip(reason: str) -> None:
            click.echo(reason, err=True)
            for _ in V1MODEL_ELEMENTS:
                advance()

        rates = measure_paths(lambda rate: advance(), skip=skip)
    if as_json:
        click.echo(json.dumps([asdict(rate) for rate in rates], indent=2))
    else:
        print_rates(rates, console_of(120))


def _probe(
    namespaces: bool, path: Path | None, as_json: bool, *, world_size: int | None, rate: str | None, deadline_s: float
) -> None:
    legal = ("--workers", "--on", "--bandwidth", "--deadline", "--output", "--json")
    _require_only("--probe", f"measures links alone; {', '.join(legal)} are legal beside it", legal)
    if rate is not None and not namespaces:
        raise RunError("--bandwidth sets the rate of links between network namespaces: it needs --on netns")
    _require_writable(path)
    if not deadline_s > 0:
        raise RunError(f"--deadline must be above 0, not {deadline_s}")
    from hostlib.bench.allreduce import DEFAULT_WORLD_SIZE
    from hostlib.bench.probe import print_links, run_probe
    from hostlib.system.pair_links import as_json as described
    from hostlib.system.pair_links import write_links

    links = run_probe(DEFAULT_WORLD_SIZE if world_size is None else world_size, namespaces, rate, deadline_s)
    if path is not None:
        write_links(links, path)
    if as_json:
        click.echo(json.dumps(described(links), indent=2))
    else:
        print_links(links, console_of())


def _require_only(flag: str, why: str, legal: tuple[str, ...]) -> None:
    """Check what the command line has beside a flag. Raises RunError."""
    source = click.core.ParameterSource.COMMANDLINE
    context = click.get_current_context()
    typed = [p.opts[0] for p in context.command.params if context.get_parameter_source(p.name or "") is source]
    if idle := [option for option in typed if option not in (flag, *legal)]:
        raise RunError(f"{', '.join(idle)}: {flag} {why}")


def _require_writable(path: Path | None) -> None:
    """Check a file before it is measured what it is to have. Raises RunError."""
    if path is not None and not is_writable(path):
        raise RunError(f"{path} cannot be written: it is a folder, or its folder does not exist or is not writable")


def _kernel_rates() -> list[Any]:
    from hostlib.bench.kernels import run

    return run(KERNELS_S)


PLACE = 30
COMMANDS = (bench,)
