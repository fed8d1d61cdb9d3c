"""Sums of tensors on a device, so that its own work goes on: three side streams, pinned memory, fused kernels.

A tensor of floats that goes through the switch is quantised on the device. What the engine agrees on block by block,
with each packet for a later one, is agreed on beforehand and at once here: the same codes, hence the same words and the
same bits as for a tensor in the host's memory (docs/adr/0009-a-device-agrees-on-its-codes-ahead.md). It goes in pieces,
so that quantising, copying, sending and scaling back overlap. All other sums take a copy in pinned memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hostlib.staging.device import Device, DeviceEvent, Stream
from hostlib.staging.request import ReduceRequest
from hostlib.transport.refusals import refuse

PIECE_BYTES = 2 << 20  # of words
PIECES = 32  # between device and switch at a time: what pinned memory this takes at most, for all tensors
AHEAD = 3  # pieces that are being quantised while one is handed to the engine

Future = torch.futures.Future


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How the packet engine cuts a tensor: blocks of `elements`; of each lane's part of them the first `slots` share a
    code (hostlib/native/blocks.h)."""

    elements: int
    slots: int
    lanes: int

    def share_openings(self, codes: Tensor) -> None:
        """Codes of a whole tensor's blocks, int16 (blocks,): the largest of those that share one, in each of them."""
        blocks = len(codes)
        for lane in range(self.lanes):
            first, end = lane * blocks // self.lanes, (lane + 1) * blocks // self.lanes
            opening = codes[first : min(end, first + self.slots)]
            if len(opening):
                opening.fill_(int(opening.max()))


@dataclass(slots=True)
class Asked:
    """A tensor of the device, to be summed.

    Attributes:
        flat: its values, contiguous; in its own memory where they are.
        left: requests without a result.
    """

    tensor: Tensor
    average: bool
    future: Future[Tensor]
    flat: Tensor
    left: int = 1


class DeviceReduction:
    """One device's side of a collective.

    Its streams wait for nothing but what comes before in the same tensor. One looks at tensors, as the caller's stream
    has them ready; the next makes words of them; the last takes the results back: where a tensor is not yet computed,
    those before it go on.

    Args:
        cut: the engine's; None where it sums something else than words.
        agree: maximum of codes over all ranks, in place.
    """

    def __init__(
        self, device: Device, world_size: int, cut: BlockLayout | None, agree: Callable[[Tensor], None]
    ) -> None:
        self._device, self._world_size, self._cut, self._agree = device, world_size, cut, agree
        self._look, self._up, self._down = device.stream(), device.stream(), device.stream()
        self._room = threading.BoundedSemaphore(PIECES)

    def ask(
        self, tensor: Tensor, wire_dtype: torch.dtype, average: bool, future: Future[Tensor]
    ) -> Callable[[Callable[[ReduceRequest], None]], None]:
        """Begin with a tensor, behind what the caller's current stream has been asked to do.

        Args:
            wire_dtype: the dtype that it is summed in where no words are made of it.

        Returns:
            What goes on with it, in another thread: called with what takes requests, in order.
        """
        self._look.after(self._device.now())
        self._keep(tensor)
        if self._cut is not None and tensor.is_floating_point() and tensor.numel() > 0:
            return self._ask_words(self._cut, Asked(tensor, average, future, self._flat(tensor, tensor.dtype)))
        asked = Asked(tensor, average, future, self._flat(tensor, wire_dtype))
        host = self._device.pinned(tensor.numel(), wire_dtype)
        self._look.copy(host, asked.flat)
        ready = self._look.mark()

        def go_on(give: Callable[[ReduceRequest], None]) -> None:
            ready.wait()
            give(ReduceRequest(host, average, deliver, lambda error: refuse(future, error)))

        def deliver() -> None:
            self._down.copy(asked.flat, host)
            self._delivered(asked)

        return go_on

    def _keep(self, tensor: Tensor) -> None:
        """Its memory is another stream's."""
        for stream in (self._look, self._up, self._down):
            stream.keep(tensor)

    def _flat(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        tensor = tensor.detach()
        if tensor.is_contiguous() and tensor.dtype == dtype:
            return tensor.view(-1)
        flat = self._look.empty(tensor.numel(), dtype)
        self._look.copy(flat.view(tensor.shape), tensor)
        self._keep(flat)
        return flat

    # ---- words ---------------------------------------------------------------------------------------------------

    def _ask_words(self, cut: BlockLayout, asked: Asked) -> Callable[[Callable[[ReduceRequest], None]], None]:
        blocks = -(-asked.flat.numel() // cut.elements)
        codes = self._look.empty(blocks, torch.int16)
        self._look.block_codes(asked.flat, codes, cut.elements)
        agreed = self._device.pinned(blocks, torch.int16)
        self._look.copy(agreed, codes)
        looked = self._look.mark()

        def go_on(give: Callable[[ReduceRequest], None]) -> None:
            looked.wait()
            cut.share_openings(agreed)
            self._agree(agreed)
            self._send(cut, asked, agreed, give)

        return go_on

    def _send(self, cut: BlockLayout, asked: Asked, agreed: Tensor, give: Callable[[ReduceRequest], None]) -> None:
        """Quantise and hand over piece by piece."""
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
        self, cut: BlockLayout, asked: Asked, up: Tensor, down: Tensor, first: int
    ) -> tuple[DeviceEvent, ReduceRequest]:
        """A piece from block `first` on. up, down: its agreed codes, for either way."""
        values = asked.flat[first * cut.elements : (first + len(up)) * cut.elements]
        count, world_size = values.numel(), self._world_size
        words, host = self._up.empty(count, torch.int32), self._device.pinned(count, torch.int32)
        self._up.quantise(values, up, words, cut.elements, world_size)
        self._up.copy(host, words)

        def deliver() -> None:
            sums = self._down.empty(count, torch.int32)
            self._down.copy(sums, host)
            self._down.dequantise(sums, down, values, cut.elements, world_size, asked.average)
            self._delivered(asked)
            self._room.release()

        def refused(error: Exception) -> None:
            self._room.release()
            refuse(asked.future, error)

        return self._up.mark(), ReduceRequest(host, False, deliver, refused)

    @staticmethod
    def _uploaded(stream: Stream, codes: Tensor) -> Tensor:
        there = stream.empty(len(codes), codes.dtype)
        stream.copy(there, codes)
        return there

    def _delivered(self, asked: Asked) -> None:
        """One more result is on its way to the tensor; of the last one, the future tells."""
        asked.left -= 1
        if asked.left > 0 or asked.future.done():
            return
        if asked.flat.data_ptr() != asked.tensor.data_ptr():
            self._down.copy(asked.tensor.detach(), asked.flat.view(asked.tensor.shape))
        with self._down.use():
            asked.future.set_result(asked.tensor)


def _hand_over(made: deque[tuple[DeviceEvent, ReduceRequest]], give: Callable[[ReduceRequest], None]) -> None:
    ready, request = made.popleft()
    ready.wait()
    give(request)
