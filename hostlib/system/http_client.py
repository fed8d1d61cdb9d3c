"""HTTP client for the controller."""

from __future__ import annotations

import os
import ssl
from typing import Any

import httpx

from hostlib.errors import HostlibError

TIMEOUT_S = 10.0
API = "/v1"
TOKEN, AUTHORITY = "NETFOLD_CONTROLLER_TOKEN", "NETFOLD_CONTROLLER_CA"
PRIMARY = "Netfold-Primary"  # header of a standby's refusals: the address of the primary, if there is one


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

    Raises:
        RefusedError: the controller refused the request.
        HttpError: no answer, or not one of a netfold controller.
    """
    url = controller.rstrip("/") + API + path
    verify = verification(url, authority)
    try:
        return decoded(httpx.request(method, url, headers=bearer(token), timeout=timeout_s, verify=verify))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HttpError(f"no controller answers at {controller} ({error})") from error


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
