"""A device without a GPU: tensors are the host's, but nothing happens before its stream's thread comes to it.

Kernels are the packet engine's own, and memory that a stream has not yet written holds noise: who does not wait for an
event reads it. `install()` makes CPU tensors this device's, in this process, as long as it is `on`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hostlib import _engine
from hostlib.errors import RunError
from hostlib.protocol import constants
from hostlib.protocol.openings import SPECIAL_CODE
from hostlib.staging.find_device import device_of

LATENCY_S = 0.0005
PATIENCE_S = 30


class ThreadedEvent:
    def __init__(self) -> None:
        self._happened = threading.Event()
        self.error: Exception | None = None

    def happen(self) -> None:
        self._happened.set()

    def wait(self) -> None:
        if not self._happened.wait(PATIENCE_S):
            raise RunError("an event of the threaded device never came")
        if self.error is not None:
            raise RunError(f"the threaded device failed: {self.error!r}") from self.error


class ThreadedStream:
    """A thread that does what it is asked, in order and late."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._error: Exception | None = None
        self.launched: Counter[str] = Counter()  # of kernels
        threading.Thread(target=self._run, name="stream", daemon=True).start()

    def _run(self) -> None:
        while True:
            job = self._asked.get()
            time.sleep(LATENCY_S)
            try:
                job()
            except Exception as error:
                self._error = self._error or error

    def ask(self, job: Callable[[], None]) -> None:
        self._asked.put(job)

    @contextmanager
    def use(self) -> Iterator[None]:
        """What a future of this device is completed behind."""
        before, _current.stream = _current.stream, self
        yield
        _current.stream = before

    def _used(self) -> None:
        assert _current.stream is self, "within use() of this stream"

    def after(self, event: ThreadedEvent) -> None:
        self.ask(event.wait)

    def mark(self) -> ThreadedEvent:
        event = ThreadedEvent()

        def happen() -> None:
            event.error = self._error
            event.happen()

        self.ask(happen)
        return event

    def keep(self, tensor: Tensor) -> None:
        """Nothing to do: here memory lives as long as what refers to it."""

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        self._used()
        return noise(count, dtype)

    def copy(self, into: Tensor, source: Tensor) -> None:
        self._used()
        assert into.dtype == source.dtype, "which NaN a conversion produces differs between devices"
        self.ask(lambda: into.copy_(source))

    def block_codes(self, values: Tensor, codes: Tensor, elements: int) -> None:
        self._used()

        def kernel() -> None:
            found = _engine.own_codes(values, elements, 1, 1, 1)
            found[found == constants.EXPONENT_SPECIAL] = SPECIAL_CODE
            codes.copy_(torch.from_numpy(found.astype(np.int16)))

        self.launched["block_codes"] += 1
        self.ask(kernel)

    def quantise(self, values: Tensor, codes: Tensor, words: Tensor, elements: int, world_size: int) -> None:
        self._used()

        def kernel() -> None:
            words.copy_(torch.from_numpy(_engine.quantise_blocks(values, elements, _engines(codes), world_size)))

        self.launched["quantise"] += 1
        self.ask(kernel)

    def dequantise(
        self, words: Tensor, codes: Tensor, values: Tensor, elements: int, world_size: int, average: bool
    ) -> None:
        self._used()

        def kernel() -> None:
            none = np.zeros(len(codes), np.uint8)
            agreed = _engines(codes)
            _engine.dequantise_blocks(words.numpy(), values, elements, agreed, world_size, average, none)

        self.launched["dequantise"] += 1
        self.ask(kernel)


class ThreadedFuture(torch.futures.Future):  # type: ignore[type-arg]
    """Its readers wait for the stream that it was completed on, as those of a CUDA future do."""

    def set_result(self, result: Any) -> None:
        if _current.stream is not None:  # set_exception() comes here, too.
            _current.stream.mark().wait()
        super().set_result(result)


class ThreadedDevice:
    def __init__(self) -> None:
        self.on = True
        self.compute = ThreadedStream()  # the caller's own
        self.streams: list[ThreadedStream] = []

    def launched(self) -> Counter[str]:
        """Kernels, by name."""
        return sum((stream.launched for stream in self.streams), Counter())

    def now(self) -> ThreadedEvent:
        return self.compute.mark()

    def stream(self) -> ThreadedStream:
        self.streams.append(ThreadedStream())
        return self.streams[-1]

    def pinned(self, count: int, dtype: torch.dtype) -> Tensor:
        return noise(count, dtype)

    def future(self) -> torch.futures.Future[Any]:
        return ThreadedFuture()


class _Current(threading.local):
    stream: Any = None


_current = _Current()


def noise(count: int, dtype: torch.dtype) -> Tensor:
    return torch.full((count,), 77, dtype=dtype)


def _engines(codes: Tensor) -> np.ndarray:
    found = codes.numpy().astype(np.uint16)
    found[found == SPECIAL_CODE] = constants.EXPONENT_SPECIAL
    return found


def install(patch: pytest.MonkeyPatch) -> ThreadedDevice:
    """CPU tensors are this device's from now on."""
    device = ThreadedDevice()

    def found(tensor: Tensor) -> Any:
        return device if device.on and tensor.device.type == "cpu" else device_of(tensor)

    for module in (
        "hostlib.collectives.deferred_collective",
        "hostlib.collectives.scheduled_collective",
        "hostlib.collectives.vendor",
        "hostlib.collectives.request_thread",
        "hostlib.pytorch.reduction",
        "hostlib.staging.staged_gloo",
    ):
        patch.setattr(f"{module}.device_of", found)
    return device
