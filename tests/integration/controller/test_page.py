"""The controller's page in a real browser, headless: what it shows are the switch's own counts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Fabric
from tests.emulation.pages.browser import BROWSER
from tests.integration.controller.live_browser import LivePage, live_page

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium on PATH: apt-get install chromium")

# Rows of a table on the page, as texts.
ROWS = "[...document.querySelectorAll({where!r} + ' tbody tr')].map((row) => [...row.cells].map((it) => it.innerText))"
DESKTOP, PHONE = (1280, 900), (375, 700)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[LivePage]:
    with live_page(tmp_path) as opened:
        yield opened


def rows(page: LivePage, where: str) -> list[list[str]]:
    return list(page.value(ROWS.format(where=where)))


def number(text: str) -> int:
    return int(text.replace(",", ""))


def join(fabric: Fabric, job: str, rank: int, **changes: Any) -> tuple[int, Any]:
    body = {"world_size": 2, "address": "127.0.0.1", "udp_ports": [5000 + rank], **changes}
    return fabric.call("POST", f"/v1/jobs/{job}/ranks/{rank}", body)


def require_that_the_page_agrees(page: LivePage, status: dict[str, Any]) -> None:
    """Compare with a status of a fabric where nothing happens any more."""
    (switch,) = status["switches"]
    shown = {row[0]: [number(text) for text in row[5:]] for row in rows(page, '[data-switch="switch"]')}
    ways = ("packets_in", "packets_out", "bytes_in", "bytes_out")
    assert shown == {port: [counts[way] for way in ways] for port, counts in switch["ports"].items()}
    for kind in ("drops", "events"):
        assert {name: number(total) for name, total, _ in rows(page, f"#{kind}")} == {
            name: total for name, total in status[kind].items() if total
        }


def test_two_jobs_train_and_the_page_counts_what_the_switch_counts(
    start_fabric: Callable[..., Fabric], page: LivePage
) -> None:
    fabric = start_fabric("--ports", "4", "--elements", "64")
    page.appear(*DESKTOP)
    page.open(f"{fabric.http}/")
    command = [sys.executable, "-m", "hostlib", "train", "--controller", fabric.http, "--workers", "2", "--no-progress"]
    training = [subprocess.Popen([*command, "--epochs", "1000"], cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(2)]
    try:
        page.wait_for("before.jobs.filter((job) => job.state === 'ready').length === 2")
        page.wait_for("document.querySelectorAll('#slots span[title]').length === 2")
        assert [row[1:5] for row in rows(page, "#jobs")] == [["ready", "sum", "2/2", "128"]] * 2
        # Rates, while packets flow.
        page.wait_for("/[1-9].*bit/.test(document.querySelector('[data-switch] td.in')?.innerText)")
        page.wait_for("before.events.completed > 1000")
    finally:
        for child in training:
            child.kill()
            child.wait()
    # What is killed does not leave.
    for job in fabric.status()["jobs"]:
        assert fabric.call("DELETE", f"/v1/jobs/{job['name']}")[0] == 200
    page.wait_for("before.jobs.length === 0")
    settled = fabric.status()
    page.wait_for(f"before.time_s > {settled['time_s']}")
    assert settled["events"]["completed"] > 1000
    require_that_the_page_agrees(page, settled)
    kinds = page.value("[...document.querySelectorAll('#log li span:first-of-type')].map((it) => it.innerText)")
    assert sorted(kinds) == sorted(["controller-started", *["job-waiting", "job-ready", "job-ended"] * 2])
    assert page.console == []
    assert all(url.startswith(fabric.http) for url in page.requested)


def test_it_follows_what_happens_and_shows_names_as_text(fabric: Fabric, page: LivePage) -> None:
    page.appear(*DESKTOP)
    page.open(f"{fabric.http}/")
    evil = "<img src=x onerror=alert(1)>"
    assert join(fabric, evil, 0)[0] == 200
    page.wait_for(f"document.querySelector('#jobs').innerText.includes({evil!r})")
    page.wait_for(f"document.querySelector('#log').innerText.includes({evil!r})")
    # And where it comes with the page.
    page.open(f"{fabric.http}/")
    assert evil in page.value("document.querySelector('#jobs').innerText")
    assert page.value("document.querySelectorAll('img').length") == 0
    # How fast a job is follows from its ranks' heartbeats.
    for position in (10, 1000):
        beat = {"position": position}
        assert fabric.call("POST", f"/v1/jobs/{evil}/ranks/0/heartbeat", beat)[0] == 200
        page.wait_for(f"document.querySelector('#jobs').innerText.includes('{position:,}')")
    assert float(rows(page, "#jobs")[0][6].split()[0]) > 0
    assert fabric.call("POST", "/v1/switches/switch/drain")[0] == 200
    page.wait_for("document.querySelector('#switches').innerText.includes('takes no new jobs')")
    assert fabric.call("DELETE", "/v1/switches/switch/drain")[0] == 200
    assert fabric.call("DELETE", f"/v1/jobs/{evil}/ranks/0")[0] == 200
    page.wait_for(f"!document.querySelector('#jobs').innerText.includes({evil!r})")
    assert page.console == []


def test_it_says_when_nobody_answers_and_goes_on_when_somebody_does(
    start_fabric: Callable[..., Fabric], page: LivePage
) -> None:
    fabric = start_fabric("--ports", "2", "--elements", "64")
    page.open(f"{fabric.http}/")
    page.wait_for("document.querySelector('#live').innerText === 'live'")
    assert fabric.stop()
    page.wait_for("document.querySelector('#live').innerText.includes('does not answer')")
    start_fabric("--ports", "2", "--elements", "64", "--http", fabric.http.removeprefix("http://"))
    page.wait_for("document.querySelector('#live').innerText === 'live'")


@pytest.mark.parametrize(
    ("dark", "paper"), [(False, "rgb(254, 254, 255)"), (True, "rgb(21, 24, 28)")], ids=["light", "dark"]
)
def test_it_fits_a_phone_and_follows_the_reader_s_colours(
    fabric: Fabric, page: LivePage, dark: bool, paper: str
) -> None:
    name = "a-job-with-quite-a-long-name-and-nowhere-to-break-it" * 2
    assert join(fabric, name, 0)[0] == 200
    for width, height in (DESKTOP, PHONE):
        page.appear(width, height, dark)
        page.open(f"{fabric.http}/")
        page.wait_for("document.querySelector('#live').innerText === 'live'")
        assert page.value("document.documentElement.scrollWidth") == width
        assert page.value("getComputedStyle(document.body).backgroundColor") == paper
    assert fabric.call("DELETE", f"/v1/jobs/{name}/ranks/0")[0] == 200
