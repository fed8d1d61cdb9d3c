"""How many elements the packets of these tests have."""

from __future__ import annotations

import os

VARIABLE = "NETFOLD_ENGINE_ELEMENTS"
LARGEST_PACKET = 1 << 14


def elements(usual: int) -> int:
    """As many as the variable says, with which all tests run with packets of one size; else the usual number."""
    return int(os.environ.get(VARIABLE, usual))
