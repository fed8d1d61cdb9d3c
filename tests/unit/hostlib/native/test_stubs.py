"""The native modules' types, as a checkout has them for whoever reads or checks the Python, are those of the modules."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from hostlib import _engine
from simulation import _kernel

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("module", [_engine, _kernel], ids=lambda module: module.__name__)
def test_the_committed_stub_is_the_installed_modules(module: ModuleType) -> None:
    """The build makes it of the module: copy the installed one where they differ."""
    assert module.__file__ is not None
    committed = ROOT.joinpath(*module.__name__.split(".")).with_suffix(".pyi")
    installed = Path(module.__file__).with_name(committed.name)
    assert committed.read_text() == installed.read_text(), f"cp {installed} {committed}"
