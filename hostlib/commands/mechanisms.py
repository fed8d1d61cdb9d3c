"""`hostlib mechanisms` and `hostlib schedule`: which there are, and what one does."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table

from hostlib.errors import RunError
from hostlib.mechanisms.mechanism import Mechanism, broken_mechanisms, find, registered
from hostlib.pipelines.pass_order import drawing, pass_order
from hostlib.schedules.checker import check
from hostlib.schedules.contract import Collective, find_collective
from hostlib.schedules.schedule import Schedule, describe, link_elements
from hostlib.schedules.timeline import picture
from hostlib.schedules.timeline import table as table_of
from hostlib.strategies.strategy import broken_strategies, describe_options, find_strategy, registered_strategies
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.name_options import describe_option
from hostlib.text.output import output

BYTES_PER_ELEMENT = 4
MOST_WORKERS = 1024


@click.command(cls=Command)
@json_option
def mechanisms(as_json: bool) -> None:
    """List the mechanisms and strategies that --mechanism takes."""
    for each in (*broken_mechanisms(), *broken_strategies()):
        click.echo(f"warning: {each.line}", err=True)
    known = registered()
    options = {name: [describe_option(option) for option in m.options.values()] for name, m in known.items()}
    if as_json:
        described = {
            name: {
                "summary": m.summary,
                "needs_fabric": m.needs_fabric,
                "runs_on_hosts": m.runs_on_hosts,
                "transport": m.transport,
                "device": m.device,
                "one_host": m.one_host,
                "collectives": [str(each) for each in m.collectives],
                "options": options[name],
            }
            for name, m in known.items()
        }
        strategies = {name: strategy.summary for name, strategy in registered_strategies().items()}
        click.echo(json.dumps({"mechanisms": described, "strategies": strategies}, indent=2))
        return
    table = Table("mechanism", "options", "runs on", "collectives", "what it does")
    for name, mechanism in known.items():
        table.add_row(
            name,
            "\n".join(f":{option}" for option in options[name]),
            _where(mechanism),
            "\n".join(map(_collective, map(mechanism.of, mechanism.collectives))),
            mechanism.summary,
        )
    how = Table("strategy", "options", "what it does")
    for name, strategy in registered_strategies().items():
        how.add_row(name, "\n".join(f":{option}" for option in describe_options(strategy)), strategy.summary)
    output().print(table, how)


def _collective(mechanism: Mechanism) -> str:
    """One that it does, and where if hosts cannot run it."""
    return f"{mechanism.collective}{'' if mechanism.runs_on_hosts else ' (simulator)'}"


def _where(mechanism: Mechanism) -> str:
    if not mechanism.runs_on_hosts:
        return "simulator"
    needed = ["fabric"] * mechanism.needs_fabric + [each for each in (mechanism.transport, mechanism.device) if each]
    return ", ".join(["one host" if mechanism.one_host else "hosts", *needed])


@click.command(cls=Command, renamed={"--draw-to": "--plot", "-n": "--workers"})
@click.argument("mechanism")
@click.option("--workers", "world_size", type=types.N, default=4, show_default=True, help="Number of workers.")
@click.option("--size", type=types.SIZE, default="1MiB", show_default=True, help="Size of the tensor (float32).")
@click.option(
    "--collective",
    "name",
    type=types.COLLECTIVE,
    default=Collective.ALL_REDUCE.value,
    show_default=True,
    help=f"What the workers do: {', '.join(each.value for each in Collective)}.",
)
@click.option(
    "--root", type=types.N, default=0, show_default=True, help="Rank that a broadcast comes from, or a reduce goes to."
)
@click.option(
    "--turn",
    type=types.N,
    default=0,
    show_default=True,
    help="Number of the tensor, for mechanisms that assign whole tensors to servers.",
)
@click.option("--draw", is_flag=True, help="Draw a timeline: who sends what to whom in each step.")
@click.option("--plot", "picture_path", type=types.FILE, help="Draw the timeline to this file (.svg, .png or .pdf).")
@json_option
def schedule(
    mechanism: str,
    world_size: int,
    size: int,
    name: str,
    root: int,
    turn: int,
    draw: bool,
    picture_path: Path | None,
    as_json: bool,
) -> None:
    """Show a mechanism's operations, after proving that every worker ends with what the collective promises and that
    nothing deadlocks; or when each stage of a pipeline does which passes, if transfers take no time.

    \b
    Examples
        hostlib schedule ring --workers 4 --draw
        hostlib schedule ring --workers 4 --collective reduce_scatter --draw
        hostlib schedule ps:servers=2:assign=even --workers 8 --json
        hostlib schedule 1f1b:stages=4:microbatches=8
    """
    if (pipeline := registered_strategies().get(mechanism.partition(":")[0])) is not None and pipeline.stages > 1:
        _show_passes(mechanism, as_json)
        return
    if world_size > MOST_WORKERS:
        raise RunError(f"--workers must be at most {MOST_WORKERS}, not {world_size}: all operations of each are listed")
    if world_size < 1 or size < BYTES_PER_ELEMENT or turn < 0:
        raise RunError("--workers must be at least 1, --size at least 4 bytes and --turn at least 0")
    collective = find_collective(name)
    if root and not collective.has_root:
        raise RunError(f"--root is of a broadcast or reduce, not of {collective}")
    if not 0 <= root < world_size:
        raise RunError(f"--root must be in 0..{world_size - 1}, a rank, not {root}")
    made = find(mechanism).of(collective).schedule(world_size, size, turn, root)
    check(made)
    if picture_path is not None:
        picture(made, picture_path)
    elements = collective.tensor_bytes(size // BYTES_PER_ELEMENT, world_size)
    carried = {
        node: {"sent_bytes": BYTES_PER_ELEMENT * sent, "received_bytes": BYTES_PER_ELEMENT * received}
        for node, (sent, received) in link_elements(made, elements).items()
    }
    if as_json:
        proven = {
            "mechanism": mechanism,
            "collective": collective.value,
            "world_size": world_size,
            "pieces": made.pieces,
            "verified": True,
            "links": carried,
            "nodes": {node: [describe(op) for op in ops] for node, ops in made.nodes.items()},
        }
        click.echo(json.dumps(proven, indent=2))
        return
    title = f"{_what(mechanism, made)}, {world_size} workers, {made.pieces} pieces: verified"
    if draw:
        drawn = table_of(made)
        drawn.title = title
        output(16 + 24 * len(made.nodes)).print(drawn)
        return
    table = Table("node", "operations", title=title, title_justify="left")
    for node, operations in made.nodes.items():
        table.add_row(node, "\n".join(f"{i + 1}. {describe(op)}" for i, op in enumerate(operations)))
    output().print(table)


def _what(mechanism: str, made: Schedule) -> str:
    """The mechanism, and what it does if that is no all-reduce."""
    return mechanism if made.collective is Collective.ALL_REDUCE else f"{made.collective} by {mechanism}"


def _show_passes(pipeline: str, as_json: bool) -> None:
    """Print the passes of a pipeline's stages."""
    strategy = find_strategy(pipeline.partition("/")[0])
    order = pass_order(strategy.plain, strategy.options.stages, strategy.options.microbatches, strategy.options.chunks)
    lines = drawing(order)
    if as_json:
        passes = {f"stage{number}": [order.label(each) for each in mine] for number, mine in enumerate(order.workers)}
        click.echo(
            json.dumps({"pipeline": pipeline, "parts": order.parts, "verified": True, "passes": passes}, indent=2)
        )
        return
    click.echo(f"{pipeline}: F forward, B backward, with the micro-batch's number")
    for line in lines:
        click.echo(line)


PLACE = 20
COMMANDS = (
    mechanisms,
    schedule,
)
