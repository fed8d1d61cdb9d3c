"""A second job on the same hosts, beside what is measured: it sums tensors all the time."""

from __future__ import annotations

import threading
from collections import deque

import torch
from torch import Tensor

from hostlib.collectives.create import MechanismCollective

PIECE_BYTES = 1 << 20  # of a tensor, at most: what has been summed is counted by tensors
UNDER_WAY = 4  # tensors, so that none waits for the one before
STOP = 0.5  # the sum of the ranks' first elements is above it where one of them asks to stop


class SecondJob:
    """A rank's part in the second job; all ranks start and stop it alike.

    Args:
        collective: of the job.
    """

    def __init__(self, collective: MechanismCollective) -> None:
        self._collective = collective
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.summed_bytes = 0

    def start(self, size: int) -> None:
        """Sum tensors of so many bytes, or of PIECE_BYTES if that is less, until `stop`."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=[min(size, PIECE_BYTES)], name="second job", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask all ranks to stop, and wait until they have.

        Raises:
            HostlibError: a sum has failed.
        """
        if self._thread is None:
            return
        self._stopping.set()
        self._thread.join()
        self._thread = None
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Leave the job."""
        self._collective.close()

    def _run(self, size: int) -> None:
        values = torch.empty(max(1, size // 4)).uniform_(-1, 1)
        under_way: deque[torch.futures.Future[Tensor]] = deque()
        try:
            stopping = False
            while under_way or not stopping:
                # All ranks begin the next one after the same one, as they all see the same sums.
                while not stopping and len(under_way) < UNDER_WAY:
                    tensor = values.clone()
                    tensor[0] = float(self._stopping.is_set())
                    under_way.append(self._collective.allreduce(tensor, average=False))
                tensor = under_way.popleft().wait()
                self.summed_bytes += tensor.nbytes
                stopping = stopping or bool(tensor[0] > STOP)
        except Exception as error:
            self._error = error
