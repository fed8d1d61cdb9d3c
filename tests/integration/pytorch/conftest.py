"""What the backend's tests share: a fabric of each module's own, and a process that its ranks are forked from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hostlib.launch.fork_server import ForkServer
from tests.conftest import Fabric, running_fabric
from tests.forked import loaded


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with running_fabric(tmp_path_factory.mktemp("fabric")) as started:
        yield started


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with loaded() as started:
        yield started
