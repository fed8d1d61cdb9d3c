"""A fabric over each kind of links, for what must work on all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Fabric, running_fabric

FAULTS = ("--loss", "0.05", "--duplicate", "0.05", "--reorder", "0.05", "--seed", "5")
TREE = ("--racks", "2", "--ports", "2")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((), id="good links"),
        pytest.param(FAULTS, id="bad links", marks=pytest.mark.crossed),
        pytest.param(TREE, id="a tree", marks=pytest.mark.crossed),
        pytest.param(TREE + FAULTS, id="a tree of bad links"),
    ],
)
def any_fabric(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with running_fabric(tmp_path_factory.mktemp("fabric") / "state", *request.param) as started:
        yield started
