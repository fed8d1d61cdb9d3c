"""Exchange buckets through Poseidon's key-value store, whose shards apply the updates and return new parameters."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from hostlib.errors import MissingRankError, RunError
from hostlib.pytorch.ddp_hook import HookState
from hostlib.pytorch.step_times import Span
from hostlib.strategies.builtin.poseidon.store.client import StoreClient
from hostlib.strategies.builtin.poseidon.store.partition import PairRange, make_pairs
from hostlib.strategies.builtin.poseidon.store.shard import FIRST
from hostlib.strategies.builtin.poseidon.store.supervisor import addresses, end
from hostlib.strategies.common.buckets import spread
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import Transport


class Stored:
    """A carrier to the store and back.

    Args:
        state: records the times of a step.
        shards: number of shards of the store.
    """

    def __init__(self, context: RankContext, transport: Transport, state: HookState, shards: int) -> None:
        self._context, self._state, self._shards = context, state, shards
        self._transport = transport
        self._addresses = addresses(context, self._transport, shards)
        self._client: StoreClient | None = None
        self._pairs: list[list[PairRange]] = []
        self._versions: list[int] = []
        self._spans: dict[int, Span] = {}

    def start(self, buckets: list[list[nn.Parameter]]) -> None:
        sizes = [sum(p.numel() for p in bucket) for bucket in buckets]
        everything = make_pairs(sizes, self._shards)
        self._pairs = [[pair for pair in everything if pair.bucket == number] for number in range(len(buckets))]
        self._versions = [FIRST] * len(buckets)
        self._client = StoreClient(self._addresses, self._context.rank, everything)
        if self._context.rank == 0:
            for number, bucket in enumerate(buckets):
                self._push(number, torch.cat([p.detach().reshape(-1) for p in bucket]))

    @property
    def _store(self) -> StoreClient:
        assert self._client is not None, "not started"
        return self._client

    def _push(self, number: int, values: Tensor) -> None:
        for pair in self._pairs[number]:
            self._store.push(pair.number, self._versions[number], values[pair.start : pair.end])

    def begin(self, number: int, gradients: Tensor) -> None:
        self._versions[number] += 1
        self._spans[number] = self._state.step.begin(number, gradients.nbytes)
        self._push(number, gradients)

    def finish(self, number: int, parameters: list[nn.Parameter]) -> None:
        came = [self._wait(pair, self._versions[number]) for pair in self._pairs[number]]
        self._spans.pop(number).done_ns = max(at_ns for _, at_ns in came)
        spread(torch.cat([values for values, _ in came]), list(parameters))
        for parameter in parameters:
            parameter.grad = None  # The shard has applied the update: this rank's optimiser has nothing to do.

    def _wait(self, pair: PairRange, version: int) -> tuple[Tensor, int]:
        since = time.monotonic()
        try:
            return self._store.wait(pair.number, version, self._context.deadline_s)
        except TimeoutError:
            error = self._context.detector.explain(time.monotonic() - since, lambda: RunError(""))
            if isinstance(error, MissingRankError):
                raise error from None
            # A rank that has ended in the meantime has waited for the shard, too.
            raise RunError(
                f"shard {pair.shard} of the key-value store has not answered for {self._context.deadline_s:g} s"
            ) from None

    def close(self, graceful: bool) -> None:
        if self._client is not None:
            self._client.close()
        if graceful:
            end(self._context, self._transport, self._shards)
