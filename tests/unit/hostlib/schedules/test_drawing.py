"""Schedules as timelines: steps as one would count them by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from rich.console import Console

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import find
from hostlib.schedules.timeline import Message, picture, table, timeline


def steps(mechanism: str, world_size: int) -> int:
    return max(message.step for message in timeline(find(mechanism).schedule(world_size)))


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_steps_of_known_algorithms(n: int) -> None:
    assert steps("ring", n) == 2 * (n - 1)
    assert steps("ring:split=no", n) == 2 * (n - 1)
    assert steps("inagg+mcast", n) == 2
    assert steps("ps", n) == 2 * n  # one after the other into the server's link, and out of it
    assert steps("ps:colocated:assign=even:servers=" + str(n), n) == 2 * (n - 1)
    assert steps("halving-doubling", n) == 2 * (n - 1)  # in pieces of 1/n
    if n & (n - 1) == 0:
        assert steps("butterfly", n) == math.log2(n)


def test_messages_of_two() -> None:
    assert timeline(find("butterfly").schedule(2)) == [
        Message(1, "worker0", "worker1", 0, True),
        Message(1, "worker1", "worker0", 0, True),
    ]


def test_a_table_has_a_row_per_step_and_a_column_per_node() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table(find("inagg+mcast").schedule(2)))
    lines = captured.get()
    assert all(word in lines for word in ("worker0", "switch", "0 → switch", "+ 0 ← worker1", "= 0 ← switch"))


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_a_picture(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"ring.{ending}"
    picture(find("ring").schedule(4), path)
    assert path.stat().st_size > 1000


def test_an_ending_that_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(HostlibError, match=r"ring.txt cannot be drawn; legal endings are .pdf, .png, .svg"):
        picture(find("ring").schedule(4), tmp_path / "ring.txt")
