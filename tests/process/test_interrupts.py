"""Ctrl-C while a command's imports are under way: one line, exit code 130."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A finder that is asked for every module; it interrupts the process when the one is looked for.
PROGRAM = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            del sys.meta_path[0]
            os.kill(os.getpid(), signal.SIGINT)

from hostlib.system import programs
sys.meta_path.insert(0, Interrupting())
MODULE, program = sys.argv[1:3]
sys.argv[1:3] = []
getattr(programs, program)()
"""
RUN = ("simulate", "--model", "vgg16", "--workers", "2")
MOMENTS = [
    ("netfold.cli", "netfold", *RUN),
    ("click", "netfold", *RUN),
    ("netfold.commands.simulate", "netfold", *RUN),
    ("simulation.commands.run", "netfold", *RUN),
    ("numpy", "netfold", *RUN),
    ("numpy._core.multiarray", "netfold", *RUN),
    ("numpy._core._multiarray_umath", "netfold", *RUN),
    ("hostlib.mechanisms.builtin.ring", "netfold", *RUN),
    ("simulation._kernel", "netfold", *RUN),
    ("pydantic", "simulation", "sweep", "--model", "vgg16"),
    ("hostlib.commands.train", "hostlib", "train", "--mechanism", "ring"),
    ("hostlib.launch.launcher", "hostlib", "train", "--mechanism", "ring"),
    ("emulation.commands.demo", "emulation", "demo"),
    ("grpc", "controller", "start"),
    ("fastapi", "controller", "start"),
    ("numpy", "emulation", "topology", "--kinds"),
]


@pytest.mark.parametrize("moment", MOMENTS, ids=" ".join)
def test_ctrl_c_during_an_import_is_one_line(moment: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *moment], capture_output=True, text=True, timeout=60)
    # Click ends the terminal's line "^C" first.
    assert (done.returncode, done.stdout, done.stderr.removeprefix("\n")) == (130, "", "interrupted\n")


def test_without_it_the_command_runs() -> None:
    """The test's own proof: the finder alone changes nothing."""
    command = [sys.executable, "-c", PROGRAM, "no.such.module", "emulation", "topology", "--kinds"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
