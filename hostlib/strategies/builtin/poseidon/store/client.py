"""A worker's client of the store.

It sends updates to the shards, keeps those that no checkpoint contains, and resends them to a shard that was restarted.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from hostlib.strategies.builtin.poseidon.store.frame import NONE, Frame, FrameKind, read, write
from hostlib.strategies.builtin.poseidon.store.partition import PairRange

RETRY_S = 0.05
CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a shard listens, and the token that it expects."""

    host: str
    port: int
    token: str


@dataclass(slots=True)
class Known:
    """A worker's state of a pair.

    Attributes:
        came_ns: when these values arrived, as time.perf_counter_ns().
        kept: updates that no checkpoint contains, by version.
    """

    shard: int
    elements: int
    version: int = NONE
    values: Tensor = field(default_factory=lambda: torch.empty(0))
    came_ns: int = 0
    kept: dict[int, Tensor] = field(default_factory=dict)


class StoreClient:
    """One thread communicates with all shards. `push` and `wait` are for one other thread."""

    def __init__(self, addresses: list[Address], rank: int, pairs: Iterable[PairRange]) -> None:
        self._addresses, self._rank = addresses, rank
        self._pairs = {pair.number: Known(pair.shard, pair.end - pair.start) for pair in pairs}
        self._came = threading.Condition()
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._loop = asyncio.new_event_loop()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def push(self, number: int, version: int, values: Tensor) -> None:
        """Send an update of a pair; the tensor must not change afterwards."""
        self._loop.call_soon_threadsafe(self._send, number, version, values)

    def wait(self, number: int, version: int, patience_s: float) -> tuple[Tensor, int]:
        """A pair's values that include this version's update, and when they arrived.

        Raises:
            TimeoutError: they do not arrive.
        """
        pair = self._pairs[number]
        with self._came:
            there = self._came.wait_for(lambda: pair.version >= version or self._error is not None, patience_s)
            if self._error is not None:
                raise self._error
            if not there:
                raise TimeoutError
            return pair.values, pair.came_ns

    def close(self) -> None:
        """Close the connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)

    # ---- in the thread
    # --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        tasks = [self._loop.create_task(self._stay_connected(shard)) for shard in range(len(self._addresses))]
        for task in tasks:
            task.add_done_callback(self._ended)
        self._loop.run_forever()
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # Connections close in the event loop's next iteration.
        self._loop.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            with self._came:
                self._error = task.exception()
                self._came.notify_all()

    async def _stay_connected(self, shard: int) -> None:
        address = self._addresses[shard]
        while True:
            try:
                reader, writer = await asyncio.open_connection(address.host, address.port)
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                await self._talk(shard, reader, writer)
            except OSError:
                await asyncio.sleep(RETRY_S)
            finally:
                self._writers.pop(shard, None)
                writer.close()

    async def _talk(self, shard: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = {number: pair.elements for number, pair in self._pairs.items() if pair.shard == shard}
        hello = {"token": self._addresses[shard].token, "rank": self._rank, "pairs": mine}
        write(writer, Frame(FrameKind.HELLO, payload=json.dumps(hello).encode()))
        welcome = await read(reader)
        versions = json.loads(bytes(welcome.payload))
        for number in mine:
            for version, values in sorted(self._pairs[number].kept.items()):
                if version > versions[str(number)]:
                    write(writer, _update(number, version, values))
        self._writers[shard] = writer
        while True:
            self._take(await read(reader))

    def _send(self, number: int, version: int, values: Tensor) -> None:
        pair = self._pairs[number]
        pair.kept[version] = values
        if pair.shard in self._writers:
            write(self._writers[pair.shard], _update(number, version, values))

    def _take(self, frame: Frame) -> None:
        pair = self._pairs[frame.pair]
        for version in [version for version in pair.kept if version <= frame.saved]:
            del pair.kept[version]
        if frame.version <= pair.version:
            return  # A restarted shard catches up.
        values = torch.frombuffer(bytearray(frame.payload), dtype=torch.float32)
        with self._came:
            pair.version, pair.values, pair.came_ns = frame.version, values, time.perf_counter_ns()
            self._came.notify_all()


def _update(number: int, version: int, values: Tensor) -> Frame:
    return Frame(FrameKind.UPDATE, number, version, payload=memoryview(cast(Any, values.numpy())).cast("B"))
