"""What a launcher says of its ranks' errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostlib.errors import FabricError, MissingRankError, RunError
from hostlib.launch.fork_server import fork_server
from hostlib.launch.hosts import LocalHosts
from hostlib.launch.launcher import BESIDES, run_ranks

RANKS = """
import os
from hostlib.launch.rank_main import run_part
from hostlib.errors import FabricError, MissingRankError

def part(options, here, tell):
    if options == "hangs":
        import signal
        signal.pause()
    if options == "missing":
        raise MissingRankError([1], 3.0)
    if options == "fabric":
        raise FabricError("no answer")
    raise ValueError("a mistake")

def main():
    run_part("test", part)
"""


@pytest.mark.parametrize(
    ("options", "kind", "line"),
    [
        ("missing", MissingRankError, "rank 0: rank 1 is missing: no sign of life, the others waited 3 s"),
        ("fabric", FabricError, "rank 0: no answer"),
        ("mistake", RunError, "rank 0: ValueError: a mistake"),
    ],
)
def test_an_error_of_a_rank_keeps_its_type(options: str, kind: type[Exception], line: str, tmp_path: Path) -> None:
    (tmp_path / "failing_ranks.py").write_text(RANKS)
    with fork_server(*BESIDES, "failing_ranks", folder=tmp_path) as forks, pytest.raises(kind) as raised:
        run_ranks(
            "failing_ranks",
            lambda rank: ("hangs", options)[rank == 0],
            2,
            LocalHosts(),
            lambda event: None,
            forks=forks,
        )
    assert type(raised.value) is kind
    assert str(raised.value) == f"{line}; the other ranks were stopped"
    if isinstance(raised.value, MissingRankError):
        assert raised.value.ranks == [1]
