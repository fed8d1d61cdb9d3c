"""Transports by name: a file that is there is one, and says itself what it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hostlib import transport
from hostlib.errors import HostlibError, RunError, SpecError
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.train.local import launch
from hostlib.train.options import TrainOptions
from hostlib.transport.transport_registry import describe_transports, find_transport, start_line, transport_names

PIGEON = """
from contextlib import nullcontext
SUMMARY = "a pigeon, over IP"
STARTED_BY = "pigeonrun"
environment = nullcontext
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(transport, "__path__", [*transport.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{transport.__name__}.pigeon_transport", raising=False)
    yield tmp_path
    sys.modules.pop(f"{transport.__name__}.pigeon_transport", None)


def test_each_says_what_it_is_and_what_starts_it() -> None:
    each = describe_transports().split("; ")
    assert {"gloo: torch's Gloo, over TCP", "mpi: an MPI library (under mpirun)"} <= set(each)
    assert [line.partition(":")[0] for line in each] == list(transport_names())


def test_one_more_file_is_in_the_help(folder: Path) -> None:
    (folder / "pigeon_transport.py").write_text(PIGEON)
    assert {"gloo", "mpi", "pigeon"} <= set(transport_names())
    assert "(under mpirun); pigeon: a pigeon, over IP (under pigeonrun)" in describe_transports()
    with pytest.raises(
        HostlibError, match=r"legal: pigeonrun -n 4 python -m hostlib.train --transport pigeon --mechanism coo"
    ):
        Mechanism("coo", MechanismSpec("coo", "a pigeon's own", transport="pigeon"), {}).require_transport("gloo")
    with pytest.raises(RunError, match=r"^--transport pigeon needs pigeonrun: pigeonrun -n 3 python -m hostlib.train"):
        launch(TrainOptions(mechanism="ring", world_size=3, transport="pigeon"), lambda event: None)
    assert start_line("gloo", 4) == "hostlib train --transport gloo"


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        ('SUMMARY = "a pigeon, over IP"', "", "summary must be a line of text, not None"),
        ('STARTED_BY = "pigeonrun"', "", "STARTED_BY must be a command or None, not ''"),
        ('STARTED_BY = "pigeonrun"', "STARTED_BY = 3", "STARTED_BY must be a command or None, not 3"),
        ("environment = nullcontext", "", "environment must be a function"),
    ],
)
def test_one_that_lacks_something_is_named(folder: Path, line: str, instead: str, says: str) -> None:
    (folder / "pigeon_transport.py").write_text(PIGEON.replace(line, instead))
    with pytest.raises(SpecError, match=f"pigeon_transport.py is not a transport: {says}$"):
        find_transport("pigeon")
