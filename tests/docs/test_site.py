"""`make docs`: the site builds without a warning, and its pages need nobody else's servers."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE_WIDTH = 390

LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^\s"'>]*""")
# What Material would load from a CDN, where a page has a diagram.
DIAGRAM = re.compile(r"""class=["']?[^"'>]*\bmermaid\b""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", ".ci/mkdocs.yml"]
    done = subprocess.run([*command, "--site-dir", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {path.relative_to(site): path.read_text() for path in site.rglob("*.html")}
    assert Path("index.html") in pages
    assert {page: found for page, text in pages.items() if (found := LOADED.findall(text))} == {}
    assert [page for page, text in pages.items() if DIAGRAM.search(text)] == []
    assert (site / "search" / "search_index.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium on PATH: apt-get install chromium")
def test_no_page_sticks_out_on_a_phone(site: Path, tmp_path: Path) -> None:
    assert BROWSER is not None
    pages = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    frames = "".join(f'<iframe width="{PHONE_WIDTH}" height="800" src="{path.as_uri()}"></iframe>' for path in pages)
    measure = "[...document.querySelectorAll('iframe')].map(f => f.contentDocument.scrollingElement.scrollWidth).join()"
    phone = tmp_path / "phone.html"
    phone.write_text(f"<title></title>{frames}<script>onload = () => {{ document.title = {measure} }}</script>")
    done = subprocess.run(
        [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom",
         "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'browser'}", phone.as_uri()],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    found = re.search(r"<title>([\d,]+)</title>", html.unescape(done.stdout))
    assert found is not None
    widths = dict(zip(pages, map(int, found[1].split(",")), strict=True))
    assert {page.relative_to(site): width for page, width in widths.items() if width > PHONE_WIDTH} == {}
