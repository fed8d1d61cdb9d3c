"""What the door loads when it opens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

HEAVY = {
    *("distributed", "fastapi", "grpc", "jinja2", "matplotlib", "mpi4py", "p4", "pyroute2", "scipy", "sklearn"),
    *("torch", "uvicorn"),
}


def loaded(code: str) -> set[str]:
    """The modules that a new process has after this."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stderr.split())


def test_the_api_loads_nothing_but_itself() -> None:
    found = loaded("import netfold")
    assert HEAVY.isdisjoint(found) and "numpy" not in found
    assert {name for name in found if name.startswith(("hostlib", "simulation", "emulation", "controller"))} == set()


@pytest.mark.parametrize(
    "code",
    [
        "import netfold; netfold.mechanisms(); netfold.HostlibError",
        "import netfold; netfold.predict(None, 'ring', size='1MiB')",
        "from netfold.cli import main; main(['--help'], standalone_mode=False)",
        "from netfold.cli import main; main(['simulate', '--help'], standalone_mode=False)",
    ],
)
def test_what_needs_no_torch_loads_none(code: str) -> None:
    assert HEAVY.isdisjoint(loaded(code))


def test_a_command_alone_is_loaded() -> None:
    found = loaded("from netfold.cli import main; main(['doctor', '--help'], standalone_mode=False)")
    assert "hostlib.commands.doctor" in found
    assert {"hostlib.commands.bench", "simulation.cli", "emulation.cli", "controller.cli"}.isdisjoint(found)


@pytest.mark.parametrize(
    ("words", "used"),
    [
        ("ask --model lenet --workers 2", ""),
        ("simulate --workers 4 --mechanism ring", ""),
        ("simulate sweep --workers 2,4 --mechanism ring", ""),
        ("simulate paper 4", ""),
        ("emulate --list", ""),
        ("emulate topology --kinds", ""),
        ("controller --help", ""),
        ("controller start --help", ""),
        ("mechanisms", ""),
        ("schedule ring", ""),
        ("train --help", ""),
        ("bench --help", ""),
        ("switch --help", ""),
        ("completion bash", ""),
        ("models lenet", "torch"),
        ("schedule ring --plot {folder}/ring.svg", "matplotlib"),
    ],
)
def test_commands_load_what_they_use(words: str, used: str, tmp_path: Path) -> None:
    command = words.format(folder=tmp_path).split()
    assert HEAVY & loaded(f"from netfold.cli import main; main({command}, standalone_mode=False)") == set(used.split())
