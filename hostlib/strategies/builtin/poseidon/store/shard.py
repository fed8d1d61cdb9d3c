"""One shard of the store.

It counts each pair's updates, applies them once all have arrived, sends the new values to every worker, and writes
checkpoints.

Source: "Poseidon", section 4.1, "KV Store" and "Managing Consistency".
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hostlib.strategies.builtin.poseidon.store.frame import NONE, Frame, FrameKind, read, write

FIRST = 0  # version of the initial values


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """Options of a shard.

    Attributes:
        token: the secret that this run's workers send.
        optimiser: makes an optimiser for given parameters.
        folder: of its checkpoint; None for no checkpoints.
        every: iterations between two checkpoints.
        drop_s: time limit for a pair's updates after the first one; None for no limit.
    """

    token: str
    workers: int
    optimiser: Callable[[Iterable[nn.Parameter]], Optimizer]
    folder: Path
    every: int
    drop_s: float | None


@dataclass(slots=True)
class Pair:
    """A key-value pair.

    Attributes:
        version: number of iterations whose updates were applied.
        saved: the version in the checkpoint.
        waiting: updates that were not applied yet: version -> rank -> values. Its lengths are the paper's counts.
    """

    parameter: nn.Parameter
    optimiser: Optimizer
    version: int = NONE
    saved: int = NONE
    waiting: dict[int, dict[int, Tensor]] = field(default_factory=lambda: defaultdict(dict))


class Shard:
    """A shard, which resumes from the checkpoint in its folder if there is one."""

    def __init__(self, options: ShardOptions) -> None:
        self._options = options
        self._path = options.folder / "checkpoint.pt"
        self._pairs: dict[int, Pair] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        if self._path.exists():
            self._restore()

    async def serve(self, listening: socket.socket) -> None:
        """Serve until it is killed."""
        server = await asyncio.start_server(self._talk, sock=listening)
        await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one worker until it disconnects."""
        try:
            hello = await read(reader)
            greeting = json.loads(bytes(hello.payload)) if hello.kind is FrameKind.HELLO else {}
            if greeting.get("token") != self._options.token:
                return  # Not a worker of this run.
            self._welcome(int(greeting["rank"]), {int(pair): size for pair, size in greeting["pairs"].items()}, writer)
            while True:
                update = await read(reader)
                values = torch.frombuffer(bytearray(update.payload), dtype=torch.float32)
                self._take(int(greeting["rank"]), update.pair, update.version, values)
        except (OSError, ValueError):
            pass  # It reconnects, or is found missing elsewhere.
        finally:
            writer.close()

    def _welcome(self, rank: int, sizes: dict[int, int], writer: asyncio.StreamWriter) -> None:
        for number, size in sizes.items():
            if number not in self._pairs:
                self._pairs[number] = self._pair(torch.zeros(size))
        versions = {number: pair.version for number, pair in self._pairs.items()}
        write(writer, Frame(FrameKind.WELCOME, payload=json.dumps(versions).encode()))
        self._writers[rank] = writer
        # It may have missed some, and wait for them.
        for number in self._pairs:
            self._send(number, [writer])

    def _pair(self, values: Tensor) -> Pair:
        parameter = nn.Parameter(values)
        return Pair(parameter, self._options.optimiser([parameter]))

    def _take(self, rank: int, number: int, version: int, values: Tensor) -> None:
        pair = self._pairs[number]
        if version <= pair.version:
            return  # A straggler's, or one that was resent and is in the checkpoint.
        pair.waiting[version][rank] = values
        drop_s = self._options.drop_s
        if drop_s is not None and version > FIRST and len(pair.waiting[version]) == 1:
            asyncio.get_running_loop().call_later(drop_s, partial(self._advance, number, overdue=version))
        self._advance(number)

    def _advance(self, number: int, overdue: int | None = None) -> None:
        """Apply the updates that are complete, or overdue: those of version `overdue`."""
        pair = self._pairs[number]
        while True:
            version = pair.version + 1
            there = len(pair.waiting[version]) if version in pair.waiting else 0
            enough = 1 if version == FIRST else self._options.workers
            if there < enough and not (there and version == overdue):
                return
            self._apply(pair, pair.waiting.pop(version))
            self._save_if_due()
            self._send(number, self._writers.values())

    def _apply(self, pair: Pair, updates: dict[int, Tensor]) -> None:
        """Apply updates in rank order, so that the result does not depend on their order of arrival."""
        ranks = sorted(updates)
        total = updates[ranks[0]]
        for rank in ranks[1:]:
            total += updates[rank]
        if pair.version == NONE:
            with torch.no_grad():
                pair.parameter.copy_(total)
        else:
            pair.parameter.grad = total.div_(len(ranks))
            pair.optimiser.step()
        pair.version += 1

    def _send(self, number: int, writers: Iterable[asyncio.StreamWriter]) -> None:
        pair = self._pairs[number]
        if pair.version <= FIRST:
            return
        # A copy, because it may still be being sent when the next updates are applied.
        payload = memoryview(pair.parameter.detach().numpy().tobytes())
        for writer in writers:
            write(writer, Frame(FrameKind.VALUES, number, pair.version, pair.saved, payload))

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        version = min(pair.version for pair in self._pairs.values())
        saved = min(pair.saved for pair in self._pairs.values())
        if version >= FIRST and (saved == NONE or version >= saved + self._options.every):
            self._save()

    def _save(self) -> None:
        """Write the checkpoint atomically: the new file replaces the old one once it is complete.

        It outlives the shard's process, not the machine, whose end is the run's: so it need not be on the disk, which may
        take seconds.
        """
        state = {
            number: {"version": p.version, "values": p.parameter.detach(), "optimiser": p.optimiser.state_dict()}
            for number, p in self._pairs.items()
        }
        partial_path = self._path.with_suffix(".partial")
        with partial_path.open("wb") as file:
            torch.save(state, file)
        os.replace(partial_path, self._path)
        for pair in self._pairs.values():
            pair.saved = pair.version

    def _restore(self) -> None:
        state: dict[int, dict[str, Any]] = torch.load(self._path)
        for number, saved in state.items():
            pair = self._pairs[number] = self._pair(saved["values"])
            pair.optimiser.load_state_dict(saved["optimiser"])
            pair.version = pair.saved = saved["version"]
