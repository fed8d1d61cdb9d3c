"""Tokens of ranks: whoever has one is that rank of that life of a job."""

from __future__ import annotations

import hashlib
import hmac

from controller.errors import RequestError
from controller.jobs.job import Job, Rank, member_name


def rank_token(job: Job, member: Rank) -> str:
    """Nothing but the job's key is kept: the token follows from it, the epoch, the rank, and what the rank sent."""
    said = f"{job.epoch}/{member.rank}/{member.nonce}"
    return hmac.new(bytes.fromhex(job.key), said.encode(), hashlib.sha256).hexdigest()


def is_owner(job: Job, member: Rank, token: str | None) -> bool:
    return token is not None and hmac.compare_digest(rank_token(job, member).encode(), token.encode())


def require_owner(job: Job, member: Rank, token: str | None) -> None:
    """Check that a request comes from the member that it is about.

    Raises:
        RequestError: 401 without a token, 403 with another one.
    """
    who = f"{member_name(member.rank)} of job {job.name}"
    if token is None:
        raise RequestError(401, f"only {who} may do this: send the token that it got when it joined")
    if not is_owner(job, member, token):
        raise RequestError(403, f"that is not the token of {who}, or one of an earlier life of the job")
