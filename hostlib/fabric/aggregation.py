"""In-network aggregation on a rank: the packet engine in a controller's job, and failover.

If the switch returns no results though every rank waits for them, the ranks agree on what each of them already has.
(The engine keeps every slot's last result, and no rank can be more than one use of a slot ahead.) They sum the rest
over the hosts: the same integers under the same exponents, hence the same bits.

Once all ranks have joined a new job on the fabric, they return to it together, between two tensors. Source: shared
design, "Failure semantics"; docs/failures.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hostlib import _engine
from hostlib._engine import Engine, SumOverflow, TensorsDiffer
from hostlib.errors import RunError
from hostlib.fabric import engine_checks
from hostlib.fabric.failover import (
    LOOK_S,
    Failure,
    OtherBlocksError,
    Patience,
    Returning,
    announce_failure,
    failures_seen,
    nobody_missing,
    wait_until_all_have,
    warn_once,
    with_goodput,
)
from hostlib.fabric.job_client import FabricSession, Place, Rejoin, join, require_controller
from hostlib.fabric.socket_errors import socket_errors
from hostlib.fabric.static_window import static_window
from hostlib.protocol.openings import TensorCut
from hostlib.schedules.schedule import FabricUse
from hostlib.transport.agreement import Agreement, reduce_by_gloo
from hostlib.transport.rank_context import RankContext

# The controller's policies (docs/topology.md).
POLICIES = {FabricUse.SUM: "sum", FabricUse.VIA_SERVER: "server", FabricUse.TO_SERVER: "server"}

LOG = logging.getLogger(__name__)

HostSum = Callable[[Tensor], None]


@dataclass(slots=True)
class Summing:
    """One tensor in progress.

    Attributes:
        ticket: the engine's; None if the engine does not have the tensor.
        done: per block, whether the result is in place; None before the engine had the tensor.
        over: it was complete when the fabric failed; `wrong` if its sum was refused.
    """

    number: int
    values: Tensor
    average: bool
    ticket: int | None = None
    done: np.ndarray | None = None
    over: bool = False
    error: SumOverflow | TensorsDiffer | None = None

    @property
    def touched(self) -> bool:
        """Whether some of its values have already been replaced by sums."""
        return self.done is not None and bool(self.done.any())


def _described(cut: TensorCut) -> str:
    pools = ", ".join([str(cut.slots)] * cut.lanes)
    return f"{cut.elements} elements per packet in pools of {pools} slots"


@socket_errors()
def configure(engine: Engine, place: Place, answered_by_server: bool = False) -> None:
    """Configure a new stream of an engine for the place that the controller assigned.

    Args:
        answered_by_server: results come from the job's server, not from the switch.

    Raises:
        RunError: NETFOLD_WINDOW is illegal, or the network does not fit the path of packets.
    """
    server = place.server if answered_by_server else None
    engine.configure(
        place.fabric_address,
        place.fabric_port,
        place.job_id,
        place.epoch,
        place.rank,
        place.world_size,
        [(pool.first_slot, pool.slots) for pool in place.pools],
        place.elements,
        engine_checks.of_sums(place),
        window=static_window(place.pools[0].slots),
        levels=place.levels,
        servers=[server.end(pool) for pool in range(len(place.pools))] if server is not None else [],
    )


class SwitchAggregation:
    """This rank's use of the fabric. `begin` may be called by any thread, everything else by one thread.

    Args:
        sum_by_hosts: sums an int32 tensor over all ranks in place, without the fabric.
        use: what the switch does; with a server, some process runs hostlib.fabric.aggregation_server.serve() for the
            same job.
        lanes: sockets, threads and slot pools that share a tensor.

    Raises:
        JoinError: see hostlib.fabric.job_client.
        RunError: NETFOLD_WINDOW is illegal, or the network does not fit the path of packets.
    """

    def __init__(
        self,
        context: RankContext,
        controller: str,
        job: str,
        address: str,
        sum_by_hosts: HostSum,
        use: FabricUse = FabricUse.SUM,
        lanes: int = 1,
    ) -> None:
        self._context, self._controller, self._job = context, controller, job
        self._agreement = Agreement(context, context.gloo)
        self._sum_by_hosts, self._use, self._patience = sum_by_hosts, use, Patience(context.patience_s)
        static_window(context.slots)  # An illegal one is refused before this rank takes a place.
        with socket_errors():
            self.engine = Engine(address, [0] * lanes)
        self._lock = threading.Lock()
        self._summing: dict[int, Summing] = {}
        self._begun = 0
        self._completed = 0
        self._in_fabric = True
        self._returning: Returning | None = None
        self._failures: list[Failure] = []
        self._refused: dict[
            int, str
        ] = {}  # failure -> why this rank does not return to the fabric; written by the joining thread
        require_controller(controller, context.admitted)  # At once; but a switch that starts is waited for.
        self.session = self._join(job, context.deadline_s)
        self._configure()

    def _configure(self) -> None:
        configure(self.engine, self.session.place, self._use is FabricUse.TO_SERVER)

    def _join(self, job: str, deadline_s: float, again: Rejoin | None = None) -> FabricSession:
        return join(
            self._controller,
            job,
            self._context.rank,
            self._context.world_size,
            self.engine.address,
            self.engine.ports,
            deadline_s,
            lambda: self.engine.position,
            slots=self._context.slots,
            policy=POLICIES[self._use],
            again=again,
            patient=True,
            sockets=[partial(self.engine.echo, lane) for lane in range(len(self.engine.ports))],
            admitted=self._context.admitted if again is None else None,
        )

    def _join_again(self, job: str, cut: TensorCut, again: Rejoin) -> FabricSession:
        """Join a new job in which tensors are cut into the same blocks, so that the weights stay the same bit for bit.

        Raises:
            OtherBlocksError: the blocks would differ; all ranks see that.
            JoinError: see hostlib.fabric.job_client.
        """
        session = self._join(job, self._context.deadline_s, again)
        if session.place.tensor_cut == cut:
            return session
        session.leave()
        refused = (
            f"the fabric came back with {_described(session.place.tensor_cut)}, but began with {_described(cut)}: "
            "results would differ, so the run continues over the hosts"
        )
        self._refused[len(self._failures) - 1] = refused
        LOG.warning("rank %d: %s", self._context.rank, refused)
        raise OtherBlocksError(refused)

    # ---- one tensor -------------------------------------------------------------------------------------------------

    def begin(self, values: Tensor, average: bool) -> int:
        """Start to sum a flat contiguous tensor over the ranks, in place; returns its number, for `finish`."""
        with self._lock:
            self._begun += 1
            summing = Summing(self._begun, values.detach(), average)
            if self._in_fabric and not self.engine.halted:
                summing.ticket = self.engine.submit(summing.values, average)
            self._summing[summing.number] = summing
            self._context.detector.publish(submitted=self._begun)
            return summing.number

    def finish(self, number: int) -> None:
        """Wait for a tensor that was begun; numbers must be given in order.

        Raises:
            MissingRankError, RunError: a rank is gone, or does not join the all-reduce.
            OverflowError: the sum of int32 tensors might overflow; nothing was summed.
        """
        summing = self._summing[number]
        since = time.monotonic()
        try:
            while not self._step(summing, since):
                pass
        except SumOverflow:
            self._complete(number)
            raise
        self._complete(number)

    def _step(self, summing: Summing, since: float) -> bool:
        """Wait a moment, or sum over the hosts; returns whether the tensor is done."""
        if isinstance(summing.error, TensorsDiffer):
            raise RunError(f"{summing.error}: nothing was summed")
        if summing.error is not None:
            raise summing.error
        if summing.over:
            return True
        if summing.ticket is None:
            return self._finish_by_hosts(summing)
        try:
            if self.engine.wait(summing.ticket, LOOK_S):
                return True
        except TensorsDiffer as error:
            raise RunError(f"{error} (all-reduce {summing.number}): nothing was summed") from error
        self._look(summing.number, since)
        return False

    def _complete(self, number: int) -> None:
        with self._lock:
            self._summing.pop(number, None)
        self._completed = number
        self._context.detector.publish(completed=number)

    # ---- failure ----------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Call while idle: joins the failover if another rank has found the switch dead."""
        if self._in_fabric and failures_seen(self._context) > len(self._failures):
            self._fail_over()

    def _look(self, number: int, since: float) -> None:
        self.tend()
        if not self._in_fabric:
            return
        silent_s, stats = self.engine.silent(), self.engine.stats()
        if self._patience.is_spoiled(stats):
            self._fail_over()  # A damaged contribution has been added to a sum, which can never be right.
            return
        over = self._patience.is_over(silent_s, stats)
        heartbeats = self._context.detector.heartbeats()[: self._context.world_size]
        away = [rank for rank, each in enumerate(heartbeats) if each is None or each.submitted < number]
        if over and not away and not self._context.detector.silent():
            self._fail_over()
        elif min(silent_s, time.monotonic() - since) > self._context.deadline_s:
            call = f"all-reduce {number}"
            why = partial(nobody_missing, self._context, self.session.place, away, call, silent_s)
            raise self._context.detector.explain(silent_s, why)

    def _fail_over(self) -> None:
        """Leave the fabric together with all other ranks: every result that one rank has, all ranks get."""
        began, silent_s = time.monotonic(), self.engine.silent()
        with self._lock:
            self.engine.halt()
        announce_failure(self._context, len(self._failures) + 1)
        self._share_results()
        with self._lock:
            left = dict(self.engine.unfinished())
            for summing in self._summing.values():
                if summing.ticket in left:
                    summing.done = left[summing.ticket]
                elif summing.ticket is not None:
                    self._take_outcome(summing, summing.ticket)
                summing.ticket = None
            self._in_fabric = False
        self._failures.append(Failure.seen(self._completed, silent_s, began))
        warn_once(self._context, "the switch does not answer: sums go on over the hosts until it is back")
        job, cut = f"{self._job}.{len(self._failures)}", self.session.place.tensor_cut
        self._returning = Returning(self.session, lambda again: self._join_again(job, cut, again))

    def _take_outcome(self, summing: Summing, ticket: int) -> None:
        try:
            summing.over = self.engine.wait(ticket, 0)
        except (SumOverflow, TensorsDiffer) as error:
            summing.error = error

    def _share_results(self) -> None:
        positions, words = self.engine.retained()
        extremes = torch.from_numpy(np.concatenate([positions, -positions]))
        reduce_by_gloo(self._context.gloo, extremes, dist.ReduceOp.MAX)
        latest, earliest = extremes.numpy()[: len(positions)], -extremes.numpy()[len(positions) :]
        wanted = np.flatnonzero(latest != earliest)
        if len(wanted) == 0:
            return
        mine = positions[wanted] == latest[wanted]
        owner = torch.from_numpy(np.where(mine, self._context.rank, self._context.world_size))
        reduce_by_gloo(self._context.gloo, owner, dist.ReduceOp.MIN)
        # The owner of a result contributes it; all others add zeros.
        owned = words[wanted] * (owner.numpy() == self._context.rank)[:, None].astype(np.int32)
        shared = torch.from_numpy(owned)
        reduce_by_gloo(self._context.gloo, shared, dist.ReduceOp.SUM)
        words[wanted] = shared.numpy()
        taken = np.full_like(positions, -1)
        taken[wanted] = latest[wanted]
        self.engine.restore(taken, words)

    # ---- over the hosts, and back -----------------------------------------------------------------------------------

    def _finish_by_hosts(self, summing: Summing) -> bool:
        """Sum the rest of a tensor over the hosts, or return to the fabric if all ranks can; returns whether it is
        done.
        """
        place, values, world_size = self.session.place, summing.values, self._context.world_size
        self._agreement.confirm(values.numel(), values.dtype, summing.average)
        codes = _engine.own_codes(values, place.elements, place.pools[0].slots, len(place.pools), world_size)
        done = summing.done if summing.done is not None else np.zeros(len(codes), np.uint8)
        codes[done != 0] = 0
        with self._lock:
            touched = any(other.touched for other in self._summing.values())
        session = self._returning.session if self._returning is not None and not touched else None
        epoch = session.place.epoch if session is not None else 0
        ready = [0 if session is not None else 1, epoch, -epoch]
        agreed = torch.from_numpy(np.concatenate([codes.astype(np.int64), np.array(ready, np.int64)]))
        reduce_by_gloo(self._context.gloo, agreed, dist.ReduceOp.MAX)
        absent, newest, oldest = agreed[-3:].tolist()
        if session is not None and not absent and newest == -oldest:
            self._return(session)
            return False
        # No rank can return to the fabric before this tensor is done.
        codes = agreed[:-3].numpy().astype(np.uint16)
        if values.dtype == torch.int32 and len(codes) and _engine.may_overflow(int(codes.max()), world_size):
            raise SumOverflow(f"the sum of {world_size} int32 tensors of such values may not fit int32")
        quantised = _engine.quantise_blocks(values, place.elements, codes, world_size)
        self._sum_by_hosts(torch.from_numpy(quantised))
        _engine.dequantise_blocks(quantised, values, place.elements, codes, world_size, summing.average, done)
        self._failures[-1] = self._failures[-1].carried(values.nbytes)
        return True

    def _return(self, session: FabricSession) -> None:
        """Return to the fabric, starting with this tensor: all ranks are in a new job."""
        assert self._returning is not None
        self._returning.adopted()
        self._returning = None
        with self._lock:
            self.session = session
            self._configure()
            for summing in self._summing.values():
                if not summing.over and summing.error is None:
                    summing.ticket = self.engine.submit(summing.values, summing.average)
                    summing.done = None
            self._in_fabric = True
        self._patience.begin_again(self.engine.stats())
        self._failures[-1] = replace(self._failures[-1], returned=True)
        warn_once(self._context, "the switch is back: sums go through it again")

    # ---- the end ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until every rank has this rank's results: it may hold the only copy of one that another rank lost."""
        wait_until_all_have(self._context, self._completed, self.tend)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the switch; see hostlib.fabric.failover.Failure."""
        refused = self._refused
        return [replace(each, refused=refused.get(n)).as_json() for n, each in enumerate(self._failures)]

    def cancel(self) -> None:
        """Make every `finish` raise Cancelled."""
        self.engine.cancel()

    def stats(self) -> dict[str, int]:
        """The engine's counters, and gradient bits per second while tensors were in progress."""
        return with_goodput(self.engine.stats(), 32 * self.session.place.elements)

    def close(self) -> None:
        """Give up the place in the fabric."""
        self.engine.halt()
        if self._returning is not None:
            self._returning.close()
        else:
            self.session.leave()
