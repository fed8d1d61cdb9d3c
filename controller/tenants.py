"""Tenants: who may join, by a token, and with which quotas. Tokens are kept as hashes in the controller's state."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from dataclasses import asdict, dataclass

from controller.errors import RequestError
from controller.jobs.quota import Quota
from controller.state_store import StateStore


@dataclass(frozen=True, slots=True)
class Token:
    """A token, but not its secret. `created_s` counts from 1970."""

    id: str
    tenant: str
    quota: Quota
    created_s: float


class Tenants:
    """The tokens in a controller's state; another process may change them at any time."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def create(self, tenant: str, quota: Quota) -> str:
        """Make a token; it is told once, and its quota is the tenant's from now on.

        Raises:
            StateError: it cannot be saved.
        """
        number, token = secrets.token_hex(4), secrets.token_urlsafe(32)
        with self._store.transaction() as database:
            database.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?)",
                (number, _hash(token), tenant, json.dumps(asdict(quota)), time.time()),
            )
        return token

    def tokens(self) -> list[Token]:
        """All tokens, oldest first."""
        rows = self._store.read("SELECT id, tenant, quota, created_s FROM tokens ORDER BY created_s")
        return [Token(number, tenant, Quota(**json.loads(quota)), at) for number, tenant, quota, at in rows]

    def revoke(self, number: str) -> None:
        """Let a token be worth nothing; jobs that joined with it go on.

        Raises:
            RequestError: 404, there is none with this id.
            StateError: the change cannot be saved.
        """
        with self._store.transaction() as database:
            found = database.execute("DELETE FROM tokens WHERE id = ?", (number,)).rowcount
        if not found:
            known = ", ".join(token.id for token in self.tokens()) or "none"
            raise RequestError(404, f"there is no token {number}; tokens: {known}")

    def tenant_of(self, token: str) -> str | None:
        """Whose token that is; None if it is nobody's."""
        rows = self._store.read("SELECT tenant FROM tokens WHERE hash = ?", _hash(token))
        return str(rows[0][0]) if rows else None

    def quota(self, tenant: str) -> Quota:
        """What a tenant may have: as its last token says."""
        query = "SELECT quota FROM tokens WHERE tenant = ? ORDER BY created_s DESC LIMIT 1"
        rows = self._store.read(query, tenant)
        return Quota(**json.loads(rows[0][0])) if rows else Quota()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
