"""A strategy's own messages as the emulation replays them: real players, over messages that stay in this process."""

from __future__ import annotations

import json
import queue
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from emulation.experiments.cell import REPLAY, process_options
from emulation.experiments.replayed_exchanges import Exchanges, serve_exchanges
from emulation.experiments.worker_options import ExchangeRole, ReplayOptions, role_in
from hostlib.errors import RunError
from hostlib.models.layer_info import LayerInfo
from hostlib.schedules.schedule import Compute, Receive, Send, server, worker
from hostlib.strategies.plan import (
    Exchange,
    at_the_host,
    by_server,
    everybody_to_everybody,
    sync_exchange,
    sync_exchange_of_all,
)
from hostlib.strategies.strategy import choose
from hostlib.traces.trace import Layer, Parameter, synthesise
from simulation.experiments.experiment_file import read_experiment

WORKERS, TIMES, PATIENCE_S = 4, 3, 20
HOSTS = {**{worker(rank): rank for rank in range(WORKERS)}, server(0): WORKERS}
Wires = dict[tuple[int | str, ...], "queue.SimpleQueue[Tensor]"]


@dataclass
class Coming:
    """A message that is waited for."""

    wire: queue.SimpleQueue[Tensor]
    into: Tensor

    def wait(self) -> None:
        self.into.copy_(self.wire.get(timeout=PATIENCE_S))


class Gone:
    """A message that has left."""

    def wait(self) -> None:
        """It has."""


@dataclass
class HereTransport:
    """One host's end of queues: what Gloo's would be."""

    host: int
    wires: Wires
    channels: int = field(default=1)
    name: str = "here"
    shares_link: bool = False
    carried: None = None

    def send(self, tensor: Tensor, host: int, tag: int) -> Gone:
        self._wire(self.host, host, tag).put(tensor.clone())
        return Gone()

    def receive(self, tensor: Tensor, host: int, tag: int) -> Coming:
        return Coming(self._wire(host, self.host, tag), tensor)

    def _wire(self, *key: int) -> queue.SimpleQueue[Tensor]:
        return self.wires.setdefault(key, queue.SimpleQueue())


@dataclass
class HereMulticast:
    """One host's end of them where a switch would multicast: its stream has the number of its host."""

    stream: int
    wires: Wires
    ended: bool = False
    failures: list[dict[str, Any]] = field(default_factory=list)

    def send(self, stream: int, values: Tensor) -> None:
        assert stream == self.stream
        for rank in range(WORKERS):
            if rank != stream:
                self._wire(stream, rank).put(values.clone())

    def receive(self, stream: int, values: Tensor) -> Coming:
        return Coming(self._wire(stream, self.stream), values)

    def _wire(self, *ends: int) -> queue.SimpleQueue[Tensor]:
        return self.wires.setdefault(("multicast", *ends), queue.SimpleQueue())

    def complete(self) -> None:
        assert not self.ended

    def settle(self) -> None:
        assert not self.ended

    def close(self) -> None:
        self.ended = True


def replay(exchanges: list[Exchange], damage: bool = False) -> list[int]:
    """Each worker's wrong elements, after some iterations with a server beside."""
    wires: Wires = {}

    def roles(node: str) -> list[ExchangeRole]:
        mine = (role_in(number, each, node, 1.0) for number, each in enumerate(exchanges))
        # As they travel: through JSON.
        return [ExchangeRole.from_json(json.loads(json.dumps(role.to_json()))) for role in mine if role is not None]

    mismatches = [-1] * WORKERS

    def work(rank: int) -> None:
        multicast = HereMulticast(rank, wires)
        mine = Exchanges(roles(worker(rank)), HOSTS, HereTransport(rank, wires), multicast)
        for _ in range(TIMES):
            for future in [mine.begin(number) for number in range(len(exchanges)) if number in mine]:
                future.wait()
        mine.close()
        assert multicast.ended
        if damage and rank == 0:
            next(iter(mine.received))[0] += 1
        mismatches[rank] = mine.mismatches

    threads = [threading.Thread(target=work, args=[rank], daemon=True) for rank in range(WORKERS)]
    threads.append(
        threading.Thread(
            target=serve_exchanges, args=[roles(server(0)), HOSTS, HereTransport(WORKERS, wires), TIMES], daemon=True
        )
    )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert all(wire.empty() for wire in wires.values())
    return mismatches


BROADCAST = [everybody_to_everybody("one", WORKERS, 400), everybody_to_everybody("two", WORKERS, 40)]
BY_SWITCH = [everybody_to_everybody(name, WORKERS, 400, by_switch=True) for name in ("one", "two")]
OWNED = [by_server("one", WORKERS, server(0), 40, 400), by_server("two", WORKERS, server(0), 80, 800)]
AMONG_WORKERS = [by_server("one", WORKERS, worker(1), 40, 400), by_server("two", WORKERS, worker(3), 80, 800)]
ERRANDS = [sync_exchange("tail", WORKERS, rank, server(0), 400, 100_000) for rank in range(WORKERS)]
TOGETHER = [sync_exchange_of_all("tail", WORKERS, server(0), 400, 100_000)]
HOST = [at_the_host("chunk", WORKERS, 400, 100_000)]


def stored(name: str) -> list[Exchange]:
    """Two layers of 3 and 2 pairs, which are too many values for what is to be looked at quickly: scaled down."""
    layers = [LayerInfo(n, f"l{n}", "conv", n * 500_001, 1, 1, None, (f"l{n}/w",)) for n in (2, 3)]
    trace = synthesise(
        [Layer(each.name, 0, 0) for each in layers],
        [Parameter(each.members[0], 4 * each.params, each.name) for each in layers],
    )
    plan = choose(name).plan(trace, tuple(layers), WORKERS, 32).scaled(1 / 1000)
    return [each.exchange for each in plan.carried]


STORED, WITH_WORKERS = stored("poseidon"), stored("poseidon:servers=3:colocated")


@pytest.mark.parametrize(
    "exchanges",
    [
        BROADCAST,
        BY_SWITCH,
        [*BY_SWITCH, *OWNED],
        OWNED,
        AMONG_WORKERS,
        ERRANDS,
        TOGETHER,
        [*ERRANDS, *BROADCAST],
        HOST,
        STORED,
        WITH_WORKERS,
    ],
)
def test_everything_is_where_it_belongs(exchanges: list[Exchange]) -> None:
    assert replay(exchanges) == [0] * WORKERS


def test_what_is_damaged_is_seen() -> None:
    assert replay(BROADCAST, damage=True) == [1, 0, 0, 0]


def test_a_server_says_what_went_wrong() -> None:
    class Broken(HereTransport):
        def receive(self, tensor: Tensor, host: int, tag: int) -> Coming:
            raise RunError(f"nothing comes from {host}")

    role = role_in(0, OWNED[0], server(0), 1.0)
    assert role is not None
    with pytest.raises(RunError, match="nothing comes from 0"):
        serve_exchanges([role], HOSTS, Broken(WORKERS, {}), 1)


def test_each_process_is_told_its_part(tmp_path: Path) -> None:
    """RALP's tail lives with the parameter server, in a process of its own."""
    path = tmp_path / "ralp.toml"
    path.write_text(
        '[cells]\nmodels = ["lenet"]\nmechanisms = ["ralp/ps"]\nworkers = [2]\n[replay]\nshrink = 2\nbatch = 8\n'
    )
    experiment = read_experiment(path)
    (cell,) = experiment.cells
    options = []
    for rank in range(4):  # two workers, the mechanism's server, the strategy's
        module, text = process_options(experiment, cell, 10.0, rank, "", "127.0.0.1", "")
        assert module == REPLAY
        options.append(ReplayOptions.from_json(text))
        assert ReplayOptions.from_json(options[-1].to_json()) == options[-1]
    assert all(each.own_messages and len(each.errands) == 2 for each in options)
    assert options[0].hosts == {"worker0": 0, "worker1": 1, "server0": 2}
    first, second, _, tail = (each.roles for each in options)
    sizes = (8 * 3136 // 2,)
    there_and_back = (Send("server0", 0), Receive("server0", 0, False))
    assert first == (ExchangeRole(options[0].errands[0], sizes, there_and_back, {}),)
    assert second == (ExchangeRole(options[0].errands[1], sizes, there_and_back, {}),)
    assert options[2].roles == ()
    for rank, role in enumerate(tail):
        came, compute, back = role.operations
        assert (came, back) == (Receive(worker(rank), 0, False), Send(worker(rank), 0))
        assert isinstance(compute, Compute) and compute.duration_ns > 0
