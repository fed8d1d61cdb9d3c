"""A tree of switches by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwitchTree:
    """Switches, parents before their children.

    Attributes:
        above: each switch's parent; None for the first, the root.
    """

    above: dict[str, str | None]

    @property
    def root(self) -> str:
        return next(iter(self.above))

    def children(self, switch: str) -> list[str]:
        return [name for name, parent in self.above.items() if parent == switch]

    def path(self, switch: str) -> list[str]:
        """The switch and its ancestors, up to the root."""
        found = [switch]
        while (parent := self.above[found[-1]]) is not None:
            found.append(parent)
        return found

    def towards(self, switch: str, there: str) -> str | None:
        """The child of a switch on the path to another switch; None if the path goes up."""
        path = self.path(there)
        return path[path.index(switch) - 1] if switch in path[1:] else None

    def levels(self) -> list[list[str]]:
        """The root, its children, and so on."""
        found = [[self.root]]
        while below := [child for name in found[-1] for child in self.children(name)]:
            found.append(below)
        return found
