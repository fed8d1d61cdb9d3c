"""The size of packets in tests of the packet engine, which must pass with every one."""

from __future__ import annotations

import os

SIZE = "NETFOLD_TEST_ELEMENTS"


def elements(usual: int) -> int:
    """Elements in a packet: those that a test is written with, or as many as the environment says (`make test`)."""
    return int(os.environ.get(SIZE, usual))
