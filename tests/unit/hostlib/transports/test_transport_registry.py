"""Transports by name: a file that is there is one, and says itself what it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hostlib import transport
from hostlib.errors import SpecError
from hostlib.transport.transport_registry import describe_transports, find_transport, transport_names

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
    assert describe_transports() == "gloo: torch's Gloo, over TCP; mpi: an MPI library (under mpirun)"


def test_one_more_file_is_in_the_help(folder: Path) -> None:
    (folder / "pigeon_transport.py").write_text(PIGEON)
    assert transport_names() == ("gloo", "mpi", "pigeon")
    assert describe_transports().endswith("(under mpirun); pigeon: a pigeon, over IP (under pigeonrun)")


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
    with pytest.raises(SpecError, match=f"pigeon_transport.py is no transport: {says}$"):
        find_transport("pigeon")
