"""`netfold mpi-shim`: the shim is compiled once for each MPI library, and what is said where it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostlib.errors import RunError
from hostlib.mpi_shim.shim_library import find_mpicc, shim_library
from tests.conftest import MPIRUN


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "netfold"


def mpicc(folder: Path, script: str) -> Path:
    path = folder / "mpicc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.mpi
def test_it_is_compiled_once_for_each_library(cache: Path, tmp_path: Path) -> None:
    here = MPIRUN.with_name("mpicc")
    library = shim_library(here)
    made = library.stat().st_mtime_ns
    assert library.parent == cache and shim_library(here) == library and library.stat().st_mtime_ns == made
    other = shim_library(mpicc(tmp_path, f'exec {here} -DLINE_OF_ANOTHER_HEADER "$@"'))
    assert other != library and sorted(cache.iterdir()) == sorted([library, other])


def test_mpicc_on_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = mpicc(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_mpicc(None) == first == find_mpicc(Path("mpicc")) == find_mpicc(first)


def test_without_mpicc_it_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(RunError, match=r"^no mpicc to compile the shim with: .*pip install 'netfold\[mpi\]'"):
        find_mpicc(None)
    with pytest.raises(RunError, match=r"^no /nowhere/mpicc to compile the shim with"):
        find_mpicc(Path("/nowhere/mpicc"))


def test_what_mpicc_refuses_is_one_line_and_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    refusing = mpicc(tmp_path, 'echo "a note" >&2; echo "fatal error: mpi.h: no such file" >&2; exit 1')
    with pytest.raises(RunError) as refused:
        shim_library(refusing)
    assert str(refused.value) == f"{refusing} does not compile the shim: fatal error: mpi.h: no such file"
    assert not cache.exists()


@pytest.mark.mpi
def test_a_cache_that_cannot_be_written_is_one_line(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(RunError, match=r"^the shim cannot be kept in .*: .*; set XDG_CACHE_HOME to a folder"):
        shim_library(MPIRUN.with_name("mpicc"))
