"""The page of `netfold ask --search --report` in a real browser, headless, on a desktop and on a phone."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from netfold.cli import main
from tests.emulation.test_page_browser import BROWSER, PHONE_WIDTH, browse

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
    for heading in ("What would change the answer", "Bandwidth and GPU speed", "Plans", "Assumptions"):
        assert f"<h2>{heading}</h2>" in dom
    assert len(re.findall(r'class="[a-z]+ today"', dom)) == 1


def test_nothing_sticks_out_on_a_phone(page: Path) -> None:
    frame = f'<iframe width="{PHONE_WIDTH}" height="700" srcdoc="{html.escape(page.read_text())}"></iframe>'
    measure = "document.title = document.querySelector('iframe').contentDocument.documentElement.scrollWidth"
    phone = page.with_name("phone.html")
    phone.write_text(f"<!DOCTYPE html><title></title>{frame}<script>onload = () => {{ {measure} }}</script>")
    dom, console = browse(phone, "--dump-dom")
    assert console == []
    found = re.search(r"<title>(\d+)</title>", dom)
    assert found is not None and PHONE_WIDTH - 30 < int(found[1]) <= PHONE_WIDTH
