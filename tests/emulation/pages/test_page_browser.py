"""The page of `emulation report` in a real browser, headless: it says nothing on the console and shows what it should."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path

import pytest

from emulation.report.build import write_report
from emulation.report.headline import answer
from emulation.report.result_files import read
from emulation.report.summary import Summary
from tests.emulation.pages.browser import BROWSER, browse, require_that_a_phone_shows_all
from tests.unit.emulation.report.example_experiment import write_experiment

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium on PATH: apt-get install chromium")
pytest.importorskip("matplotlib", reason="an extra: pip install 'netfold[plot]'")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, one bandwidth and two numbers of workers; some cells are invalid."""
    folder = tmp_path_factory.mktemp("browsed") / "example"
    mechanisms = ("inagg+mcast:via_server=yes:servers=2", "inagg+mcast", "ring", "gloo")
    write_experiment(folder, ("alexnet", "lenet"), mechanisms, ("40gbit",), (2, 4), dilation=10)
    return write_report(folder, None)[1]


def test_the_console_is_heard(tmp_path: Path) -> None:
    broken = tmp_path / "wrong.html"
    broken.write_text("<script>nothing.there()</script><img src='http://127.0.0.1:9/x.png'>")
    _, console = browse(broken, "--dump-dom")
    assert any("nothing is not defined" in line for line in console)


def test_the_page_is_rendered_without_a_word(page: Path) -> None:
    dom, console = browse(page, "--dump-dom")
    assert console == []
    assert len(re.findall(r"<tr data-cell=", dom)) == 16
    assert dom.count("<svg ") == dom.count("<figcaption>") == 8
    shown = html.unescape(dom)
    assert all(sentence in shown for sentence in answer(Summary(read(page.parent))))
    for heading in ("Ranking", "Iteration time", "Bytes per node", "Computing and communication", "Invalid cells"):
        assert f"<h2>{heading}</h2>" in dom


def test_nothing_sticks_out_on_a_phone(page: Path) -> None:
    require_that_a_phone_shows_all(page)


@pytest.mark.parametrize(("scheme", "paper"), [("1", (254, 254, 255)), ("0", (21, 24, 28))], ids=["light", "dark"])
def test_it_follows_the_reader_s_colour_scheme(page: Path, tmp_path: Path, scheme: str, paper: tuple[int, ...]) -> None:
    from PIL import Image

    picture = tmp_path / "page.png"
    browse(page, f"--screenshot={picture}", f"--blink-settings=preferredColorScheme={scheme}", "--window-size=900,2400")
    shown = Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")
    colours = {colour for _, colour in shown.getcolors(1 << 24) or ()}
    assert shown.getpixel((3, 3)) == paper
    assert ((255, 255, 255) in colours) == (paper == (255, 255, 255))  # plots have no paper of their own
    assert len(colours) > 50  # and they are there


def test_it_prints(page: Path, tmp_path: Path) -> None:
    pdf = tmp_path / "page.pdf"
    _, console = browse(page, f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
    assert console == []
    assert pdf.read_bytes().startswith(b"%PDF") and pdf.stat().st_size > 50_000
