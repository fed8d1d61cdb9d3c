"""HTTP client for the controller, or for a primary and its standbys."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import Any

import httpx

from hostlib.errors import HostlibError

TIMEOUT_S = 10.0
API = "/v1"
TOKEN, AUTHORITY = "NETFOLD_CONTROLLER_TOKEN", "NETFOLD_CONTROLLER_CA"
PRIMARY = "Netfold-Primary"  # header of a standby's refusals: the address of the primary, if there is one
HANGING_S = 5.0  # with another controller to ask, one that does not answer is not waited for any longer


class HttpError(HostlibError):
    """No answer, or not one of a netfold controller."""


class RefusedError(HttpError):
    """The controller refused a request.

    Attributes:
        status: the HTTP status code.
        temporary: it said when to try again.
    """

    def __init__(self, status: int, detail: str, temporary: bool = False) -> None:
        super().__init__(detail)
        self.status = status
        self.temporary = temporary


class ControllerAddresses:
    """Asks one controller after the other, and remembers which one was the primary. Threads may share it.

    Args:
        text: URLs, separated by commas.
    """

    def __init__(self, text: str) -> None:
        self.urls = tuple(dict.fromkeys(url.strip().rstrip("/") for url in text.split(",") if url.strip())) or ("",)
        self._first = 0

    def __str__(self) -> str:
        return " or ".join(self.urls)

    @property
    def several(self) -> bool:
        return len(self.urls) > 1

    @property
    def strictest(self) -> str:
        """The address whose certificate needs checking, if any."""
        return next((url for url in self.urls if not url.startswith("http://")), self.urls[0])

    def patience_s(self, usual_s: float) -> float:
        """How long to wait for an answer of one of them."""
        return min(usual_s, HANGING_S) if self.several else usual_s

    def ask(self, send: Callable[[str], httpx.Response]) -> httpx.Response:
        """The primary's answer; a standby's refusal if no primary answers.

        Args:
            send: sends the request to the controller with this URL.

        Raises:
            httpx.HTTPError, httpx.InvalidURL: none answers.
        """
        failed: httpx.HTTPError | None = None
        refused: httpx.Response | None = None
        first = self._first
        for number in range(len(self.urls)):
            which = (first + number) % len(self.urls)
            try:
                response = send(self.urls[which])
            except httpx.HTTPError as error:
                failed = failed or error
                continue
            if not is_standby(response):
                self._first = which
                return response
            refused = response
        if refused is not None:
            return refused
        assert failed is not None
        raise failed


def is_standby(response: httpx.Response) -> bool:
    """Whether it is the refusal of a controller that is not the primary."""
    return PRIMARY in response.headers


def verification(url: str, authority: str | None = None) -> ssl.SSLContext | bool:
    """How to check a server's certificate; loading the authorities takes longer than a request without encryption.

    Args:
        authority: file with the certificate of the only authority to trust [default: $NETFOLD_CONTROLLER_CA, else
            those that this machine trusts].

    Raises:
        HttpError: that file is not there, or has no certificate.
    """
    if url.startswith("http://"):
        return False
    file = authority or os.environ.get(AUTHORITY)
    if not file:
        return True
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:  # ssl.SSLError is one
        raise HttpError(f"{AUTHORITY}: {file} cannot be read as a certificate: {error.strerror or error}") from error


def tenant_token() -> str | None:
    """The token to join with, in the environment; where the controller is on this machine none is needed."""
    return os.environ.get(TOKEN) or None


def decoded(response: httpx.Response) -> dict[str, Any]:
    """Decode the JSON object in a response.

    Raises:
        RefusedError: the controller refused the request.
        HttpError: the response is not a controller's.
    """
    try:
        body = dict(response.json())
    except (ValueError, TypeError):
        raise HttpError(f"{response.url} is not a netfold controller") from None
    if response.status_code != httpx.codes.OK:
        detail = str(body.get("detail", response.status_code))
        raise RefusedError(response.status_code, detail, "Retry-After" in response.headers)
    return body


def bearer(token: str | None) -> dict[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def call(
    method: str,
    controller: str,
    path: str,
    token: str | None = None,
    timeout_s: float = TIMEOUT_S,
    authority: str | None = None,
) -> dict[str, Any]:
    """Call a path of a controller's API.

    Args:
        controller: URL, or several, separated by commas.

    Raises:
        RefusedError: the controller refused the request.
        HttpError: no answer, or not one of a netfold controller.
    """
    controllers = ControllerAddresses(controller)
    verify = verification(controllers.strictest, authority)
    headers, wait_s = bearer(token), controllers.patience_s(timeout_s)

    def send(url: str) -> httpx.Response:
        return httpx.request(method, url + API + path, headers=headers, timeout=wait_s, verify=verify)

    try:
        return decoded(controllers.ask(send))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HttpError(f"no controller answers at {controllers} ({error})") from error


def get(controller: str, path: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """GET a path of a controller's API.

    Raises:
        RefusedError, HttpError: see `call`.
    """
    return call("GET", controller, path, timeout_s=timeout_s)


def controller_status(controller: str) -> dict[str, Any]:
    """GET /v1/status: switches, their counters, and jobs.

    Raises:
        HttpError: see `get`.
    """
    return get(controller, "/status")
