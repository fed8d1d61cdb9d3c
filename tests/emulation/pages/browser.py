"""Pages in a real browser, headless."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE_WIDTH = 375


def browse(page: Path, *options: str) -> tuple[str, list[str]]:
    """What the browser prints, and what the page said on its console."""
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
         "--v=0", f"--user-data-dir={page.parent / 'browser'}", *options, page.as_uri()],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def require_that_a_phone_shows_all(page: Path) -> None:
    """Check that nothing of a page sticks out on a phone, and that it says nothing on the console."""
    frame = f'<iframe width="{PHONE_WIDTH}" height="700" srcdoc="{html.escape(page.read_text())}"></iframe>'
    measure = "document.title = document.querySelector('iframe').contentDocument.documentElement.scrollWidth"
    phone = page.with_name("phone.html")
    phone.write_text(f"<!DOCTYPE html><title></title>{frame}<script>onload = () => {{ {measure} }}</script>")
    dom, console = browse(phone, "--dump-dom")
    assert console == []
    found = re.search(r"<title>(\d+)</title>", dom)
    assert found is not None and PHONE_WIDTH - 30 < int(found[1]) <= PHONE_WIDTH
