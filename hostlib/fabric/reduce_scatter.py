"""Reduce-scatters on a rank: the switch sums what the others send of a shard, and its owner adds its own values.

Nobody sends its own shard, and nobody receives another's: a rank sends (n-1)/n of a tensor and receives 1/n. The owner
adds its values as floats, so they are not rounded to the others' scale.

If the switch fails, hosts sum the same integers, hence the same bits. When one rank has completed a tensor, every rank has
its sums, for they have been acknowledged to it. So the hosts begin with the first tensor that no rank has completed. Once
all ranks have joined a new job on the fabric, they return to it together, before a tensor. Source: docs/protocol.md, "Shards and their owners"; docs/failures.md.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hostlib import _engine
from hostlib._engine import Scatter, SumOverflow, TensorsDiffer
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
from hostlib.fabric.job_client import FabricSession, Rejoin, join, require_controller
from hostlib.fabric.socket_errors import socket_errors
from hostlib.fabric.static_window import static_window
from hostlib.protocol.openings import TensorCut
from hostlib.protocol.slots import slots_of_stream
from hostlib.transport.agreement import Agreement, reduce_by_gloo
from hostlib.transport.rank_context import RankContext
from hostlib.transport.workspace import Workspace

POLICY = "owners"  # the controller's (docs/topology.md)


class SwitchReduceScatter:
    """This rank's end of a job in which each rank owns a shard. One tensor at a time.

    Raises:
        JoinError: see hostlib.fabric.job_client.
    """

    def __init__(self, context: RankContext, controller: str, job: str, address: str) -> None:
        self._context, self._patience = context, Patience(context.patience_s)
        self._gloo = context.another_gloo()
        self._agreement = Agreement(context, self._gloo)
        with socket_errors():
            self._scatter = Scatter(address, context.rank, context.world_size)
        self._sums = Workspace()
        self._lock = threading.Lock()
        self._number = self._completed = 0
        self._ticket: int | None = None  # of the tensor in progress
        self._in_fabric = True
        self._refused: SumOverflow | TensorsDiffer | None = None  # of the tensor in progress when the switch failed
        self._returning: Returning | None = None
        self._last: int | None = None  # the last tensor that some rank had completed when the switch failed
        self._failures: list[Failure] = []
        self._ended = threading.Event()
        require_controller(controller, context.admitted)  # At once; but a switch that starts is waited for.
        # Heartbeats may belong to an earlier job; no host completes its join before all have started theirs.
        context.detector.publish(submitted=0, completed=0, failures=0)
        context.detector.exchange()
        self._controller, self._job, self._address = controller, job, address
        self.session = self._join(job)
        self._configure()
        self._thread = threading.Thread(target=self._follow, name="reduce-scatter", daemon=True)
        self._thread.start()

    def _join(self, job: str, again: Rejoin | None = None) -> FabricSession:
        context = self._context
        return join(
            self._controller,
            job,
            context.rank,
            context.world_size,
            self._address,
            self._scatter.ports,
            context.deadline_s,
            lambda: self._scatter.position,
            slots=slots_of_stream(context.world_size, context.slots),
            policy=POLICY,
            patient=True,
            sockets=[partial(self._scatter.echo, pool) for pool in range(context.world_size)],
            again=again,
            admitted=context.admitted if again is None else None,
        )

    def _join_again(self, job: str, cut: TensorCut, again: Rejoin) -> FabricSession:
        """Join a new job in which tensors are cut into the same blocks. Raises JoinError, also if they would differ."""
        session = self._join(job, again)
        if session.place.tensor_cut != cut:
            session.leave()
            raise OtherBlocksError("the fabric came back with other packets or slots")
        return session

    @socket_errors()
    def _configure(self) -> None:
        place = self.session.place
        self._scatter.configure(
            place.fabric_address,
            place.fabric_port,
            place.job_id,
            place.epoch,
            place.rank,
            place.world_size,
            [(pool.first_slot, pool.slots) for pool in place.pools],
            place.elements,
            engine_checks.of_sums(place),
            [[rank.end(pool) for pool in range(len(place.pools))] for rank in place.workers],
            window=min(static_window(self._context.slots), place.pools[0].slots),
        )

    # ---- one tensor ----------------------------------------------------------------------------------------------

    def execute(self, tensor: Tensor, average: bool = False, root: int = 0) -> None:
        """Sum or average a flat contiguous tensor, a shard for each rank: this rank's shard gets the result.

        Args:
            tensor: float32, float16, bfloat16 or int32 (n * shard,); its other shards stay.
            root: of no meaning here.

        Raises:
            MissingRankError, RunError: a rank is gone, or does not sum the same.
            OverflowError: the sum of int32 tensors might overflow; nothing was summed.
        """
        if tensor.numel() == 0:
            return
        since, shards = time.monotonic(), tensor.view(self._context.world_size, -1)
        mine = shards[self._context.rank]
        sums = self._sums.take(mine.numel(), torch.int32 if tensor.dtype == torch.int32 else torch.float32)
        with self._lock:
            self._number, self._refused = self._number + 1, None
            if self._in_fabric:
                self._ticket = self._scatter.submit(tensor, sums, average)
            self._context.detector.publish(submitted=self._number)
        try:
            while not self._summed_by_switch(since) and not self._sum_by_hosts(tensor, shards, sums, average):
                since = time.monotonic()
        finally:
            with self._lock:
                self._ticket = None
        total = sums.add_(mine)
        mine.copy_(total.div_(self._context.world_size) if average else total)
        self._complete()

    def _summed_by_switch(self, since: float) -> bool:
        """Wait for the tensor in progress; returns whether its sums are here, or else the hosts must take them."""
        while (ticket := self._ticket) is not None:
            try:
                if self._scatter.wait(ticket, LOOK_S):
                    return True
            except (SumOverflow, TensorsDiffer) as error:
                self._refuse(error)
            except ValueError:
                break  # `_leave` has seen to it meanwhile.
            self._look(since)
        if self._in_fabric or self._number > self._last_complete():
            return False
        if self._refused is not None:
            self._refuse(self._refused)
        return True

    def _refuse(self, error: SumOverflow | TensorsDiffer) -> NoReturn:
        self._complete()
        if isinstance(error, SumOverflow):
            raise error
        raise RunError(f"{error} (reduce-scatter {self._number}): nothing was summed") from error

    def _complete(self) -> None:
        with self._lock:
            self._completed = self._number
            self._context.detector.publish(completed=self._completed)

    # ---- failure -------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Leave the switch once another rank has found it dead."""
        while not self._ended.wait(LOOK_S):
            if self._in_fabric and failures_seen(self._context) > len(self._failures):
                self._leave()

    def _look(self, since: float) -> None:
        silent_s, stats = self._scatter.silent(), self._scatter.stats()
        if self._patience.is_spoiled(stats):
            self._leave()  # A damaged contribution has been added to a sum, which can never be right.
            return
        over = self._patience.is_over(silent_s, stats)
        heartbeats = self._context.detector.heartbeats()[: self._context.world_size]
        away = [rank for rank, each in enumerate(heartbeats) if each is None or each.submitted < self._number]
        if over and not away and not self._context.detector.silent():
            self._leave()
        elif min(silent_s, time.monotonic() - since) > self._context.deadline_s:
            call = f"reduce-scatter {self._number}"
            why = partial(nobody_missing, self._context, self.session.place, away, call, silent_s)
            raise self._context.detector.explain(silent_s, why)

    def _leave(self) -> None:
        """Leave the fabric, and say which tensors this rank has."""
        began = time.monotonic()
        with self._lock:
            if not self._in_fabric:
                return
            silent_s = self._scatter.silent()
            self._scatter.halt()
            self._in_fabric = False
            if self._ticket is not None and self._is_over(self._ticket):
                self._completed = self._number
            self._ticket = self._last = None
            self._failures.append(Failure.seen(self._completed, silent_s, began))
            self._context.detector.publish(completed=self._completed)
        announce_failure(self._context, len(self._failures))
        warn_once(self._context, "the switch does not answer: hosts take reduce-scatters' sums until it is back")
        job, cut = f"{self._job}.{len(self._failures)}", self.session.place.tensor_cut
        self._returning = Returning(self.session, lambda again: self._join_again(job, cut, again))

    def _is_over(self, ticket: int) -> bool:
        try:
            return bool(self._scatter.wait(ticket, 0))
        except (SumOverflow, TensorsDiffer) as error:
            self._refused = error
        except ValueError:
            pass  # The thread that waits for it has just heard so.
        return True

    def _last_complete(self) -> int:
        """The last tensor that some rank has completed, and of which all ranks have the sums."""
        if self._last is None:
            give_up = time.monotonic() + self._context.deadline_s
            while True:
                heartbeats = self._context.detector.heartbeats()[: self._context.world_size]
                if all(each is not None and each.failures >= len(self._failures) for each in heartbeats):
                    break
                if self._context.detector.silent() or time.monotonic() > give_up:
                    raise self._context.detector.explain(
                        self._context.deadline_s, lambda: RunError("not all ranks have left the switch that failed")
                    )
                time.sleep(LOOK_S / 5)
            self._last = max(each.completed for each in heartbeats if each is not None)
        return self._last

    def _sum_by_hosts(self, tensor: Tensor, shards: Tensor, sums: Tensor, average: bool) -> bool:
        """Take the sums that the switch would have: the same integers under the same scales. Or return to the fabric, if
        all ranks can; returns whether the sums are here.
        """
        if self._all_return():
            with self._lock:
                self._ticket = self._scatter.submit(tensor, sums, average)
            return False
        self._agreement.confirm(tensor.numel(), tensor.dtype, average)
        place, n, rank = self.session.place, self._context.world_size, self._context.rank
        is_int = shards.dtype == torch.int32
        of_shards = [_engine.own_codes(each, place.elements, place.pools[0].slots, 1, n) for each in shards]
        if not is_int:
            of_shards[rank][:] = 0  # The owner sends nothing.
        agreed = torch.from_numpy(np.stack(of_shards).astype(np.int64))
        reduce_by_gloo(self._gloo, agreed, dist.ReduceOp.MAX)
        codes = agreed.numpy().astype(np.uint16)
        if is_int and _engine.may_overflow(int(codes.max()), n):
            self._complete()
            raise SumOverflow(f"the sum of {n} int32 tensors of such values may not fit int32")
        words = np.stack([_engine.quantise_blocks(each, place.elements, codes[p], n) for p, each in enumerate(shards)])
        words[rank] = 0
        mine = torch.empty(sums.numel(), dtype=torch.int32)
        self._gloo.reduce_scatter([mine], [list(torch.from_numpy(words))]).wait()
        none_done = np.zeros(codes.shape[1], np.uint8)
        _engine.dequantise_blocks(mine.numpy(), sums, place.elements, codes[rank], n, False, none_done)
        self._failures[-1] = self._failures[-1].carried(tensor.nbytes)
        return True

    def _all_return(self) -> bool:
        """Return to the fabric with the tensor in progress, if all ranks are in the same new job."""
        returning = self._returning
        session = returning.session if returning is not None else None
        epoch = session.place.epoch if session is not None else 0
        ready = torch.tensor([int(session is None), epoch, -epoch])
        reduce_by_gloo(self._gloo, ready, dist.ReduceOp.MAX)
        absent, newest, oldest = ready.tolist()
        if returning is None or session is None or absent or newest != -oldest:
            return False
        returning.adopted()
        with self._lock:
            self._returning, self.session = None, session
            self._configure()
            self._failures[-1] = replace(self._failures[-1], returned=True)
            self._in_fabric = True
        self._patience.begin_again(self._scatter.stats())
        warn_once(self._context, "the switch is back: reduce-scatters go through it again")
        return True

    # ---- the end -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until every rank has what it needs of this one, which alone can acknowledge it."""
        wait_until_all_have(self._context, self._completed, lambda: None)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the switch; see hostlib.fabric.failover.Failure."""
        return [failure.as_json() for failure in self._failures]

    def cancel(self) -> None:
        """Make `execute` raise Cancelled."""
        self._scatter.cancel()

    def stats(self) -> dict[str, int]:
        """The engine's counters, and bits per second of sums received while some were in progress."""
        return with_goodput(self._scatter.stats(), 32 * self.session.place.elements)

    def close(self) -> None:
        """Give up the place in the fabric."""
        self._ended.set()
        self.cancel()
        self._thread.join(LOOK_S * 10)
        self._scatter.halt()
        if self._returning is not None:
            self._returning.close()
        else:
            self.session.leave()
