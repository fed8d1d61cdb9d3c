"""Asking a controller by HTTP."""

from __future__ import annotations

from typing import Any

import httpx

from hostlib.errors import HostlibError

TIMEOUT_S = 10.0


class HttpError(HostlibError):
    """Nobody answers, or not as a controller does."""


class RefusedError(HttpError):
    """A controller's answer is no.

    Attributes:
        status: HTTP's.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def needs_certificates(url: str) -> bool:
    """Loading them takes longer than asking a controller without encryption."""
    return not url.startswith("http://")


def decoded(response: httpx.Response) -> dict[str, Any]:
    """The JSON object that an answer holds.

    Raises:
        RefusedError: the answer is no.
        HttpError: it is not a controller's.
    """
    try:
        body = dict(response.json())
    except (ValueError, TypeError):
        raise HttpError(f"{response.url} is not a netfold controller") from None
    if response.status_code != httpx.codes.OK:
        raise RefusedError(response.status_code, str(body.get("detail", response.status_code)))
    return body


def get(controller: str, path: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """What a controller's GET answers.

    Raises:
        RefusedError: the answer is no.
        HttpError: nobody answers, or not as a controller does.
    """
    url = controller.rstrip("/") + path
    try:
        return decoded(httpx.get(url, timeout=timeout_s, verify=needs_certificates(url)))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HttpError(f"no controller answers at {controller} ({error})") from error


def controller_status(controller: str) -> dict[str, Any]:
    """What GET /status says: switches, their counters, and jobs.

    Raises:
        HttpError: see `get`.
    """
    return get(controller, "/status")
