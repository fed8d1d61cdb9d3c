"""How much a process group's operations carried, and by what."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

GLOO = "gloo"


@dataclass(slots=True)
class Carried:
    """Of one operation, by one means.

    Attributes:
        calls: how many tensors, or lists of them.
        bytes: of this rank's tensors: of the whole one where ranks have shards of it.
    """

    calls: int = 0
    bytes: int = 0


class GroupTraffic:
    """Counts what each operation carried, by means: "fabric", "hosts" or "gloo"."""

    def __init__(self) -> None:
        self._carried: dict[tuple[str, str], Carried] = {}
        self._lock = threading.Lock()

    def add(self, operation: str, means: str, *tensors: Any) -> None:
        """Count a call. `tensors` may be nested in lists; what is no dense tensor has no bytes."""
        with self._lock:
            carried = self._carried.setdefault((operation, means), Carried())
            carried.calls += 1
            carried.bytes += sum(each.nbytes for each in _flat(tensors))

    def as_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """By operation, then by means."""
        with self._lock:
            found: dict[str, dict[str, dict[str, int]]] = {}
            for (operation, means), carried in sorted(self._carried.items()):
                found.setdefault(operation, {})[means] = asdict(carried)
            return found


def _flat(tensors: Iterable[Any]) -> Iterable[Tensor]:
    for each in tensors:
        if isinstance(each, Tensor):
            if each.layout == torch.strided:
                yield each
        elif isinstance(each, list | tuple):
            yield from _flat(each)
