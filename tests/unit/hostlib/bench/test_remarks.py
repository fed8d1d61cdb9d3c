"""What `hostlib bench` says of times that are not the network's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hostlib.bench.allreduce import BenchOptions, Row, remarks

LINKS = BenchOptions(("inagg+mcast",), (1 << 20,), hosts="netns:8", rate="100mbit")
ROW = Row("inagg+mcast", "all_reduce", 1 << 20, 1 << 18, "float32", 9.0, 9.0, 9.0, 1.0, 1.0, 0, 0, 0, 1, 1)


def test_a_machine_that_was_busy_is_named_where_links_have_a_rate() -> None:
    (line,) = remarks(LINKS, [replace(ROW, cores_busy=0.5), replace(ROW, cores_busy=0.94)])
    assert "inagg+mcast, 1M float32: this machine's cores were 94% busy" in line
    assert "links of 100mbit" in line


@pytest.mark.parametrize("busy", [None, 0.0, 0.9])
def test_a_machine_that_was_not_is_not(busy: float | None) -> None:
    assert remarks(LINKS, [replace(ROW, cores_busy=busy)]) == []


def test_without_a_rate_ranks_may_have_all_cores() -> None:
    assert remarks(BenchOptions(("ring",), (1 << 20,)), [replace(ROW, cores_busy=1.0)]) == []


def test_a_switch_that_failed_is_named() -> None:
    (line,) = remarks(LINKS, [replace(ROW, by_hosts=3)])
    assert "the hosts did 3 without it" in line
