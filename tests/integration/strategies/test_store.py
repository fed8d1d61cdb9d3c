"""The key-value store: real sockets, a real checkpoint; shards that go away and come back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hostlib.schedules.sharding import PAIR_BYTES
from hostlib.strategies.builtin.poseidon.store.client import Address, StoreClient
from hostlib.strategies.builtin.poseidon.store.frame import HEAD, Frame, FrameKind, read, write
from hostlib.strategies.builtin.poseidon.store.partition import PairRange, make_pairs
from hostlib.strategies.builtin.poseidon.store.shard import ShardOptions
from hostlib.strategies.builtin.poseidon.store.supervisor import listening_at, start_shard

# From Python 3.12 on: pytest's process has threads, of which the shard's uses none.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

TOKEN, PATIENCE_S = "00" * 16, 60.0  # for a machine that is paused meanwhile
PAIRS = [PairRange(0, 0, 0, 0, 3), PairRange(1, 0, 0, 3, 5)]
FIRST = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0])]


def momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


class RunningShard:
    """A shard in a process of its own, at a port that it keeps."""

    def __init__(self, options: ShardOptions) -> None:
        self.options = options
        self._listening = listening_at("127.0.0.1")
        self.address = Address("127.0.0.1", self._listening.getsockname()[1], TOKEN)
        self.start()

    def start(self) -> None:
        self._process = start_shard(self.options, self._listening)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()

    def close(self) -> None:
        self.kill()
        self._listening.close()


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Callable[..., RunningShard]]:
    """Start shards for two workers, with a checkpoint every other iteration."""
    started: list[RunningShard] = []

    def start(**more: object) -> RunningShard:
        options = ShardOptions(TOKEN, 2, momentum, tmp_path, every=2, drop_s=None)
        started.append(RunningShard(replace(options, **more)))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def worker() -> Iterator[Callable[[RunningShard, int], StoreClient]]:
    """Connect workers; the first brings the first values."""
    clients: list[StoreClient] = []

    def connect(shard: RunningShard, rank: int) -> StoreClient:
        clients.append(StoreClient([shard.address], rank, PAIRS))
        if rank == 0:
            for pair, values in zip(PAIRS, FIRST, strict=True):
                clients[-1].push(pair.number, 0, values)
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def updates(rank: int, version: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * version + rank)
    return [torch.randn(len(values), generator=generator) for values in FIRST]


def push(client: StoreClient, rank: int, version: int) -> None:
    for pair, values in zip(PAIRS, updates(rank, version), strict=True):
        client.push(pair.number, version, values)


def expected(ranks_of: list[list[int]]) -> list[Tensor]:
    """The values after iterations in which these ranks' updates counted."""
    parameters = [nn.Parameter(values.clone()) for values in FIRST]
    optimiser = momentum(parameters)
    for version, ranks in enumerate(ranks_of, start=1):
        for number, parameter in enumerate(parameters):
            parameter.grad = sum(updates(rank, version)[number] for rank in ranks) / len(ranks)  # type: ignore[assignment]
        optimiser.step()
    return [p.detach() for p in parameters]


def values(client: StoreClient, version: int) -> list[Tensor]:
    return [client.wait(pair.number, version, PATIENCE_S)[0] for pair in PAIRS]


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_pairs_have_two_megabytes_at_most_and_are_dealt_out() -> None:
    found = make_pairs([10, PAIR_BYTES, 7], 3)
    assert [(p.bucket, p.shard) for p in found] == [(0, 0), (1, 1), (1, 2), (1, 0), (1, 1), (2, 2)]
    assert all(4 * (p.end - p.start) <= PAIR_BYTES for p in found)
    assert [p.number for p in found] == list(range(6))
    assert sum(p.end - p.start for p in found if p.bucket == 1) == PAIR_BYTES


def test_updates_are_applied_when_all_are_there(
    shard: Callable[..., RunningShard], worker: Callable[[RunningShard, int], StoreClient]
) -> None:
    running = shard()
    first, second = worker(running, 0), worker(running, 1)
    push(second, 1, 1)
    with pytest.raises(TimeoutError):
        second.wait(0, 1, 0.2)
    push(first, 0, 1)
    for client in (first, second):
        assert same(values(client, 1), expected([[0, 1]]))


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_shard_that_comes_back_goes_on_as_if_nothing_had_been(
    before: int, shard: Callable[..., RunningShard], worker: Callable[[RunningShard, int], StoreClient], tmp_path: Path
) -> None:
    """After so many whole iterations, and half of the next one."""
    running = shard()
    clients = [worker(running, 0), worker(running, 1)]
    for version in range(1, before + 1):
        for rank, client in enumerate(clients):
            push(client, rank, version)
        for client in clients:
            values(client, version)
    push(clients[0], 0, before + 1)
    running.kill()
    assert (tmp_path / "checkpoint.pt").exists() or before == 0
    running.start()
    push(clients[1], 1, before + 1)
    for version in range(before + 2, 6):
        for rank, client in enumerate(clients):
            push(client, rank, version)
    for client in clients:
        assert same(values(client, 5), expected([[0, 1]] * 5))


def test_a_straggler_does_not_count_and_has_the_same_values(
    shard: Callable[..., RunningShard], worker: Callable[[RunningShard, int], StoreClient]
) -> None:
    running = shard(drop_s=0.1)
    first, second = worker(running, 0), worker(running, 1)
    push(first, 0, 1)
    assert same(values(first, 1), expected([[0]]))
    push(second, 1, 1)  # Too late.
    assert same(values(second, 1), expected([[0]]))
    push(second, 1, 2)
    push(first, 0, 2)
    for client in (first, second):
        assert same(values(client, 2), expected([[0], [0, 1]]))


def test_updates_that_are_in_the_checkpoint_are_not_kept(
    shard: Callable[..., RunningShard], worker: Callable[[RunningShard, int], StoreClient]
) -> None:
    running = shard()
    clients = [worker(running, 0), worker(running, 1)]
    for version in range(1, 6):
        for rank, client in enumerate(clients):
            push(client, rank, version)
        for client in clients:
            values(client, version)
    kept = {version for client in clients for pair in client._pairs.values() for version in pair.kept}
    assert kept <= {3, 4, 5}


def test_half_a_checkpoint_is_none(
    shard: Callable[..., RunningShard], worker: Callable[[RunningShard, int], StoreClient], tmp_path: Path
) -> None:
    (tmp_path / "checkpoint.partial").write_bytes(b"half of")
    running = shard()
    clients = [worker(running, 0), worker(running, 1)]
    for rank, client in enumerate(clients):
        push(client, rank, 1)
    assert same(values(clients[0], 1), expected([[0, 1]]))


@pytest.mark.parametrize(
    "payload",
    [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(HEAD.size),
        HEAD.pack(FrameKind.HELLO, 0, 0, 0, 2**31),
        HEAD.pack(FrameKind.HELLO, 0, 0, 0, 2) + b"{}",
        HEAD.pack(FrameKind.HELLO, 0, 0, 0, 1) + b"{",
        HEAD.pack(FrameKind.UPDATE, 0, 1, 0, 4) + bytes(4),
    ],
)
def test_strangers_are_sent_away(payload: bytes, shard: Callable[..., RunningShard]) -> None:
    running = shard()
    with socket.create_connection((running.address.host, running.address.port), PATIENCE_S) as sock:
        sock.settimeout(PATIENCE_S)
        sock.sendall(payload)
        with suppress(ConnectionResetError):  # What was not read is answered so.
            assert sock.recv(1) == b""


def test_a_frame_comes_as_it_went() -> None:
    frame = Frame(FrameKind.VALUES, 7, 3, 2, b"values")

    async def there_and_back() -> Frame:
        got: asyncio.Queue[Frame] = asyncio.Queue()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await got.put(await read(reader))
            writer.close()

        async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            write(writer, frame)
            answer = await got.get()
            writer.close()
            return answer

    assert asyncio.run(there_and_back()) == frame
