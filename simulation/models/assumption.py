"""Assumptions: what an answer rests on, and where that comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIVEN = "given"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Assumption:
    """A value, and its source: "given", "default", or a publication."""

    value: str | float | int
    source: str

    def as_json(self) -> dict[str, Any]:
        return {"value": self.value, "source": self.source}


Assumptions = Mapping[str, Assumption]
