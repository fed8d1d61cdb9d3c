"""The wheel and the sdist as users get them: in an empty environment of each Python, used from another folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

PYTHONS = (*(pytest.param(version, marks=pytest.mark.crossed) for version in ("3.10", "3.12", "3.13")), "3.11")
BASE_MB = 150
PINNED = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
CPU_ONLY = "+cpu"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def find_python(version: str) -> str | None:
    """An interpreter of this version: this one, one on PATH, or pyenv's."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    # pyenv has a command for each version on PATH that may not work.
    working = (
        each for each in candidates if each and not subprocess.run([each, "-c", ""], capture_output=True).returncode
    )
    return next(working, None)


def run(*command: str | Path, **options: object) -> str:
    """What a command that works prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of this source tree by the build backend, in an environment that pip makes for it."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "venv", folder / "tools")
    tried = subprocess.run(
        [folder / "tools/bin/pip", "install", "-q", "build"], env=PINNED, capture_output=True, text=True, timeout=300
    )
    if tried.returncode:
        pytest.skip("needs a package index that pip reaches: PyPI, or a mirror of it")
    run(folder / "tools/bin/python", "-m", "build", "--sdist", "-o", folder, ROOT, env=PINNED)
    (made,) = folder.glob("*.tar.gz")
    return made


def wheel_of(source: Path, python: str, folder: Path) -> Path:
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source, env=PINNED)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def wheels(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The sdist's wheel for an interpreter. Compiling one takes a minute or two: each is made once."""

    @cache
    def made_by(python: str) -> Path:
        return wheel_of(sdist, python, tmp_path_factory.mktemp("wheel"))

    return made_by


def empty_environment(python: str, folder: Path) -> Path:
    """Its Python; what the one that it is made with has is not seen."""
    run(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def size_of(folder: Path) -> int:
    """Bytes on the disk."""
    return 512 * sum(file.stat().st_blocks for file in folder.rglob("*") if not file.is_symlink())


def test_an_sdist_is_this_tree_without_what_was_made(sdist: Path) -> None:
    """So that its wheel is the tree's."""
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2]: member for member in archive.getmembers() if member.isfile()}
        contents = {name: archive.extractfile(member).read() for name, member in files.items()}  # type: ignore[union-attr]
    del contents["PKG-INFO"]
    assert not {name for name in contents if name.endswith((".so", ".pyc")) or name.startswith((".venv", "build/"))}
    assert {
        "CMakeLists.txt",
        "constraints.txt",
        "p4/build/lock.json",
        "hostlib/native/wire/layout.h",
    } <= contents.keys()
    if not (ROOT / ".git").exists():
        return  # unpacked from an sdist
    tracked = {name for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0") if (ROOT / name).is_file()}
    assert contents.keys() == tracked
    for name, content in contents.items():
        assert content == (ROOT / name).read_bytes(), name


@pytest.mark.parametrize("version", PYTHONS)
def test_a_wheel_works_in_an_empty_environment(version: str, wheels: Callable[[str], Path], tmp_path: Path) -> None:
    found = find_python(version)
    if found is None:
        pytest.skip(f"needs Python {version} on PATH or of pyenv: pyenv install {version}")
    wheel = wheels(found)
    python = empty_environment(found, tmp_path / "env")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # No compiler is on this PATH.
    alone = {"PATH": str(python.parent), "HOME": str(elsewhere), "LANG": "C.UTF-8"}

    def netfold(*words: str) -> str:
        return run(python.with_name("netfold"), *words, cwd=elsewhere, env=alone)

    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())
    empty_bytes = size_of(packages)  # pip, and what else Python puts there
    run(python, "-m", "pip", "install", "-q", wheel, env=PINNED)
    assert size_of(packages) - empty_bytes < BASE_MB * 10**6
    assert "simulate" in netfold("--help")
    assert "inagg+mcast" in netfold(
        "simulate", "run", "--model", "resnet50", "--workers", "16", "--bandwidth", "100gbit"
    )
    done = subprocess.run(
        [python.with_name("netfold"), "train", "--mechanism", "ring"],
        cwd=elsewhere,
        env=alone,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, "error: this needs torch: pip install 'netfold[train]'\n")

    run(python, "-m", "pip", "install", "-q", f"{wheel}[controller]", env=PINNED)
    netfold("controller", "start", "--http", "127.0.0.1:0")
    try:
        assert "netfold-v1model-256" in netfold("controller", "status")
        switch = json.loads(netfold("controller", "status", "--json"))
        assert switch["http"].startswith("http://127.0.0.1:")
    finally:
        netfold("controller", "stop")
    assert not (elsewhere / ".cache").exists(), "nothing was compiled"


def test_training_in_an_empty_environment(wheels: Callable[[str], Path], tmp_path: Path) -> None:
    """With a job through controller and switch, and no compiler."""
    torch = pytest.importorskip("torch")
    if not torch.__version__.endswith(CPU_ONLY):
        pytest.skip("pip would bring torch with CUDA, several GB: needs an index with a CPU build")
    wheel = wheels(sys.executable)
    python = empty_environment(sys.executable, tmp_path / "env")
    # What is imported is compiled then: torch has thousands of files.
    run(python, "-m", "pip", "install", "-q", "--no-compile", f"{wheel}[train,controller]", env=PINNED)
    alone = {"PATH": os.environ["PATH"], "CC": "no-compiler", "HOME": str(tmp_path), "LANG": "C.UTF-8"}

    def netfold(*words: str) -> str:
        return run(python.with_name("netfold"), *words, cwd=tmp_path, env=alone)

    netfold("train", "--mechanism", "ring", "--model", "lenet", "--workers", "2", "--iterations", "2")
    assert "inagg+mcast" in netfold("bench", "--mechanism", "inagg+mcast", "--workers", "2", "--size", "64K")
    netfold("controller", "start", "--http", "127.0.0.1:0")
    try:
        http = json.loads(netfold("controller", "status", "--json"))["http"]
        words = ("--model", "lenet", "--workers", "2", "--iterations", "2", "--controller", http)
        netfold("train", "--mechanism", "inagg+mcast", *words)
    finally:
        netfold("controller", "stop")
