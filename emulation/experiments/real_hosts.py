"""Run cells on real hosts: one rank on each, started by a launcher (ssh) through torchrun.

Nothing is dilated, and only what the experiment shrinks itself is shrunk. The network is the real one: a cell's
bandwidth is just a label.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from emulation.errors import EmulationError
from emulation.experiments.cell import process_options
from emulation.experiments.measurement import Measured, Usage, measured
from emulation.networks.switch_here import SwitchHere, switch_here
from hostlib.errors import from_json
from hostlib.launch.launcher import OPTIONS_VARIABLE
from hostlib.mechanisms.mechanism import registered
from hostlib.schedules.schedule import server, worker
from hostlib.strategies.strategy import Choice
from hostlib.system.process import dying_with_us, stop
from hostlib.system.user_file import read_text
from simulation.experiments.experiment_file import Cell, Experiment

SSH = "ssh -o BatchMode=yes"
PORT = 29531  # of torchrun's store, on the first host
END_S = 10.0
LOOK_S = 0.2
SHARE_OF_S = 1.0  # of which a switch's share of a core is taken
ONE_OF = re.compile(r"[\w.:-]+")


@dataclass(frozen=True, slots=True)
class RealHost:
    """A line of a hostfile.

    Attributes:
        address: reachable from the launcher and the other hosts.
        interface: carries its data; None for the one that its routes select.
        python: its interpreter with netfold.
    """

    address: str
    interface: str | None = None
    python: str = sys.executable


@dataclass(frozen=True, slots=True)
class RealHosts:
    """The hosts of a run.

    Attributes:
        launcher: the command that runs `HOST COMMAND`, as ssh does.
        controller: of the fabric, for mechanisms that need one.
        switch_at: an address of this machine, where hosts reach a switch that runs here for each cell that needs one, in
            place of a fabric of their own.
    """

    hosts: tuple[RealHost, ...]
    launcher: str = SSH
    controller: str = ""
    switch_at: str = ""


def read_hostfile(path: Path) -> tuple[RealHost, ...]:
    """Read a hostfile, one host per line: `ADDRESS [interface=NAME] [python=PATH]`; # begins a comment.

    Raises:
        EmulationError: it cannot be read, or a line is malformed.
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EmulationError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    hosts = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if words:
            hosts.append(_host(f"{path}, line {number}", *words))
    if not hosts:
        raise EmulationError(f"{path} names no host: one a line, ADDRESS [interface=NAME] [python=PATH]")
    return tuple(hosts)


def _host(where: str, address: str, *options: str) -> RealHost:
    if not ONE_OF.fullmatch(address):
        raise EmulationError(f"{where}: {address!r} is not an address")
    fields = {}
    for option in options:
        name, equals, value = option.partition("=")
        if name not in ("interface", "python") or not equals or not value:
            raise EmulationError(f"{where}: {option!r} is not one of interface=NAME, python=PATH")
        fields[name] = value
    return RealHost(address, **fields)


def measure_on(real: RealHosts, experiment: Experiment, cell: Cell) -> Measured:
    """Measure a cell on the first of the hosts.

    Raises:
        EmulationError: too few hosts, or a rank failed; the others have been stopped.
    """
    choice = cell.choice
    needed = cell.workers + choice.hosts
    if cell.jobs > 1 or cell.loss or cell.delay is not None:
        raise EmulationError(f"{cell.name}: real hosts have no jobs, loss or delay to be set; leave those cells out")
    if needed > len(real.hosts):
        raise EmulationError(f"{cell.name} needs {needed} hosts, with its servers; there are {len(real.hosts)}")
    if choice.needs_fabric and not real.controller and not real.switch_at:
        without = ", ".join(name for name, each in registered().items() if not each.needs_fabric)
        raise EmulationError(
            f"{cell.name} needs a switch that sums or multicasts: --switch-at ADDRESS runs one on this machine, --controller "
            f"URL names a fabric's; without, {without} are legal"
        )
    cpu = {}
    with _fabric(real, needed if choice.needs_fabric else 0, experiment.seed) as (controller, switch):
        placed = _placed(real.hosts, cell.workers, choice)
        with _ranks(real, experiment, cell, placed, controller) as ranks:
            busiest = Busiest(switch)
            reports = _reports(ranks, busiest)[: cell.workers]
            if switch is not None:
                cpu["switch"] = busiest.share
    links = {
        f"worker{report['rank']}": (report["link_sent"], report["link_received"])
        for report in reports
        if report["link_sent"] is not None
    }
    return measured(experiment, 1.0, reports, Usage(links, cpu))


@contextmanager
def _fabric(real: RealHosts, hosts: int, seed: int) -> Iterator[tuple[str, SwitchHere | None]]:
    """The URL of the controller of a cell's fabric, and its switch if that runs here.

    Args:
        hosts: that use it; 0 if none does.
    """
    if not (hosts and real.switch_at):
        yield real.controller, None
        return
    with switch_here(real.switch_at, hosts, seed) as switch:
        yield switch.controller, switch


@dataclass(slots=True)
class Busiest:
    """The largest share of a core that a switch used for some time, which its clients' start does not thin out.

    Attributes:
        share: so far.
    """

    switch: SwitchHere | None
    share: float = 0.0
    _since: tuple[float, float] | None = None

    def look(self) -> None:
        """Take note of the time since the last look that was long enough ago.

        Raises:
            EmulationError: the switch died.
        """
        if self.switch is None:
            return
        if not self.switch.alive:
            raise EmulationError("the switch died; run the experiment again to go on")
        now = time.monotonic(), self.switch.cpu_s()
        if self._since is not None:
            wall_s, cpu_s = now[0] - self._since[0], now[1] - self._since[1]
            if wall_s < SHARE_OF_S:
                return
            self.share = max(self.share, cpu_s / wall_s)
        self._since = now


def _placed(hosts: tuple[RealHost, ...], workers: int, choice: Choice) -> list[RealHost]:
    """Each process's host: workers on the first ones, then the servers."""
    named = {worker(rank): host for rank, host in enumerate(hosts[:workers])}
    named |= {server(number): host for number, host in enumerate(hosts[workers:])}
    return [*hosts[:workers], *(named[name] for name in choice.server_hosts)]


@dataclass(slots=True)
class Rank:
    """The launcher process of one rank."""

    host: RealHost
    process: subprocess.Popen[str]
    output: IO[str]
    errors: IO[str]

    def lines(self, of: IO[str]) -> list[str]:
        of.seek(0)
        return [line for line in of.read().splitlines() if line.strip()]

    def why(self) -> str:
        lines = self.lines(self.errors)
        ours = [line for line in lines if line.startswith("error: ")]
        return (ours or lines or [f"exit code {self.process.returncode}"])[-1].removeprefix("error: ")


@contextmanager
def _ranks(
    real: RealHosts, experiment: Experiment, cell: Cell, hosts: list[RealHost], controller: str
) -> Iterator[list[Rank]]:
    ranks: list[Rank] = []
    with ExitStack() as files:
        try:
            for number, host in enumerate(hosts):
                module, options = process_options(experiment, cell, 1.0, number, controller, host.address, "")
                what = _command(hosts, number, module, options)
                command = [*dying_with_us(), *shlex.split(real.launcher), host.address, what]
                output, errors = (files.enter_context(TemporaryFile("w+")) for _ in range(2))
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, text=True)
                ranks.append(Rank(host, process, output, errors))
            yield ranks
        finally:
            for rank in ranks:
                stop(rank.process, END_S)


def _command(hosts: list[RealHost], number: int, module: str, options: str) -> str:
    """The shell command for a host."""
    host = hosts[number]
    environment = {OPTIONS_VARIABLE: options, "OMP_NUM_THREADS": "1"}
    if host.interface is not None:
        environment["GLOO_SOCKET_IFNAME"] = host.interface
    torchrun = [
        "exec", "env", *(f"{name}={value}" for name, value in environment.items()),
        host.python, "-m", "torch.distributed.run", f"--nnodes={len(hosts)}", f"--node-rank={number}", "--nproc-per-node=1",
        f"--master-addr={hosts[0].address}", f"--master-port={PORT}", "-m", module,
    ]  # fmt: skip
    return shlex.join(torchrun)


def _reports(ranks: list[Rank], busiest: Busiest) -> list[dict[str, Any]]:
    while any(rank.process.poll() is None for rank in ranks):
        busiest.look()
        failed = next((rank for rank in ranks if rank.process.poll() not in (None, 0)), None)
        if failed is not None:
            break
        time.sleep(LOOK_S)
    found = {}
    for rank in ranks:
        for line in rank.lines(rank.output):
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "failed":
                error = from_json(event["error"])
                raise EmulationError(f"rank {event['rank']}, {rank.host.address}: {error}") from error
            if event.get("event") == "report":
                found[event["report"]["rank"]] = event["report"]
    for rank in ranks:
        if rank.process.poll() not in (None, 0):
            raise EmulationError(f"{rank.host.address}: {rank.why()}")
    return [found[number] for number in sorted(found)]
