"""Allocate a switch's shared resources to jobs: slots, ports, replica and group ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from controller.errors import ShortError


class SlotPool:
    """Slots, allocated as aligned ranges whose size is a power of two, so that one ternary entry covers a range."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._taken: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Allocate a range; returns its first slot.

        Raises:
            ShortError: no such range is free.
            ValueError: the size is not a power of two.
        """
        if size <= 0 or size & (size - 1):
            raise ValueError(f"{size} is not a power of two")
        for first in range(0, self.slots - size + 1, size):
            if all(first + size <= other or other + length <= first for other, length in self._taken.items()):
                self._taken[first] = size
                return first
        raise ShortError(
            f"{size} slots in a row are needed; {self.free} of {self.slots} are free, and not in a row: "
            "wait for a job to end"
            if self.free >= size
            else f"{size} slots are needed, and {self.free} of {self.slots} are free: wait for a job to end"
        )

    @property
    def free(self) -> int:
        return self.slots - sum(self._taken.values())

    def reserve(self, first: int, size: int) -> None:
        """Mark a range as allocated by an earlier controller process."""
        self._taken[first] = size

    def give_back(self, first: int) -> None:
        self._taken.pop(first, None)


T = TypeVar("T")


class NumberPool(Generic[T]):
    """Numbers or other distinct items, allocated in a given order."""

    def __init__(self, numbers: Iterable[T], what: str) -> None:
        self._order = {number: place for place, number in enumerate(numbers)}
        self._free = list(self._order)
        self._what = what

    def take(self, fits: Callable[[T], bool] | None = None) -> T:
        """Allocate the first free item for which `fits` is true.

        Raises:
            ShortError: none is free.
        """
        found = next((number for number in self._free if fits is None or fits(number)), None)
        if found is None:
            raise ShortError(f"no {self._what} is free: wait for a job to end")
        self._free.remove(found)
        return found

    def take_all(self, count: int) -> list[T]:
        """Allocate the first free items, all at once.

        Raises:
            ShortError: fewer are free.
        """
        if count > len(self._free):
            raise ShortError(
                f"{count} {self._what}s are needed, and {len(self._free)} of {len(self._order)} are free: "
                "wait for a job to end"
            )
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    @property
    def free(self) -> list[T]:
        return list(self._free)

    def reserve(self, number: T) -> None:
        if number in self._free:
            self._free.remove(number)

    def give_back(self, number: T) -> None:
        if number not in self._free:
            self._free.append(number)
            self._free.sort(key=self._order.__getitem__)
