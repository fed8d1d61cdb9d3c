"""Print networks, and what was removed of them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from emulation.networks.cleanup import Removed
from hostlib.text.output import output
from hostlib.topology.topology import Cable, Topology
from hostlib.topology.topology_kinds import TopologyKind
from hostlib.topology.topology_table import DEFAULT_KIND


def print_kinds(kinds: Iterable[TopologyKind]) -> None:
    """A table of the kinds of topology, on standard output."""
    table = Table("kind", "keys", "what it is", title="kinds of topology", title_justify="left")
    for kind in kinds:
        name = f"{kind.name} (default)" if kind.name == DEFAULT_KIND else kind.name
        table.add_row(name, ", ".join(kind.keys), kind.summary)
    output().print(table)


def print_topology(topology: Topology) -> None:
    """Tables of nodes and links, on standard output."""
    nodes = Table("switch", "below it", title="switches", title_justify="left")
    for name in topology.switches:
        nodes.add_row(name, ", ".join(cable.lower for cable in topology.below(name)))
    links = Table("link", title="links, each direction", title_justify="left")
    for heading in ("rate", "delay", "loss", "queue", "mark"):
        links.add_column(heading, justify="right")
    for cable in topology.cables:
        links.add_row(f"{cable.lower} - {cable.upper}", *_quality(cable))
    output().print(nodes, links)


def _quality(cable: Cable) -> tuple[str, ...]:
    rate = "unlimited" if cable.rate_bits_s is None else _scaled(cable.rate_bits_s, "", "k", "M", "G") + "bit/s"
    delay = "-" if not cable.delay_ns else _scaled(cable.delay_ns, "n", "u", "m", "") + "s"
    mark = "-" if cable.mark is None else f"{cable.mark[0]:,} to {cable.mark[1]:,}"
    return rate, delay, f"{cable.loss:.2%}" if cable.loss else "-", f"{cable.queue:,} frames", mark


def _scaled(number: float, *prefixes: str) -> str:
    power = 0
    while number >= 1000 and power + 1 < len(prefixes):
        number, power = number / 1000, power + 1
    return f"{number:.4g} {prefixes[power]}"


def print_removed(removed: list[Removed], left: list[str], dry_run: bool) -> None:
    """Print a table of what was (or would be) removed, and a line for each living run."""
    console = output()
    if removed:
        title = "would be removed" if dry_run else "removed"
        table = Table("what", "name", "run", title=title, title_justify="left")
        for each in removed:
            table.add_row(each.kind, each.name, each.run)
        console.print(table)
    else:
        console.print("nothing to remove")
    for run in left:
        console.print(f"run {run} is alive and was left alone (--all ends it)", soft_wrap=True)
