"""`hostlib poseidon`: which layers of a model go by parameter servers, which by sufficient factors, and why."""

from __future__ import annotations

import json

import click
from rich.table import Table

from hostlib.errors import RunError
from hostlib.strategies.builtin.poseidon.traffic import LinkTraffic, per_node
from hostlib.strategies.common.sync_cost import InformationBook, Scheme, best_scheme, costs
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.output import output

MOST_NODES = 10_000


@click.command(cls=Command, renamed={"--bytes": "--traffic"})
@click.argument("model")
@click.option("--workers", type=types.N, default=8, show_default=True, help="Number of workers, one per node.")
@click.option("--servers", type=types.N, help="Shards of the parameter server [default: as many as workers].")
@click.option("--batch", type=types.N, default=32, show_default=True, help="Examples per worker and iteration.")
@click.option("--traffic", is_flag=True, help="Show what each node sends and receives per iteration instead.")
@json_option
def poseidon(model: str, workers: int, servers: int | None, batch: int, traffic: bool, as_json: bool) -> None:
    """Show which layers of MODEL Poseidon sends as sufficient factors (SFB) and which to parameter servers (PS).

    MODEL is one of `netfold models`, or MODULE:FACTORY. Every node is a worker; as many nodes as there are shards are
    also servers.

    \b
    Examples
        hostlib poseidon vgg19 --workers 8 --batch 32
        hostlib poseidon vgg19 --traffic
        hostlib poseidon my.models:network --workers 16 --servers 4 --json
    """
    from hostlib.models.inspection import load

    if max(workers, servers or 0) > MOST_NODES:
        raise RunError(f"--workers and --servers must be at most {MOST_NODES}, not {max(workers, servers or 0)}")
    if servers is not None and servers > workers >= 1:
        raise RunError(f"--servers {servers}: every node is a worker, so at most the {workers} of --workers")
    book = InformationBook(load(model).layers, workers, workers if servers is None else servers, batch)
    if traffic:
        _traffic(model, book, as_json)
    elif as_json:
        chosen = {layer.name: best_scheme(layer, book) for layer in book.trained}
        click.echo(
            json.dumps({**chosen, "costs": {layer.name: costs(layer, book) for layer in book.trained}}, indent=2)
        )
    else:
        _choices(model, book)


def _choices(model: str, book: InformationBook) -> None:
    table = Table(
        "layer",
        "shape",
        "PS",
        "SFB",
        "scheme",
        "why",
        title=f"{model}, {book.workers} workers, {book.servers} servers, batch {book.batch}: parameters per node",
        title_justify="left",
    )
    for layer in book.trained:
        cost, scheme = costs(layer, book), best_scheme(layer, book)
        shape = f"{layer.matrix[0]} x {layer.matrix[1]}" if layer.matrix else f"{layer.params}"
        factors = "-" if cost["SFB"] is None else f"{cost['SFB']:,.0f}"
        table.add_row(layer.name, shape, f"{cost['PS']:,.0f}", factors, scheme, _why(layer.kind, scheme, cost))
    output().print(table)


def _why(kind: str, scheme: Scheme, cost: dict[Scheme, float | None]) -> str:
    if cost["SFB"] is None:
        return f"{kind}: its gradient is no sum of a few outer products"
    if cost["SFB"] == cost["PS"]:
        return "as much either way"
    assert cost["PS"] is not None
    more, less = max(cost["SFB"], cost["PS"]), min(cost["SFB"], cost["PS"])
    return f"{'factors' if scheme == 'SFB' else 'the matrix'} {more / less:.1f} times smaller" if less else "alone"


def _traffic(model: str, book: InformationBook, as_json: bool) -> None:
    found = {scheme: per_node(book, scheme) for scheme in ("ps", "sfb", "adam", "hybcomm")}
    if as_json:
        described = {
            scheme: {node: _described(each) for node, each in nodes.items()} for scheme, nodes in found.items()
        }
        click.echo(json.dumps(described, indent=2))
        return
    table = Table(
        "node",
        *found,
        title=f"{model}, batch {book.batch}: MB that a node sends and receives per iteration",
        title_justify="left",
    )
    for node in found["ps"]:
        table.add_row(node, *(_megabytes(nodes[node]) for nodes in found.values()))
    output().print(table)


def _described(each: LinkTraffic) -> dict[str, float]:
    """Bytes; also under the names that they had one version ago."""
    return {
        "sent_bytes": each.sent,
        "received_bytes": each.received,
        "sent": each.sent,
        "received": each.received,
    }


def _megabytes(traffic: LinkTraffic) -> str:
    return f"{traffic.sent / 1e6:.1f} + {traffic.received / 1e6:.1f}"


PLACE = 70
COMMANDS = (poseidon,)
