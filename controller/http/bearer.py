"""The token of a request: the header `Authorization: Bearer TOKEN`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

_scheme = HTTPBearer(auto_error=False, description="A rank's token, which it gets when it joins, or the operator's.")


def _token(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_scheme)]) -> str | None:
    return credentials.credentials if credentials is not None else None


Bearer = Annotated[str | None, Depends(_token)]
