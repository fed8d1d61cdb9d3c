"""What loss leaves of the fabric's goodput: `python -m tests.chaos.loss --ranks 4 --seconds 20`.

Three fabrics at once lose nothing, one packet in ten and one in five, at every port and in each direction. The same
ranks sum the same tensor through one after the other. Whoever sends again as seldom as possible would keep (1 - loss)^2
of the goodput: a contribution and its result have to arrive.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from hostlib._engine import Engine
from hostlib.fabric.aggregation import configure
from hostlib.fabric.job_client import join
from hostlib.transport.waits import PATIENCE_S
from tests.conftest import Fabric, running_fabric

LOSSES = (0.0, 0.1, 0.2)
ELEMENTS = 1 << 20
DEADLINE_S = 60.0


@dataclass
class Line:
    """The ranks of a job at a fabric that loses packets.

    Attributes:
        took_s: of each all-reduce, for all ranks.
        silent_s: the longest time without a result while one was waited for.
    """

    loss: float
    engines: list[Engine]
    took_s: list[float] = field(default_factory=list)
    silent_s: float = 0.0

    def allreduce(self, tensors: list[np.ndarray]) -> None:
        """Sum what the ranks have, and look how long nothing comes meanwhile."""
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over,))
        watcher.start()
        began = time.perf_counter()
        with ThreadPoolExecutor(len(self.engines)) as ranks:
            list(
                ranks.map(
                    lambda rank: self.engines[rank].allreduce(tensors[rank], False, DEADLINE_S), range(len(tensors))
                )
            )
        self.took_s.append(time.perf_counter() - began)
        over.set()
        watcher.join()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(0.005):
            self.silent_s = max(self.silent_s, *(engine.silent() for engine in self.engines))

    @property
    def goodput_gbit_s(self) -> float:
        return 32e-9 * ELEMENTS / statistics.median(self.took_s)

    @property
    def sent(self) -> float:
        """Packets that a rank sends for each that it has to."""
        stats = [engine.stats() for engine in self.engines]
        return sum(each["packets_sent"] for each in stats) / sum(each["chunks"] for each in stats)


@contextmanager
def lines(ranks: int, losses: tuple[float, ...] = LOSSES) -> Iterator[list[Line]]:
    """A fabric and a job of its own for each loss."""
    with ExitStack() as stack:
        made = []
        for loss in losses:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            fabric = stack.enter_context(running_fabric(folder, "--loss", str(loss), "--seed", "7"))
            made.append(Line(loss, _joined(fabric, ranks, stack)))
        yield made


def _joined(fabric: Fabric, ranks: int, stack: ExitStack) -> list[Engine]:
    engines = [Engine("127.0.0.1") for _ in range(ranks)]
    with ThreadPoolExecutor(ranks) as pool:
        places = [
            pool.submit(join, fabric.http, "loss", rank, ranks, engine.address, engine.ports, DEADLINE_S, lambda: 0)
            for rank, engine in enumerate(engines)
        ]
    for engine, place in zip(engines, places, strict=True):
        session = place.result()
        stack.callback(session.leave)
        stack.callback(engine.halt)
        configure(engine, session.place)
    return engines


def measure(made: list[Line], seconds: float) -> None:
    """All-reduces on one fabric after the other, until the time is up; at least two on each."""
    own = np.random.default_rng(1).standard_normal(ELEMENTS).astype(np.float32)
    sums = {line.loss: [own.copy() for _ in line.engines] for line in made}
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up or len(made[-1].took_s) < 2:
        for line in made:
            for tensor in sums[line.loss]:
                tensor[:] = own
            line.allreduce(sums[line.loss])
        true = sums[made[0].loss][0]
        assert all(np.array_equal(tensor, true) for tensors in sums.values() for tensor in tensors)


def table(made: list[Line]) -> Table:
    """A line per loss."""
    shown = Table("loss", "Gbit/s", "of what loss leaves", "packets sent per chunk", "longest silence")
    for line in made:
        leaves = made[0].goodput_gbit_s * (1 - line.loss) ** 2
        shown.add_row(
            f"{line.loss:.0%}",
            f"{line.goodput_gbit_s:.3f}",
            f"{line.goodput_gbit_s / leaves:.2f}",
            f"{line.sent:.2f}",
            f"{1e3 * line.silent_s:.0f} ms",
        )
    return shown


@click.command()
@click.option("--ranks", type=click.IntRange(1, 32), default=4, show_default=True)
@click.option("--seconds", type=float, default=20.0, show_default=True)
def main(ranks: int, seconds: float) -> None:
    """Measure goodput under loss, side by side."""
    with lines(ranks) as made:
        measure(made, seconds)
        Console().print(table(made))
        Console().print(f"{ranks} ranks; {len(made[0].took_s)} all-reduces of 4 MiB each; patience is {PATIENCE_S:g} s")


if __name__ == "__main__":
    main()
