"""The page of `netfold ask --search --report` in a real browser, headless, on a desktop and on a phone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from netfold.cli import main
from tests.emulation.pages.browser import BROWSER, browse, require_that_a_phone_shows_all

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium on PATH: apt-get install chromium")
pytest.importorskip("matplotlib", reason="an extra: pip install 'netfold[plot]'")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recommended") / "page.html"
    words = ["ask", "--search", "--model", "alexnet", "--gpu", "h100", "--mechanism", "ring,inagg+mcast,1f1b/ring"]
    done = CliRunner().invoke(main, [*words, "--report", str(path)])
    assert done.exit_code == 0, done.output
    return path


def test_it_is_rendered_without_a_word(page: Path) -> None:
    dom, console = browse(page, "--dump-dom")
    assert console == []
    for heading in (
        "What would change the answer",
        "Bandwidth and GPU speed",
        "Bandwidth and number of workers",
        "Plans",
        "Assumptions",
    ):
        assert f"<h2>{heading}</h2>" in dom
    assert len(re.findall(r'class="[a-z]+ today"', dom)) == 2  # one in each map


def test_nothing_sticks_out_on_a_phone(page: Path) -> None:
    require_that_a_phone_shows_all(page)
