"""A unit test starts no process and opens no socket: one that does fails, by Python's own audit events.

Pairs of local sockets, which event loops wake themselves with, stay legal. What libraries in C open is not seen here.
"""

from __future__ import annotations

import importlib
import socket
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec")
under_way: list[str] = []  # the test that runs, if it is one of this folder


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not under_way:
        return
    if event in STARTS:
        raise AssertionError(f"{under_way[0]} starts a process ({event}): it belongs into tests/process")
    if event == "socket.__new__" and arguments[1] != socket.AF_UNIX:
        raise AssertionError(f"{under_way[0]} opens a socket: it belongs into tests/integration")


sys.addaudithook(refuse)  # for good: there is no way to take one back


@cache
def find_fonts() -> None:
    """matplotlib's, which it asks a process for when it is first used on a machine: before tests are watched."""
    importlib.import_module("matplotlib.font_manager")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """With its fixtures, of modules too. It is called for other folders' tests as well."""
    if HERE in item.path.parents:
        find_fonts()
        under_way.append(item.nodeid)
    yield
    under_way.clear()
