"""Send tensors between a worker and a strategy's server; a header gives their number, dtypes and shapes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from hostlib.errors import HostlibError
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import Pending, Transport

HEADER_ELEMENTS = 128
HEADER_TAG, FIRST_TAG = 0, 1
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


class Purpose(IntEnum):
    """What a worker requests from the server."""

    STEP = 1  # followed by tensors
    FETCH = 2
    END = 3


class TensorChannel:
    """Messages with one host, for one thread.

    Args:
        transport: of RankContext.another_transport.
        host: the peer.

    Raises:
        HostlibError: (each method) a message did not come through; the message names missing ranks.
    """

    def __init__(self, context: RankContext, transport: Transport, host: int) -> None:
        self._context, self._transport, self._host = context, transport, host
        self._leaving: list[tuple[Pending, Tensor]] = []
        self._coming: list[tuple[Pending, Tensor]] = []
        self._since = time.monotonic()

    def ask(self, purpose: Purpose, tensors: Sequence[Tensor] = ()) -> None:
        """Send a request and its tensors."""
        self._send(_header(purpose, tensors), HEADER_TAG)
        self.send(tensors)

    def asked(self) -> Purpose:
        """Receive a request; `received` returns its tensors."""
        header = torch.empty(HEADER_ELEMENTS, dtype=torch.int64)
        self._receive(header, HEADER_TAG)
        self.received()
        purpose, rooms = _read(header)
        self.expect(rooms)
        return purpose

    def send(self, tensors: Sequence[Tensor]) -> None:
        """Send tensors that the peer expects. They must not change until `settle`."""
        for number, tensor in enumerate(tensors):
            self._send(tensor.detach().contiguous(), FIRST_TAG + number)

    def expect(self, rooms: Sequence[Tensor]) -> None:
        """Receive into contiguous tensors."""
        for number, room in enumerate(rooms):
            self._receive(room, FIRST_TAG + number)

    def received(self) -> list[Tensor]:
        """Wait for all expected tensors."""
        coming, self._coming = self._coming, []
        return [self._wait(*each) for each in coming]

    def settle(self) -> None:
        """Wait until everything has been sent."""
        leaving, self._leaving = self._leaving, []
        for each in leaving:
            self._wait(*each)

    def _send(self, tensor: Tensor, tag: int) -> None:
        self._since = time.monotonic()
        try:
            self._leaving.append((self._transport.send(tensor.view(-1), self._host, tag), tensor))
        except RuntimeError as error:
            raise self._context.explain(self._since, error) from error

    def _receive(self, room: Tensor, tag: int) -> None:
        self._since = time.monotonic()
        try:
            self._coming.append((self._transport.receive(room.view(-1), self._host, tag), room))
        except RuntimeError as error:
            raise self._context.explain(self._since, error) from error

    def _wait(self, message: Pending, tensor: Tensor) -> Tensor:
        try:
            message.wait()
        except RuntimeError as error:
            raise self._context.explain(self._since, error) from error
        return tensor


def _header(purpose: Purpose, tensors: Sequence[Tensor]) -> Tensor:
    """int64: the purpose, the number of tensors, and for each its dtype, number of dimensions and dimensions."""
    words: list[int] = [purpose, len(tensors)]
    for tensor in tensors:
        words += [DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
    if len(words) > HEADER_ELEMENTS:
        raise HostlibError(f"{len(tensors)} tensors are too many to be sent for one step")
    return torch.tensor(words + [0] * (HEADER_ELEMENTS - len(words)))


def _read(header: Tensor) -> tuple[Purpose, list[Tensor]]:
    """The purpose, and empty tensors to receive into."""
    words = iter(header.tolist())
    purpose, count = Purpose(next(words)), next(words)
    rooms = []
    for _ in range(count):
        dtype, dimensions = DTYPES[next(words)], next(words)
        rooms.append(torch.empty([next(words) for _ in range(dimensions)], dtype=dtype))
    return purpose, rooms
