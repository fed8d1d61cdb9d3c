"""How much the operations of a process group, or of a session, carried, and by what."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from hostlib.mechanisms.mechanism import Mechanism
from hostlib.schedules.contract import Collective

GLOO = "gloo"
Failures = list[dict[str, Any]]


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
    """Counts what each operation carried, by means: "fabric", "hosts" or "gloo".

    Args:
        name: of the group; for a process group torch's, which is known later.
        owner: the group, which has the records of the fabric's failures.

    Attributes:
        name: as above.
    """

    def __init__(self, owner: Any, name: str = "") -> None:
        self.name = name
        self._owner = weakref.ref(owner)  # Counters outlive a group: else they would be smaller at its end.
        self._at_end: Failures = []
        self._carried: dict[tuple[str, str], Carried] = {}
        self._lock = threading.Lock()
        _known.append(self)

    @property
    def failures(self) -> Failures:
        """One record for each failure of the fabric; see docs/failures.md."""
        owner = self._owner()
        return self._at_end if owner is None else owner.failures

    def end(self, failures: Failures) -> None:
        """The group ends: keep its failures."""
        self._at_end = failures

    def count(self, mechanism: Mechanism, collective: Collective, *tensors: Any) -> None:
        """Count what a mechanism does."""
        self.add(collective.value, "fabric" if mechanism.of(collective).needs_fabric else "hosts", *tensors)

    def add(self, operation: str, means: str, *tensors: Any) -> None:
        """Count a call. `tensors` may be nested in lists; what is no dense tensor has no bytes."""
        with self._lock:
            carried = self._carried.setdefault((operation, means), Carried())
            carried.calls += 1
            carried.bytes += sum(each.nbytes for each in tensors_in(tensors))

    def as_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """By operation, then by means."""
        with self._lock:
            found: dict[str, dict[str, dict[str, int]]] = {}
            for (operation, means), carried in sorted(self._carried.items()):
                found.setdefault(operation, {})[means] = asdict(carried)
            return found


_known: list[GroupTraffic] = []


def all_traffic() -> list[GroupTraffic]:
    """Of all groups and sessions of this process, also those that have ended."""
    return list(_known)


def tensors_in(tensors: Iterable[Any]) -> Iterable[Tensor]:
    """The dense tensors in nested lists."""
    for each in tensors:
        if isinstance(each, Tensor):
            if each.layout == torch.strided:
                yield each
        elif isinstance(each, list | tuple):
            yield from tensors_in(each)
