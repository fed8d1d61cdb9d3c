"""torch's own distributed tests, as it has them in its wheel, on two ranks that are forked with torch loaded.

Importing this module needs BACKEND in the environment.
"""

from __future__ import annotations

import os
import socket
import unittest

import torch
import torch.testing._internal.common_distributed as common

common.TIMEOUT_DEFAULT = 120  # seconds of each test

# Which tests there are is decided when torch's module is imported, by the backend's name: those of Gloo are to run.
BACKEND = os.environ["BACKEND"]
os.environ["BACKEND"] = "gloo"
from torch.testing._internal.distributed import distributed_test  # noqa: E402

os.environ["BACKEND"] = distributed_test.BACKEND = BACKEND

PORT = "NETFOLD_SUITE_PORT"


class TestDistributed(  # type: ignore[misc]
    distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
):
    """torch's tests, but for how the ranks start and meet: they fork, and meet over TCP, not in a file."""

    def setUp(self) -> None:
        super().setUp()
        with socket.create_server(("127.0.0.1", 0)) as free:
            os.environ[PORT] = str(free.getsockname()[1])
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @property
    def init_method(self) -> str:
        return f"tcp://127.0.0.1:{os.environ[PORT]}"


def names() -> list[str]:
    """The tests' names."""
    return list(unittest.TestLoader().getTestCaseNames(TestDistributed))


def outcome(name: str) -> tuple[str, str]:
    """Run a test: "passed", "skipped" or "failed", and why."""
    result = unittest.TestResult()
    TestDistributed(name).run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    trouble = result.errors + result.failures
    if trouble:
        lines = [line for line in trouble[0][1].splitlines() if line.strip()]
        told = [line for line in lines if "Error" in line]
        return "failed", (told or lines)[-1].strip()
    return "passed", ""
