"""`hostlib bench --probe`: latency and bandwidth between each two ranks. Torch-free except for the launch."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from hostlib.errors import RunError
from hostlib.launch.hosts import LARGEST_WORLD, Hosts, LocalHosts, namespace_hosts, to_bridge
from hostlib.system.pair_links import PairLink


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """What each rank is told."""

    deadline_s: float
    address: str = "127.0.0.1"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def run_probe(ranks: int, namespaces: bool, rate: str | None, deadline_s: float) -> list[PairLink]:
    """Measure the link between each two ranks, one pair at a time.

    Args:
        namespaces: each rank in a network namespace of its own, on one bridge; otherwise all on this host's loopback.
        rate: of each namespace's link.

    Raises:
        RunError: there is only one rank, or there are too many.
        HostlibError: the namespaces could not be made, or a rank failed.
        ModuleNotFoundError: torch is not installed; nothing was started.
    """
    from hostlib.launch.launcher import run_ranks

    if not 2 <= ranks <= LARGEST_WORLD:
        raise RunError(f"--probe measures links between ranks: --workers must be in 2..{LARGEST_WORLD}, not {ranks}")
    with ExitStack() as stack:
        hosts: Hosts = LocalHosts()
        if namespaces:
            hosts = stack.enter_context(to_bridge(stack.enter_context(namespace_hosts(ranks, rate))))
        options = [ProbeOptions(deadline_s, hosts.address(rank)).to_json() for rank in range(ranks)]
        done = run_ranks("hostlib.bench.probe_rank", options.__getitem__, ranks, hosts, lambda event: None)
    return [PairLink(**link) for link in done["links"]]


def print_links(links: list[PairLink], console: Console) -> None:
    table = Table(title="between ranks, one way", title_justify="left", box=None)
    for name in ("ranks", "latency (us)", "bandwidth (Gbit/s)"):
        table.add_column(name, justify="right")
    for link in links:
        table.add_row(f"{link.first} - {link.second}", f"{link.latency_us:.1f}", f"{link.gbit_s:.2f}")
    console.print(table)
