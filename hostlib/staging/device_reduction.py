"""Sum tensors on a device without blocking its other work: three side streams, pinned memory, fused kernels.

A tensor of floats that goes through the switch is quantised on the device. The engine agrees on each block's code in an
earlier packet; here all codes are agreed on at once beforehand. The codes are the same, hence the same words and bits
as for a tensor in host memory (docs/adr/0009-a-device-agrees-on-its-codes-ahead.md).

Tensors go in pieces, so that quantising, copying, sending and scaling back overlap. All other sums use a copy in pinned
memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from hostlib.protocol.openings import TensorCut
from hostlib.staging.device import Device, DeviceEvent, Stream
from hostlib.staging.request import ReduceRequest
from hostlib.transport.refusals import refuse

PIECE_BYTES = 8 << 20  # of words: a piece costs 0.2 ms of Python, and the copies of 8 MiB take 0.4
PIECES = 8  # in flight between device and switch, for all tensors: limits the pinned memory
AHEAD = 3  # pieces that are quantised while one is handed to the engine

Future = torch.futures.Future


@dataclass(slots=True)
class Asked:
    """A device tensor to be summed.

    Attributes:
        flat: its values, contiguous; in place if they already are.
        left: number of requests without a result.
    """

    tensor: Tensor
    average: bool
    future: Future[Tensor]
    flat: Tensor
    left: int = 1


class DeviceReduction:
    """One device's side of a collective.

    A stream only waits for earlier work on the same tensor. The first stream inspects tensors as soon as the caller's
    stream has them ready; the second quantises them; the third copies results back. So a tensor that is not yet
    computed does not delay those before it.

    Args:
        cut: the engine's layout; None if it does not sum words.
        agree: computes the maximum of codes over all ranks, in place.
    """

    def __init__(self, device: Device, world_size: int, cut: TensorCut | None, agree: Callable[[Tensor], None]) -> None:
        self._device, self._world_size, self._cut, self._agree = device, world_size, cut, agree
        self._look, self._up, self._down = device.stream(), device.stream(), device.stream()
        self._room = threading.BoundedSemaphore(PIECES)

    def ask(
        self, tensor: Tensor, wire_dtype: torch.dtype, average: bool, future: Future[Tensor]
    ) -> Callable[[Callable[[ReduceRequest], None]], None]:
        """Start to sum a tensor, after the work in the caller's current stream.

        Args:
            wire_dtype: the dtype that it is summed in if it is not quantised to words. The host converts to it and
                back: which NaN a conversion produces differs between devices.

        Returns:
            The continuation, to be run in another thread; it is called with a function that takes requests, in order.
        """
        self._look.after(self._device.now())
        self._keep(tensor)
        if self._cut is not None and tensor.is_floating_point() and tensor.numel() > 0:
            return self._ask_words(self._cut, Asked(tensor, average, future, self._flat(tensor)))
        asked = Asked(tensor, average, future, self._flat(tensor))
        host = self._device.pinned(tensor.numel(), tensor.dtype)
        with self._look.use():
            self._look.copy(host, asked.flat)
        ready = self._look.mark()

        def go_on(give: Callable[[ReduceRequest], None]) -> None:
            ready.wait()
            summed = host.to(wire_dtype)

            def deliver() -> None:
                if summed is not host:
                    host.copy_(summed)
                with self._down.use():
                    self._down.copy(asked.flat, host)
                    self._delivered(asked)

            give(ReduceRequest(summed, average, deliver, lambda: self._complete(asked), refused))

        def refused(error: Exception) -> None:
            refuse(future, error)

        return go_on

    def _keep(self, tensor: Tensor) -> None:
        """Keep its memory from being reused: it belongs to another stream."""
        for stream in (self._look, self._up, self._down):
            stream.keep(tensor)

    def _flat(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if tensor.is_contiguous():
            return tensor.view(-1)
        with self._look.use():
            flat = self._look.empty(tensor.numel(), tensor.dtype)
            self._look.copy(flat.view(tensor.shape), tensor)
        self._keep(flat)
        return flat

    # ---- words ------------------------------------------------------------------------------------------------------

    def _ask_words(self, cut: TensorCut, asked: Asked) -> Callable[[Callable[[ReduceRequest], None]], None]:
        blocks = -(-asked.flat.numel() // cut.elements)
        agreed = self._device.pinned(blocks, torch.int16)
        with self._look.use():
            codes = self._look.empty(blocks, torch.int16)
            self._look.block_codes(asked.flat, codes, cut.elements)
            self._look.copy(agreed, codes)
        looked = self._look.mark()

        def go_on(give: Callable[[ReduceRequest], None]) -> None:
            looked.wait()
            cut.round_openings(agreed.numpy(), asked.flat.numel())
            self._agree(agreed)
            self._send(cut, asked, agreed, give)

        return go_on

    def _send(self, cut: TensorCut, asked: Asked, agreed: Tensor, give: Callable[[ReduceRequest], None]) -> None:
        """Quantise a tensor and hand it over piece by piece."""
        up, down = (self._uploaded(stream, agreed) for stream in (self._up, self._down))
        blocks = max(1, PIECE_BYTES // (4 * cut.elements))
        pieces = range(0, len(agreed), blocks)
        asked.left = len(pieces)
        made: deque[tuple[DeviceEvent, ReduceRequest]] = deque()
        for first in pieces:
            self._room.acquire()
            made.append(self._piece(cut, asked, up[first : first + blocks], down[first : first + blocks], first))
            if len(made) > AHEAD:
                _hand_over(made, give)
        while made:
            _hand_over(made, give)

    def _piece(
        self, cut: TensorCut, asked: Asked, up: Tensor, down: Tensor, first: int
    ) -> tuple[DeviceEvent, ReduceRequest]:
        """Quantise the piece that begins at block `first`. up, down: its agreed codes, for either direction."""
        values = asked.flat[first * cut.elements : (first + len(up)) * cut.elements]
        count, world_size = values.numel(), self._world_size
        room = ExitStack()
        room.callback(self._room.release)
        host = self._device.pinned(count, torch.int32)
        with self._up.use():
            words = self._up.empty(count, torch.int32)
            self._up.quantise(values, up, words, cut.elements, world_size)
            self._up.copy(host, words)

        def deliver() -> None:
            with self._down.use():
                sums = self._down.empty(count, torch.int32)
                self._down.copy(sums, host)
                self._down.dequantise(sums, down, values, cut.elements, world_size, asked.average)
                self._delivered(asked)
            room.close()

        def refused(error: Exception) -> None:
            room.close()  # unless it was delivered: then its future failed
            refuse(asked.future, error)

        return self._up.mark(), ReduceRequest(host, False, deliver, lambda: self._complete(asked), refused)

    @staticmethod
    def _uploaded(stream: Stream, codes: Tensor) -> Tensor:
        with stream.use():
            there = stream.empty(len(codes), codes.dtype)
            stream.copy(there, codes)
        return there

    def _delivered(self, asked: Asked) -> None:
        """Note that a result's copy to the tensor has been queued; within `use()` of its stream."""
        asked.left -= 1
        if asked.left == 0 and asked.flat.data_ptr() != asked.tensor.data_ptr():
            self._down.copy(asked.tensor.detach(), asked.flat.view(asked.tensor.shape))

    def _complete(self, asked: Asked) -> None:
        """Complete the future once all copies have been queued."""
        if asked.left > 0 or asked.future.done():
            return
        with self._down.use():
            asked.future.set_result(asked.tensor)


def _hand_over(made: deque[tuple[DeviceEvent, ReduceRequest]], give: Callable[[ReduceRequest], None]) -> None:
    ready, request = made.popleft()
    ready.wait()
    give(request)
