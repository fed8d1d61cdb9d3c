"""What has changed in the table of jobs, as events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.events.event_log import EndedJob, EventLog, Kind
from controller.jobs.job import Job, Rank, member_name


@dataclass(slots=True)
class Watched:
    """A job as it was when it was last looked at. `members` outlive it, and say what became of them."""

    job: Job
    members: list[Rank]
    state: str
    lost: set[int]
    began_s: float
    ready_s: float | None


class JobWatch:
    """Compares the jobs with those of the last time; the table of jobs need not know of events."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._watched: dict[tuple[str, int], Watched] = {}

    def adopt(self, jobs: Iterable[Job]) -> None:
        """Take over the jobs of an earlier controller: nothing has happened to them."""
        for job in jobs:
            times: dict[str, float] = {e.kind: e.time_s for e in self._events.last(1 << 20) if e.job == job.name}
            now = self._events.now()
            ready_s = times.get("job-ready", now) if job.state == "ready" else None
            self._look_at(job, times.get("job-waiting", now), ready_s)

    def compare(self, jobs: Iterable[Job], why: str | None = None) -> None:
        """Record what has happened since the last time.

        Args:
            why: the reason for jobs' end, where it is not what their ranks did.
        """
        current = {(job.name, job.epoch): job for job in jobs}
        for key in self._watched.keys() - current.keys():
            self._ended(self._watched.pop(key), why)
        for key, job in current.items():
            before = self._watched.get(key)
            if before is None:
                first = member_name(next((rank.rank for rank in job.everybody), 0))
                text = f"job {job.name} waits for its {job.world_size} ranks; {first} came first"
                kind: Kind = "job-waiting"
                if job.state == "queued":
                    kind, text = (
                        "job-queued",
                        f"job {job.name} is queued: there is no room for its {job.world_size} ranks",
                    )
                self._events.append(kind, text, job.name)
            elif before.state == "queued" and job.state != "queued":
                self._events.append("job-waiting", f"job {job.name} leaves the queue: there is room for it", job.name)
            self._compare(job, before)

    def _compare(self, job: Job, before: Watched | None) -> None:
        now = self._events.now()
        began_s, ready_s = (before.began_s, before.ready_s) if before is not None else (now, None)
        if job.state == "ready" and ready_s is None:
            ready_s = now
            slots = job.slots * job.pool_count
            text = f"job {job.name} is ready: {job.world_size} ranks, {slots} slots, policy {job.policy}, a new epoch"
            self._events.append("job-ready", text, job.name)
        lost = before.lost if before is not None else set()
        for rank in job.everybody:
            who = f"{member_name(rank.rank)} of job {job.name}"
            if rank.state == "lost" and rank.rank not in lost:
                self._events.append("rank-lost", f"{who} sends no heartbeats", job.name, rank.rank, rank.switch)
            elif rank.state == "joined" and rank.rank in lost:
                self._events.append("rank-back", f"{who} sends heartbeats again", job.name, rank.rank, rank.switch)
        self._look_at(job, began_s, ready_s)

    def _look_at(self, job: Job, began_s: float, ready_s: float | None) -> None:
        members = job.everybody
        lost = {rank.rank for rank in members if rank.state == "lost"}
        self._watched[job.name, job.epoch] = Watched(job, members, job.state, lost, began_s, ready_s)

    def _ended(self, watched: Watched, why: str | None) -> None:
        job = watched.job
        for rank in watched.members:
            if rank.state == "lost" and rank.rank not in watched.lost:
                text = f"{member_name(rank.rank)} of job {job.name} sends no heartbeats"
                self._events.append("rank-lost", text, job.name, rank.rank, rank.switch)
        why = why or _reason(watched.members)
        self._events.append("job-ended", f"job {job.name} has ended: {why}", job.name)
        self._events.ended(
            EndedJob(
                job.name,
                job.policy,
                job.world_size,
                job.slots * job.pool_count,
                round(watched.began_s, 3),
                None if watched.ready_s is None else round(watched.ready_s, 3),
                round(self._events.now(), 3),
                why,
                {member_name(rank.rank): rank.position for rank in watched.members},
            )
        )


def _reason(members: list[Rank]) -> str:
    """What the ranks did that ended their job."""
    lost = [member_name(rank.rank) for rank in members if rank.state == "lost"]
    if lost:
        return f"no heartbeats from {', '.join(lost)}"
    if all(rank.state == "left" for rank in members):
        return "its ranks have left"
    return "the controller ended it"
