"""`make docs`: the site builds without a warning, and its pages need nobody else's servers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^\s"'>]*""")
# What Material would load from a CDN, where a page has a diagram.
DIAGRAM = re.compile(r"""class=["']?[^"'>]*\bmermaid\b""")


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", ".ci/mkdocs.yml"]
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.html")}
    assert Path("index.html") in pages
    assert {page: found for page, text in pages.items() if (found := LOADED.findall(text))} == {}
    assert [page for page, text in pages.items() if DIAGRAM.search(text)] == []
    assert (tmp_path / "search" / "search_index.json").exists()
