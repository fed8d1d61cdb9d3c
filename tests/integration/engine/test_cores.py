"""NETFOLD_CORES: each lane's thread runs on one core."""

from __future__ import annotations

import os

import numpy as np
import psutil
import pytest

from hostlib._engine import Engine, Reflector
from hostlib.fabric.engine_checks import for_engine
from hostlib.protocol.check_words import check_words
from tests.packet_sizes import elements

HERE, ELEMENTS = "127.0.0.1", elements(64)
ALLOWED = sorted(os.sched_getaffinity(0))


def cores_of(lanes: int) -> tuple[Engine, list[set[int]]]:
    """An engine, and the cores that its threads may run on, in the order in which they were started."""
    before = {each.id for each in psutil.Process().threads()}
    engine = Engine(HERE, [0] * lanes)
    threads = sorted({each.id for each in psutil.Process().threads()} - before)
    return engine, [os.sched_getaffinity(each) for each in threads]


def test_without_it_they_run_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NETFOLD_CORES", raising=False)
    _, found = cores_of(2)
    assert found == [set(ALLOWED)] * 2


@pytest.mark.skipif(len(ALLOWED) < 2, reason="two cores are needed")
@pytest.mark.parametrize(
    ("named", "local_rank", "lanes", "expected"),
    [
        ("{last}", None, 2, ["last", "last"]),
        ("{last},{first}", None, 3, ["last", "first", "last"]),
        ("{first},{last}", "1", 1, ["last"]),
        ("{first},{last}", "1", 2, ["first", "last"]),
        ("{first}-{first}", "3", 1, ["first"]),
    ],
)
def test_lanes_take_cores_in_turn_and_so_do_a_host_s_ranks(
    named: str, local_rank: str | None, lanes: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = {"first": ALLOWED[0], "last": ALLOWED[-1]}
    monkeypatch.setenv("NETFOLD_CORES", named.format(**cores))
    if local_rank is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    _, found = cores_of(lanes)
    assert found == [{cores[each]} for each in expected]
    assert os.sched_getaffinity(0) == set(ALLOWED), "and the process itself where it did"


def test_a_lane_on_a_core_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_CORES", str(ALLOWED[-1]))
    reflector, (engine, _) = Reflector(HERE), cores_of(1)
    engine.configure(
        HERE, reflector.port, 1, 1, 0, 1, [(0, 128)], ELEMENTS, for_engine(check_words(16 * "00", 1, ELEMENTS))
    )
    given = np.arange(300 * ELEMENTS + 1, dtype=np.int32)
    summed = given.copy()
    engine.allreduce(summed, False, 30.0)
    assert np.array_equal(summed, given)


@pytest.mark.parametrize("named", ["", "first", "1-", "-1", "3-2", "0,", "0,,1", "+1", "0x1", "99999", "0 1"])
def test_what_names_no_cores_is_refused(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_CORES", named)
    with pytest.raises(ValueError) as refused:
        Engine(HERE)
    assert str(refused.value) == f"NETFOLD_CORES={named}: it is numbers of cores, such as 2,3 or 2-5, 0 to 1023"


def test_a_core_that_the_process_has_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = max(ALLOWED) + 1
    monkeypatch.setenv("NETFOLD_CORES", f"{ALLOWED[0]},{other}")
    with pytest.raises(ValueError) as refused:
        Engine(HERE)
    allowed = ",".join(map(str, ALLOWED))
    assert str(refused.value) == f"NETFOLD_CORES: this process may not run on core {other}, but on {allowed}"
