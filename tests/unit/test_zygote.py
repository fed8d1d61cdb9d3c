"""What is heard of processes that were forked for virtual hosts."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from emulation.zygote import Zygote


@pytest.fixture
def heard() -> Any:
    """A Zygote that hears what is written to the descriptor."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdout:
        yield Zygote(SimpleNamespace(stdout=stdout)), writing  # type: ignore[arg-type]
    os.close(writing)


def test_a_number_that_comes_again_is_another_process(heard: Any) -> None:
    zygote, writing = heard
    for said in ({"pid": 7}, {"pid": 7, "status": 1}, {"pid": 8}, {"pid": 8, "status": -9}, {"pid": 7}):
        os.write(writing, json.dumps(said).encode() + b"\n")
    zygote.events(1.0)
    assert zygote.ended == {8: -9}


def test_lines_may_come_in_parts(heard: Any) -> None:
    zygote, writing = heard
    os.write(writing, b'{"event": "failed", "ra')
    assert zygote.events(1.0) == []
    os.write(writing, b'nk": 3}\n{"pid": 9, "status": 0}\n')
    assert zygote.events(1.0) == [{"event": "failed", "rank": 3}]
    assert zygote.ended == {9: 0}
