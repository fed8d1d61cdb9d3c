"""What README and docs tell people to type works: each page's commands one after the other, in a directory of their own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hostlib.system.network_namespace import delete_namespace, make_namespace
from tests.conftest import MPI, MPIRUN, ROOT
from tests.docs.commands import BEFORE, NETWORK, PAGES, TABLE, Elsewhere, entry, files_on, plain, small, written_on
from tests.unit.emulation.report.example_experiment import write_experiment

BUDGET_S = 100.0
RUNNABLE = [page for page in PAGES if any(isinstance(small(plain(each)), str) for each in written_on(page))]


def _one_of_ci(page: Path) -> Any:
    """Commands of measurements are mostly those of other pages, with other options. So are those of some long pages."""
    crossed = page.parent.name == "measurements" or page.name in (
        "mechanisms.md",
        "models.md",
        "paper.md",
        "simulation.md",
    )
    return pytest.param(page, marks=pytest.mark.crossed) if crossed else page


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[list[str]]:
    """What runs a command line in a network namespace of its own, where every port is free."""
    for folder in ("DIR", "build/fabric-vs-host"):
        write_experiment(tmp_path / folder, mechanisms=("inagg+mcast", "ring"))
    for module in ("mine.py", "my_models.py"):
        (tmp_path / module).write_text(NETWORK)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, starts in {"torchrun": f"{sys.executable} -m torch.distributed.run", "mpirun": str(MPIRUN)}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {starts} "$@"\n')
        (commands / name).chmod(0o755)
    space = f"netfold-docs-{os.getpid()}-{secrets.token_hex(3)}"
    make_namespace(space)
    try:
        yield ["nsenter", f"--net=/run/netns/{space}", "bash", "-o", "pipefail", "-c"]
    finally:
        delete_namespace(space)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [_one_of_ci(page) for page in RUNNABLE], ids=lambda page: page.name)
def test_what_a_page_says_works(page: Path, shell: list[str], tmp_path: Path) -> None:
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    environment = {**os.environ, **MPI, **own}
    for name, text in files_on(page).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    commands = [plain(each) for each in written_on(page)]
    failed = []
    try:
        for command in (BEFORE.get(page.name, "true"), *dict.fromkeys(map(small, commands))):
            if isinstance(command, Elsewhere) or (command.startswith("mpirun") and not MPIRUN.exists()):
                continue
            begun = time.monotonic()
            # To a file: what goes on in the background would hold a pipe open.
            with (tmp_path / "output").open("w+") as output:
                try:
                    status: object = subprocess.run(
                        [*shell, command], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                        stderr=output, timeout=BUDGET_S,
                    ).returncode  # fmt: skip
                except subprocess.TimeoutExpired:
                    status = f"still at work after {BUDGET_S:.0f} s"
                print(f"{time.monotonic() - begun:5.1f} s  {command}")
                output.seek(0)
                if status != 0:
                    failed.append(f"{command}: {status}\n{output.read()[-2000:]}")
    finally:
        subprocess.run([*shell, "controller stop"], cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    assert not failed, "\n".join(failed)


def test_commands_are_found_and_the_table_names_none_that_is_gone() -> None:
    found = [plain(command) for page in PAGES for command in written_on(page)]
    assert {"controller start", "make demo", "emulation run --list"} <= set(found) and len(found) > 100
    used = {entry(command) for command in found}
    assert [fits for fits in TABLE if fits not in used] == []
