"""What a tenant may have at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from controller.errors import RequestError, ShortError
from controller.jobs.job import Job


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of a tenant; None is no limit.

    Attributes:
        ports: for its ranks and servers.
        slots: of its jobs' own; shared slots are nobody's.
        jobs: which are not queued.
    """

    ports: int | None = None
    slots: int | None = None
    jobs: int | None = None

    def require_room(self, job: Job, others: Iterable[Job]) -> None:
        """Check that a job fits beside the tenant's other jobs.

        Raises:
            RequestError: 422, it never will.
            ShortError: it will when others have ended.
        """
        limits = asdict(self)
        needed = usage([job])
        used = usage(other for other in others if other.tenant == job.tenant and other.state != "queued")
        for what, limit in limits.items():
            if limit is None or used[what] + needed[what] <= limit:
                continue
            text = f"tenant {job.tenant} may have {limit} {what}: job {job.name} needs {needed[what]}"
            if needed[what] > limit:
                raise RequestError(422, text)
            raise ShortError(f"{text}, and its other jobs have {used[what]}: wait for one to end")


def usage(jobs: Iterable[Job]) -> dict[str, int]:
    """What jobs have, or need, of what a Quota limits."""
    total = {"ports": 0, "slots": 0, "jobs": 0}
    for job in jobs:
        total["ports"] += job.members
        total["slots"] += 0 if job.policy == "shared" else job.slots * job.pool_count
        total["jobs"] += 1
    return total
