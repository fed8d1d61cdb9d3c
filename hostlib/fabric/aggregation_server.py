"""A server of a job on the fabric: it answers the switch's sums."""

from __future__ import annotations

import threading

from hostlib._engine import Server
from hostlib.fabric import engine_checks
from hostlib.fabric.aggregation import POLICIES
from hostlib.fabric.failover import LOOK_S, Returning, failures_seen
from hostlib.fabric.job_client import FabricSession, Place, Rejoin, join
from hostlib.fabric.socket_errors import socket_errors
from hostlib.schedules.schedule import FabricUse
from hostlib.transport.rank_context import RankContext


class FabricServer:
    """The server of a controller's job. If the workers fail over to a new job, it follows them.

    Raises:
        JoinError: see hostlib.fabric.job_client.
    """

    def __init__(
        self, use: FabricUse, context: RankContext, controller: str, job: str, address: str, lanes: int
    ) -> None:
        self._use, self._context, self._controller, self._job = use, context, controller, job
        with socket_errors():
            self._lanes = [Server(address) for _ in range(lanes)]
        self._failures = 0
        self._returning: Returning | None = None
        self.session = self._join(job)
        self._answer(self.session.place)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follow", daemon=True)
        self._thread.start()

    def _join(self, job: str, again: Rejoin | None = None) -> FabricSession:
        return join(
            self._controller,
            job,
            None,
            self._context.world_size,
            self._lanes[0].address,
            [lane.port for lane in self._lanes],
            self._context.deadline_s,
            lambda: self.stats()["packets_received"],
            slots=self._context.slots,
            policy=POLICIES[self._use],
            again=again,
            patient=True,
            sockets=[lane.echo for lane in self._lanes],
        )

    @socket_errors()
    def _answer(self, place: Place) -> None:
        to_workers = self._use is FabricUse.TO_SERVER
        for number, (lane, pool) in enumerate(zip(self._lanes, place.pools, strict=True)):
            lane.configure(
                place.fabric_address,
                place.fabric_port,
                place.job_id,
                place.epoch,
                place.world_size,
                pool.first_slot,
                pool.slots,
                place.elements,
                engine_checks.of_sums(place),
                workers=[worker.end(number) for worker in place.workers] if to_workers else [],
            )

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_S):
            failures = failures_seen(self._context)  # The workers have moved to another job.
            if failures > self._failures:
                self._failures = failures
                self._leave_for(f"{self._job}.{failures}")
            session = self._returning.session if self._returning is not None else None
            if session is not None and session is not self.session:
                self.session = session
                self._answer(session.place)

    def _leave_for(self, job: str) -> None:
        if self._returning is not None:
            self._returning.adopted()
        self._returning = Returning(self.session, lambda again: self._join(job, again))

    def stats(self) -> dict[str, int]:
        """Packet counters, over all lanes."""
        each = [lane.stats() for lane in self._lanes]
        return {name: sum(stats[name] for stats in each) for name in each[0]}

    def close(self) -> None:
        """Stop answering, and give up the place."""
        self._ended.set()
        self._thread.join()
        for lane in self._lanes:
            lane.halt()
        if self._returning is not None:
            self._returning.close()
        else:
            self.session.leave()
