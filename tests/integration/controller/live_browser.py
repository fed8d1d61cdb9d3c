"""A page that goes on changing, in a real browser, headless: over the DevTools protocol, through pipes."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.emulation.pages.browser import BROWSER

PATIENCE_S = 60.0


class LivePage:
    """A page of a browser.

    Attributes:
        console: what the page, or the browser about it, has said.
        requested: the addresses of all that it has loaded.
    """

    def __init__(self, to: IO[bytes], back: IO[bytes]) -> None:
        self._to, self._back = to, back
        self._number = 0
        self._session: dict[str, str] = {}
        self.console: list[str] = []
        self.requested: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params, **self._session}
        self._to.write(json.dumps(command).encode() + b"\0")
        self._to.flush()
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])
            self._heard(message)

    def _receive(self) -> dict[str, Any]:
        whole = bytearray()
        while not whole.endswith(b"\0"):
            part = self._back.read(1)
            assert part, "the browser has ended"
            whole += part
        return dict(json.loads(whole[:-1]))

    def _heard(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded":
                self.console.append(json.dumps(message["params"]))
            case "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < give_up, f"still not {expression}: {self.console}"
            time.sleep(0.1)

    def appear(self, width: int, height: int, dark: bool = False) -> None:
        """The size of the window, and the colours that its reader prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> Path:
        """A picture of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path


@contextmanager
def live_page(folder: Path) -> Iterator[LivePage]:
    """An empty page; `folder` gets the browser's files."""
    assert BROWSER is not None
    theirs, to = os.pipe()
    back, answers = os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    # The protocol's pipes are descriptors 3 and 4.
    child = subprocess.Popen(
        ["bash", "-c", f'exec "$0" "$@" 3<&{theirs} 4>&{answers}', BROWSER, *options, "--remote-debugging-pipe",
         f"--user-data-dir={folder / 'browser'}"],
        pass_fds=(theirs, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    os.close(answers)
    try:
        with os.fdopen(to, "wb") as writing, os.fdopen(back, "rb") as reading:
            page = LivePage(writing, reading)
            yield page
            page._session = {}
            page.call("Browser.close")
        child.wait(20)
    finally:
        child.kill()
        child.wait()
