"""Tensors on a line: they arrive as they were sent, told by a header; what fails says who is missing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from hostlib.errors import HostlibError, RunError
from hostlib.strategies.common.tensor_channel import DTYPES, Purpose, TensorChannel

Wire = dict[tuple[int, int], list[Tensor]]  # by receiver and tag


@dataclass(slots=True)
class Arriving:
    """A message that is there when it is waited for."""

    sent: list[Tensor]
    room: Tensor

    def wait(self) -> None:
        if not self.sent:
            raise RuntimeError("[gloo/pair.cc:1] connection closed by peer")
        self.room.copy_(self.sent.pop(0))


class Sent:
    def wait(self) -> None: ...


@dataclass(slots=True)
class Memory:
    """One host of two, whose messages go by memory."""

    me: int
    wire: Wire = field(default_factory=dict)
    channels: int = 1

    def send(self, tensor: Tensor, host: int, tag: int) -> Sent:
        self.wire.setdefault((host, tag), []).append(tensor.clone())
        return Sent()

    def receive(self, tensor: Tensor, host: int, tag: int) -> Arriving:
        return Arriving(self.wire.setdefault((self.me, tag), []), tensor)


class Lonely:
    """A group whose other members are gone."""

    def explain(self, since: float, error: Exception) -> HostlibError:
        assert since <= time.monotonic()
        return RunError(f"server 0 is missing ({error})")


def ends() -> tuple[TensorChannel, TensorChannel]:
    """A worker's and the server's end of one line."""
    context: Any = Lonely()
    wire: Wire = {}
    return TensorChannel(context, Memory(0, wire), 1), TensorChannel(context, Memory(1, wire), 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_any_kind_arrives(dtype: torch.dtype) -> None:
    worker, server = ends()
    tensors = [torch.arange(12).view(3, 4).to(dtype), torch.tensor(1).to(dtype), torch.empty(0, 2).to(dtype)]
    worker.ask(Purpose.STEP, [tensors[0].t(), *tensors[1:]])
    assert server.asked() is Purpose.STEP
    for got, sent in zip(server.received(), [tensors[0].t(), *tensors[1:]], strict=True):
        assert got.dtype == dtype
        assert torch.equal(got, sent)


def test_answers_go_back_on_the_same_line() -> None:
    worker, server = ends()
    worker.ask(Purpose.FETCH)
    assert server.asked() is Purpose.FETCH
    assert server.received() == []
    server.send([torch.ones(2), torch.zeros(3)])
    worker.expect([torch.empty(2), torch.empty(3)])
    assert [each.tolist() for each in worker.received()] == [[1, 1], [0, 0, 0]]
    worker.settle()
    server.settle()


def test_a_broken_line_says_who_is_missing() -> None:
    worker, _ = ends()
    worker.expect([torch.empty(1)])
    with pytest.raises(RunError, match="server 0 is missing"):
        worker.received()


def test_too_many_tensors_are_refused() -> None:
    worker, _ = ends()
    with pytest.raises(HostlibError, match="100 tensors are too many"):
        worker.ask(Purpose.STEP, [torch.empty(1)] * 100)
