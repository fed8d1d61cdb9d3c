"""A server of the store: it listens, runs the shard in a child process, and restarts it when it is killed.

Workers reconnect to the same port, and the new child resumes from the checkpoint.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from hostlib.errors import RunError
from hostlib.strategies.builtin.poseidon.store.client import Address
from hostlib.strategies.builtin.poseidon.store.shard import Shard, ShardOptions
from hostlib.strategies.trainer import TrainerContext
from hostlib.system.interrupts import interrupt_on
from hostlib.system.process import die_with_parent
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import Transport

TOKEN_BYTES = 16
ADDRESS_BYTES = 4 + 2 + TOKEN_BYTES
LOOK_S = 0.05
PATIENCE = 10  # restarts of a shard before it counts as failed
ADDRESS_TAG, END_TAG = 0, 1


def keep(context: TrainerContext, number: int, every: int, drop_s: float | None) -> None:
    """Keep shard `number` running until all workers have announced that they end.

    Raises:
        RunError: it fails by itself, or is killed too often.
    """
    interrupt_on(signal.SIGTERM)  # The checkpoint is removed, too.
    transport, workers = context.another_transport(), context.rank_context.world_size
    token = secrets.token_hex(TOKEN_BYTES)
    with listening_at(context.address) as listening, TemporaryDirectory(prefix="netfold-shard-") as folder:
        host, port = listening.getsockname()
        payload = torch.tensor(
            [*socket.inet_aton(host), *port.to_bytes(2, "big"), *bytes.fromhex(token)], dtype=torch.uint8
        )
        for message in [transport.send(payload, rank, ADDRESS_TAG) for rank in range(workers)]:
            message.wait()
        options = ShardOptions(token, workers, context.optimiser, Path(folder), every, drop_s)
        _watch(number, lambda: start_shard(options, listening), _Ending(transport, workers))


def listening_at(host: str) -> socket.socket:
    """Open a listening socket that successive shards accept connections from.

    Raises:
        RunError: the host has no such address.
    """
    # asyncio only sets TCP_NODELAY on sockets with an explicit protocol.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.bind((host, 0))
        listening.listen()
    except OSError as error:
        listening.close()
        raise RunError(f"a shard of the key-value store cannot listen at {host}: {error.strerror}") from error
    return listening


def addresses(context: RankContext, transport: Transport, servers: int) -> list[Address]:
    """Addresses of the shards: sent by their supervisors, received by a worker."""
    payloads = [torch.empty(ADDRESS_BYTES, dtype=torch.uint8) for _ in range(servers)]
    for message in [
        transport.receive(each, context.world_size + shard, ADDRESS_TAG) for shard, each in enumerate(payloads)
    ]:
        message.wait()
    texts = [bytes(each.tolist()) for each in payloads]
    return [Address(socket.inet_ntoa(t[:4]), int.from_bytes(t[4:6], "big"), t[6:].hex()) for t in texts]


def end(context: RankContext, transport: Transport, servers: int) -> None:
    """Announce that this worker no longer needs the shards."""
    payload = torch.zeros(1, dtype=torch.uint8)
    for message in [transport.send(payload, context.world_size + shard, END_TAG) for shard in range(servers)]:
        message.wait()


class _Ending:
    """A thread that waits until all workers have announced that they end."""

    def __init__(self, transport: Transport, workers: int) -> None:
        self._heard = threading.Event()
        self._error: Exception | None = None
        threading.Thread(target=self._listen, args=[transport, workers], daemon=True).start()

    def _listen(self, transport: Transport, workers: int) -> None:
        try:
            payload = torch.empty(1, dtype=torch.uint8)
            for rank in range(workers):
                transport.receive(payload, rank, END_TAG).wait()
        except Exception as error:
            self._error = error
        self._heard.set()

    def has_come(self, within_s: float) -> bool:
        """Whether all have; raises the error that ended the messages."""
        come = self._heard.wait(within_s)
        if self._error is not None:
            raise self._error
        return come


def _watch(number: int, start: Callable[[], BaseProcess], ending: _Ending) -> None:
    starts = 1
    child = start()
    try:
        while not ending.has_come(LOOK_S):
            if child.exitcode is None:
                continue
            if child.exitcode >= 0 or starts > PATIENCE:
                how = f"was killed {starts} times" if child.exitcode < 0 else f"ended with exit code {child.exitcode}"
                raise RunError(f"shard {number} of the key-value store {how}")
            starts += 1
            child = start()
    finally:
        child.kill()
        child.join()


def start_shard(options: ShardOptions, listening: socket.socket) -> BaseProcess:
    """Fork a process that runs the shard, which takes milliseconds."""
    # An optimiser's first step imports modules for seconds: once here, not in every child.
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    options.optimiser([parameter]).step()
    child = multiprocessing.get_context("fork").Process(target=_be_shard, args=(options, listening), daemon=True)
    child.start()
    return child


def _be_shard(options: ShardOptions, listening: socket.socket) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    asyncio.run(Shard(options).serve(listening))
