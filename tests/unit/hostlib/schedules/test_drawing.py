"""Schedules as timelines: steps as one would count them by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from rich.console import Console

from hostlib.errors import HostlibError
from hostlib.mechanisms.builtin import ring
from hostlib.mechanisms.mechanism import find, registered
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import Multicast, Send
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


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_steps_of_other_collectives(n: int) -> None:
    wanted = {
        ("ring", Collective.REDUCE_SCATTER): n - 1,
        ("ring", Collective.ALL_GATHER): n - 1,
        ("ring", Collective.BROADCAST): ring.PIECES_PER_RANK * n + n - 2,
        ("ring", Collective.REDUCE): ring.PIECES_PER_RANK * n + n - 2,
        ("butterfly", Collective.BROADCAST): math.ceil(math.log2(n)),
        ("butterfly", Collective.REDUCE): math.ceil(math.log2(n)),
        ("butterfly", Collective.ALL_TO_ALL): n - 1,
        ("mcast", Collective.BROADCAST): 2,
    }
    for (name, collective), most in wanted.items():
        assert max(each.step for each in timeline(find(name).of(collective).schedule(n))) == most, (name, collective)


def test_every_collective_of_every_mechanism_is_drawn() -> None:
    for name, mechanism in registered().items():
        for collective in mechanism.collectives if mechanism.build is not None else ():
            schedule = find(name).of(collective).schedule(4)
            console = Console(width=400)
            with console.capture() as captured:
                console.print(table(schedule))
            assert captured.get().count("→") == sum(
                len(each.peers) if isinstance(each, Multicast) else 1
                for operations in schedule.nodes.values()
                for each in operations
                if isinstance(each, Send | Multicast)
            )


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
