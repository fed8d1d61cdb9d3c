"""MPI programs that know nothing of netfold, under mpirun with the shim: through a ring, and through the switch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import psutil
import pytest

from controller.state_file import State
from tests.conftest import MPI, MPIRUN, MPIRUN_NICELY, ROOT, Fabric

HERE = Path(__file__).parent
MPICC = MPIRUN.with_name("mpicc")
RANKS = 4
LARGEST, ELEMENTS = 1_000_003, 256  # of collectives.c, and of a packet

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def shim() -> str:
    command = [sys.executable, "-m", "netfold", "mpi-shim", "--mpicc", str(MPICC)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("program") / "collectives"
    subprocess.run([MPICC, "-O1", "-o", path, HERE / "collectives.c"], timeout=60, check=True)
    return str(path)


def command_line(shim: str, *program: str, **settings: str) -> list[str]:
    """A run of four ranks with the shim, and with variables of netfold's by their names' ends."""
    variables = {"LD_PRELOAD": shim, **{f"NETFOLD_{name}": value for name, value in settings.items()}}
    given = [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
    return [*MPIRUN_NICELY, *given, "-n", str(RANKS), *program]


def mpirun(shim: str, *program: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = command_line(shim, *program, **settings)
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **MPI}, capture_output=True, text=True, timeout=200, check=False
    )


def calls(stderr: str) -> tuple[int, int]:
    """How many calls went through netfold, and how many through MPI, as rank 0 says."""
    report = re.search(r"netfold: rank 0: (\d+) calls with \d+ bytes went .* netfold, (\d+) with \d+ bytes", stderr)
    assert report is not None, stderr
    return int(report[1]), int(report[2])


def test_a_program_has_the_results_it_has_without(shim: str, program: str) -> None:
    alone = subprocess.run(
        [*MPIRUN_NICELY, "-n", str(RANKS), program],
        env={**os.environ, **MPI},
        capture_output=True,
        text=True,
        timeout=100,
    )
    done = mpirun(shim, program, MECHANISM="ring", MPI_MIN="0", VERBOSE="1")
    assert (alone.returncode, alone.stdout) == (0, "wrong: 0\n"), alone.stderr
    assert (done.returncode, done.stdout) == (0, "wrong: 0\n"), done.stderr
    assert calls(done.stderr) == (20, 29)


def test_a_program_sums_through_the_switch(shim: str, program: str, fabric: Fabric) -> None:
    def events(completed: int = 0) -> dict[str, int]:
        # None of a switch that does not answer just now: MPI's ranks spin, and others wait for the processor. What it
        # answered last is from before then.
        give_up = time.monotonic() + 20
        while not (counted := fabric.status()["switches"][0]["events"]) or counted["completed"] < completed:
            assert time.monotonic() < give_up, counted
            time.sleep(0.1)
        return cast(dict[str, int], counted)

    before = events()
    done = mpirun(shim, program, MECHANISM="inagg+mcast", CONTROLLER=fabric.http, MPI_MIN="0", VERBOSE="1")
    assert (done.returncode, done.stdout) == (0, "wrong: 0\n"), done.stderr
    # As over a ring, but for integers whose sum may overflow, which MPI sums, and three large gathers and broadcasts.
    assert calls(done.stderr) == (20, 29)
    # Of the large ones alone: three sums of all ranks, and three of each half.
    after = events(before["completed"] + (3 + 2 * 3) * (LARGEST // ELEMENTS))
    assert after["chunk"] - before["chunk"] >= (2 * RANKS * (LARGEST // RANKS) + LARGEST) // ELEMENTS
    assert fabric.status()["jobs"] == [], "every communicator has left its job"


def test_an_mpi4py_program_sums_through_the_switch(shim: str, fabric: Fabric) -> None:
    script = [sys.executable, str(HERE / "allreduce.py")]
    done = mpirun(shim, *script, MECHANISM="inagg+mcast", CONTROLLER=fabric.http, VERBOSE="1")
    assert (done.returncode, done.stdout) == (0, f"{[[]] * RANKS}\n"), done.stderr
    assert calls(done.stderr) == (4, 2)


def test_a_switch_that_dies_changes_no_bit(shim: str, start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric()
    script = [sys.executable, str(HERE / "repeated_sums.py")]
    undisturbed = mpirun(shim, *script, CONTROLLER=fabric.http)
    command = command_line(shim, *script, CONTROLLER=fabric.http)
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **MPI}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None and running.stdout.readline() == "begun\n"
        state = State.read(fabric.state_dir)
        assert state is not None
        os.kill(state.processes["switch"].pid, signal.SIGKILL)
        disturbed, stderr = running.communicate(timeout=100)
    assert running.returncode == 0 and "netfold: the switch does not answer: sums go on over the hosts" in stderr
    assert undisturbed.stdout.endswith(" True\n") and f"begun\n{disturbed}" == undisturbed.stdout


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"MECHANISM": "rong"}, "unknown mechanism 'rong'; legal are butterfly, gloo,"),
        ({"MECHANISM": "ring", "MPI_MIN": "1k"}, "NETFOLD_MPI_MIN must be a number of bytes, not '1k'"),
        ({"MECHANISM": "ring", "VERBOSE": "yes"}, "NETFOLD_VERBOSE must be 0 or 1, not 'yes'"),
        ({"CONTROLLER": "http://127.0.0.1:9"}, "no controller answers at http://127.0.0.1:9"),
        ({"MECHANISM": "ring", "STRICT": "1"}, "MPI_Allreduce: netfold sums MPI_FLOAT, MPI_INT and MPI_INT32_T with"),
    ],
)
def test_what_cannot_be_ends_the_program_with_a_line(
    settings: dict[str, str], line: str, shim: str, program: str
) -> None:
    done = mpirun(shim, program, **settings)
    assert done.returncode != 0
    assert re.search(f"^netfold: rank [0-3]: .*{re.escape(line)}", done.stderr, re.M), done.stderr


@contextmanager
def summing(shim: str, program: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process], list[str]]]:
    """A run that sums over a ring without an end: mpirun, its ranks, and the lines of its standard error so far."""
    command = command_line(shim, program, "on", MECHANISM="ring")
    with subprocess.Popen(
        command, env={**os.environ, **MPI}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(running.stderr))  # type: ignore[arg-type]
        reader.start()
        try:
            assert running.stdout.readline() == "wrong: 0\n"
            below = psutil.Process(running.pid).children(recursive=True)
            ranks = sorted(
                (each for each in below if each.name() == Path(program).name),
                key=lambda each: int(each.environ()["OMPI_COMM_WORLD_RANK"]),
            )
            yield running, ranks, errors
            running.wait(60)
            reader.join(10)
        finally:
            running.kill()


def test_a_rank_that_dies_ends_the_others(shim: str, program: str) -> None:
    with summing(shim, program) as (running, ranks, errors):
        sidecars = [each.children()[0] for each in ranks]
        ranks[2].kill()
    assert running.returncode != 0
    # mpirun says so, or another rank that noticed first.
    assert re.search(r"rank 2 .*exited on\s+signal 9|An error occurred in Socket closed", "".join(errors)), errors
    _, left = psutil.wait_procs(sidecars, 10)
    assert left == [], "sidecars end with their ranks"


def test_a_sidecar_that_dies_ends_the_program(shim: str, program: str) -> None:
    with summing(shim, program) as (running, ranks, errors):
        (sidecar,) = ranks[2].children()
        sidecar.kill()
    assert running.returncode != 0
    assert f"netfold: rank 2: its sidecar, process {sidecar.pid}, has ended\n" in errors
