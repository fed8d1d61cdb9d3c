"""`emulation topology`: what a declared network is made of."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types


@click.command(cls=Command)
@click.argument("file", required=False, type=types.FILE)
@click.option("--workers", type=types.N, default=4, show_default=True, help="Number of workers, a host each.")
@click.option(
    "--servers", type=types.N, default=0, show_default=True, help="Number of servers, hosts on the root switch."
)
@click.option("--bandwidth", type=types.RATE.typed(), help="Bandwidth of every host's link [default: no limit].")
@click.option(
    "--dilation", type=types.FACTOR, default=1.0, show_default=True, help="How many times slower everything runs."
)
@click.option("--kinds", "only_kinds", is_flag=True, help="List the kinds of network that a table may name.")
@json_option
def topology(
    file: Path | None,
    workers: int,
    servers: int,
    bandwidth: str | None,
    dilation: float,
    only_kinds: bool,
    as_json: bool,
) -> None:
    """Show the network that the table [topology] of FILE (TOML) describes: nodes, links, rates.

    \b
    Example: the kinds of network, and the keys of each
        emulation topology --kinds

    \b
    Example: a leaf-spine network with twofold oversubscription
        printf '[topology]\\nkind = "leaf-spine"\\noversubscription = 2\\n' > network.toml
        emulation topology network.toml --workers 16 --bandwidth 25gbit
    """
    from emulation.networks.describe import print_kinds, print_topology
    from emulation.networks.limits import require_hosts, require_realisable
    from emulation.switch.ports.port_spec import parse_rate
    from hostlib.topology.topology_kinds import declare, kinds
    from hostlib.topology.topology_table import read_table
    from simulation.experiments.experiment_file import ROOT_KEYS

    if only_kinds:
        if file is not None:
            raise click.UsageError("--kinds says what a FILE may name: leave one of the two out")
        if as_json:
            click.echo(json.dumps({k.name: {"summary": k.summary, "keys": k.keys} for k in kinds().values()}, indent=2))
        else:
            print_kinds(kinds().values())
        return
    if file is None:
        raise click.UsageError("name a FILE, or ask for the --kinds")
    require_hosts(workers, servers)
    rate = None if bandwidth is None else parse_rate(bandwidth)
    declared = declare(read_table(file, ROOT_KEYS), workers, servers, rate).dilated(dilation)
    require_realisable(declared)
    if as_json:
        click.echo(json.dumps(declared.as_json(), indent=2))
    else:
        print_topology(declared)


PLACE = 70
COMMANDS = (topology,)
