"""Process groups' places on the switch: at the first sum, with as many slots as there is room for, or none alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hostlib.launch.fork_server import ForkServer
from hostlib.protocol import constants
from tests.conftest import Fabric
from tests.forked import Ranks

SCRIPT = Path(__file__).with_name("mesh_ranks.py")
PATIENCE_S = 110.0


def seen_by_ranks(forks: ForkServer, fabric: Fabric, folder: Path, **environment: str) -> list[Any]:
    ranks = Ranks(forks, folder, SCRIPT, folder, count=4, NETFOLD_CONTROLLER=fabric.http, **environment)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    assert fabric.status()["jobs"] == []
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(4)]


def test_a_mesh_of_groups_finds_room(fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    for rank, (sums, used) in enumerate(seen_by_ranks(forks, fabric, tmp_path)):
        # A group of two has the numbers of one row, or of one column, to sum.
        column, row = rank % 2, rank // 2
        assert sums == [[6.0], [2.0 * column + 2.0], [4.0 * row + 1.0], [6.0]]
        # Nothing before the first sum, nor for a rank alone; then room is left for the next.
        assert used[:2] == [0, 128]
        assert 128 < used[2] < used[3] < used[4] < constants.SLOTS


def test_a_refusal_reaches_all_ranks_of_a_group_alike(fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    each = seen_by_ranks(forks, fabric, tmp_path, NETFOLD_SLOTS=str(constants.SLOTS), NETFOLD_DEADLINE_S="10")
    for sums, used in each:
        assert sums[0] == [6.0] and used[1:] == [constants.SLOTS] * 4
        for refused in sums[1:]:
            assert (
                f"has no place in the fabric, so no rank of its group sums: the controller refused: {constants.SLOTS} slots"
                in refused
            )
    # The rows, the columns, and all four.
    assert each[0][0][3] == each[1][0][3] == each[2][0][3] == each[3][0][3]
    assert each[0][0][2] == each[1][0][2] and each[2][0][2] == each[3][0][2]
