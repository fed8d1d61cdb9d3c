"""HTTP client for the controller."""

from __future__ import annotations

from typing import Any

import httpx

from hostlib.errors import HostlibError

TIMEOUT_S = 10.0
API = "/v1"


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


def needs_certificates(url: str) -> bool:
    """Whether TLS certificates are needed; loading them takes longer than a request without encryption."""
    return not url.startswith("http://")


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
    method: str, controller: str, path: str, token: str | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Call a path of a controller's API.

    Raises:
        RefusedError: the controller refused the request.
        HttpError: no answer, or not one of a netfold controller.
    """
    url = controller.rstrip("/") + API + path
    try:
        return decoded(
            httpx.request(method, url, headers=bearer(token), timeout=timeout_s, verify=needs_certificates(url))
        )
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
