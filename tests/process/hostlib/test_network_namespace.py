"""Namespaces of the network are made and entered by a process with threads, and refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hostlib.system.network_namespace import NamespaceError, inside, make_namespace, namespace
from hostlib.system.process import NAMESPACES

NETWORK = "/proc/thread-self/ns/net"


def test_what_is_done_inside_is_done_in_the_namespace() -> None:
    before = os.readlink(NETWORK)
    with namespace("test") as one, namespace("test") as two:
        seen = {before, inside(one, lambda: os.readlink(NETWORK)), inside(two, lambda: os.readlink(NETWORK))}
        assert len(seen) == 3
        assert os.readlink(NETWORK) == before
        interfaces = inside(one, lambda: Path("/proc/thread-self/net/dev").read_text()).splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    assert not Path(NAMESPACES, one).exists() and not Path(NAMESPACES, two).exists()


def test_it_is_made_without_a_fork() -> None:
    """A fork of a process with threads may wait for a lock that nobody gives back."""
    forks: list[None] = []
    os.register_at_fork(before=lambda: forks.append(None))
    with namespace("test"):
        assert not forks


def test_a_name_that_is_taken_is_refused() -> None:
    with namespace("test") as taken:
        with pytest.raises(NamespaceError, match=rf"^cannot make the network namespace {taken}: File exists$"):
            make_namespace(taken)
        inside(taken, lambda: None)  # It is as it was.


def test_a_name_that_there_is_not_is_refused() -> None:
    with pytest.raises(NamespaceError, match=r"^cannot enter namespace netfold-nobody: No such file or directory$"):
        inside("netfold-nobody", lambda: None)


def test_what_is_no_namespace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(NamespaceError, match=r"^cannot enter namespace .*: Invalid argument$"):
        inside(str(path), lambda: None)
