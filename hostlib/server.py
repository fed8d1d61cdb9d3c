"""A server's end of the fabric: it answers what the switch has summed."""

from __future__ import annotations

import threading

from hostlib._engine import Server
from hostlib.fabric import POLICIES, Returning
from hostlib.group import Group
from hostlib.join import FabricSession, Place, join
from hostlib.schedule import FabricUse

FOLLOW_S = 0.05  # how often a server looks whether the workers have gone to another job


class FabricServer:
    """The server of a controller's job. When the workers have found the fabric dead, it goes with them to the next one.

    Raises:
        JoinError: see hostlib.join.
    """

    def __init__(self, use: FabricUse, group: Group, controller: str, job: str, address: str, lanes: int) -> None:
        self._use, self._group, self._controller, self._job = use, group, controller, job
        self._lanes = [Server(address) for _ in range(lanes)]
        self._failures = 0
        self._returning: Returning | None = None
        self.session = self._join(job)
        self._answer(self.session.place)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follow", daemon=True)
        self._thread.start()

    def _join(self, job: str, cancelled: threading.Event | None = None) -> FabricSession:
        return join(
            self._controller,
            job,
            None,
            self._group.world_size,
            self._lanes[0].address,
            [lane.port for lane in self._lanes],
            self._group.deadline_s,
            lambda: self.stats()["packets_received"],
            policy=POLICIES[self._use],
            cancelled=cancelled,
            patient=True,
        )

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
                workers=[worker.end(number) for worker in place.workers] if to_workers else [],
            )

    def _follow(self) -> None:
        while not self._ended.wait(FOLLOW_S):
            signs = self._group.liveness.signs()[: self._group.world_size]
            failures = max(sign.failures if sign is not None else 0 for sign in signs)
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
        self._returning = Returning(self.session, lambda cancelled: self._join(job, cancelled))

    def stats(self) -> dict[str, int]:
        """Counters of packets, over all lanes."""
        each = [lane.stats() for lane in self._lanes]
        return {name: sum(stats[name] for stats in each) for name in each[0]}

    def close(self) -> None:
        """Stop answering, and give the place back."""
        self._ended.set()
        self._thread.join()
        for lane in self._lanes:
            lane.halt()
        if self._returning is not None:
            self._returning.close()
        else:
            self.session.leave()
