"""Schedules in virtual time against what can be worked out on paper."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hostlib.registry import find
from hostlib.schedule import link_elements
from simulation.errors import QuantityError
from simulation.player import Player, Star
from simulation.quantity import bandwidth, size, time_ns
from tests.conftest import ROOT

MEGABYTE = 10**6
GIGABIT = Star(1e9)
ONE_WAY_NS = 8_000_000  # a megabyte over a gigabit link


@pytest.mark.parametrize("workers", [1, 2, 8, 32])
def test_the_fabric_takes_one_tensor_time_when_it_streams(workers: int) -> None:
    played = Player(find("inagg+mcast").schedule(workers), MEGABYTE, GIGABIT).play()
    assert played.time_ns == ONE_WAY_NS
    assert set(played.link_bytes.values()) == {(MEGABYTE, MEGABYTE)}


def test_storing_whole_pieces_takes_twice_as_long() -> None:
    star = Star(1e9, store_and_forward=True)
    assert Player(find("inagg+mcast").schedule(4), MEGABYTE, star).play().time_ns == 2 * ONE_WAY_NS


@pytest.mark.parametrize("workers", [2, 4, 5, 8])
def test_a_ring_takes_its_bound(workers: int) -> None:
    played = Player(find("ring").schedule(workers), MEGABYTE * workers, GIGABIT).play()
    assert played.time_ns == 2 * (workers - 1) * ONE_WAY_NS


def test_latency_counts_once_per_message() -> None:
    star = Star(1e9, latency_ns=1000)
    assert Player(find("inagg+mcast").schedule(4), MEGABYTE, star).play().time_ns == ONE_WAY_NS + 1000
    assert Player(find("ring").schedule(4), 4 * MEGABYTE, star).play().time_ns == 6 * (ONE_WAY_NS + 1000)


@pytest.mark.parametrize("mechanism", ["inagg+mcast", "ring"])
def test_bytes_are_those_of_the_schedule(mechanism: str) -> None:
    schedule = find(mechanism).schedule(5)
    assert Player(schedule, 1001, GIGABIT).play().link_bytes == link_elements(schedule, 1001)


def test_quantities() -> None:
    assert (bandwidth("25gbit"), size("16MiB"), size("4096"), time_ns("5us")) == (25e9, 2**24, 4096, 5000)


@pytest.mark.parametrize(
    ("read", "text"), [(bandwidth, "25"), (bandwidth, "0gbit"), (size, "-1"), (time_ns, "5 parsecs")]
)
def test_what_is_no_quantity_is_refused(read, text: str) -> None:
    with pytest.raises(QuantityError):
        read(text)


def test_a_wrong_bandwidth_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simulation", "run", "--bandwidth", "fast"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "'fast' is not a bandwidth" in done.stderr
