"""What is not installed is named with the extra that has it, by every command that needs it, and missed by no other."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest

from hostlib.system.extras import EXTRAS, NotInstalledError, require_installed, what_to_install
from tests.conftest import ROOT

# torch and what the switch and the controller need are absent, as after a bare `pip install netfold`.
BARE = f"""
import sys
sys.modules.update(dict.fromkeys({list(EXTRAS)!r}))
from netfold.cli import run
run()
"""


def netfold(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BARE, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("train --mechanism ring", "train"),
        ("models", "train"),
        ("profile --model lenet", "train"),
        ("bench --mechanism ring", "train"),
        ("controller start", "controller"),
        ("switch --program p4/build/netfold-v1model-64.json", "controller"),
        ("bench --mechanism inagg+mcast --workers 2", "train,controller"),
        ("converge ring", "train"),
        ("ralp vgg16", "train"),
        ("poseidon vgg16", "train"),
        ("cgdp check lenet", "train"),
        ("overlap", "train"),
        ("emulate --only ring loss", "train,controller"),
        ("emulate demo", "train,controller"),
        ("emulate bench", "controller"),
        ("emulate report build", "emulation"),
        ("schedule ring --plot /tmp/ring.svg", "plot"),
        ("ask --model lenet --plot /tmp/answer.svg", "plot"),
        ("simulate sweep --workers 2,4 --cluster 127.0.0.1:1", "cluster"),
    ],
)
def test_what_a_command_needs_is_named(words: str, extra: str) -> None:
    done = netfold(*words.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"error: .*pip install 'netfold\[[\w,]*{extra}[\w,]*\]'.*\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "mechanisms",
        "schedule ring",
        "ask --model lenet --workers 2",
        "simulate --workers 2 --mechanism ring",
        "simulate emulation/experiments/ready/loss.toml",
        "train --help",
    ],
)
def test_what_a_command_does_not_need_may_be_absent(words: str) -> None:
    done = netfold(*words.split())
    assert done.returncode == 0 and "error" not in done.stderr, done.stderr


def test_every_extra_for_users_is_known() -> None:
    required = [
        re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?.*extra == .(\w+).", line)
        for line in importlib.metadata.requires("netfold") or []
    ]
    ours = {(found[1], found[2]) for found in required if found and found[2] not in ("test", "torchtest", "docs")}
    # openmpi is a library that mpi4py loads; an extra may bring others.
    assert {each for each in ours if each[0] not in ("openmpi", "netfold")} == set(EXTRAS.values())


def test_all_that_is_missing_is_one_line() -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        require_installed("no_such_torch", "json", "no_such_matplotlib")
    assert raised.value.name == "no_such_torch" and "no_such_matplotlib" in str(raised.value)
    line = what_to_install(NotInstalledError(("torch", "grpc", "p4", "matplotlib")))
    assert line == "this needs torch, grpcio, p4runtime and matplotlib: pip install 'netfold[train,controller,plot]'"
    assert what_to_install(NotInstalledError(("torch", "no_such"))) is None
