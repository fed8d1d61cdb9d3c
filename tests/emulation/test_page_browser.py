"""The page of `emulation report` in a real browser, headless: it says nothing on the console and shows what it should."""

from __future__ import annotations

import html
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from emulation.report.build import write_report
from emulation.report.headline import answer
from emulation.report.result_files import read
from emulation.report.summary import Summary
from tests.unit.emulation.report.example_experiment import write_experiment

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE_WIDTH = 375

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium on PATH: apt-get install chromium")
pytest.importorskip("matplotlib", reason="an extra: pip install 'netfold[plot]'")


def browse(page: Path, *options: str) -> tuple[str, list[str]]:
    """What the browser prints, and what the page said on its console."""
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
         "--v=0", f"--user-data-dir={page.parent / 'browser'}", *options, page.as_uri()],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


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
    frame = f'<iframe width="{PHONE_WIDTH}" height="700" srcdoc="{html.escape(page.read_text())}"></iframe>'
    measure = "document.title = document.querySelector('iframe').contentDocument.documentElement.scrollWidth"
    phone = page.with_name("phone.html")
    phone.write_text(f"<!DOCTYPE html><title></title>{frame}<script>onload = () => {{ {measure} }}</script>")
    dom, console = browse(phone, "--dump-dom")
    assert console == []
    found = re.search(r"<title>(\d+)</title>", dom)
    assert found is not None and PHONE_WIDTH - 30 < int(found[1]) <= PHONE_WIDTH


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
