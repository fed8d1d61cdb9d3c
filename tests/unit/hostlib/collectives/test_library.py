"""Libraries' own all-reduces without the libraries: what becomes of sums that fail, and of tensors that are not theirs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hostlib.collectives.vendor import NcclCollective, TransportCollective
from hostlib.errors import HostlibError, RunError
from hostlib.transport.failure_detector import FailureDetector
from hostlib.transport.gloo_transport import GlooTransport
from hostlib.transport.mpi_transport import MpiPending, MpiTransport
from hostlib.transport.rank_context import RankContext

DEADLINE_S = 0.05


class Request:
    """One of MPI's, which is done when `done` is set."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.cancelled = False

    def Test(self) -> bool:
        return self.done.is_set()

    def Cancel(self) -> None:
        self.cancelled = True


class Communicator:
    """Of three, each of whom has the same."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def Iallreduce(self, in_place: Any, values: Any, operation: Any) -> Request:
        values *= 3
        self.requests.append(Request())
        return self.requests[-1]


class Signs(FailureDetector):
    """Nobody is missing."""

    def __init__(self) -> None:
        pass

    def explain(self, waited_s: float, otherwise: Callable[[], HostlibError]) -> HostlibError:
        return otherwise()


def rank_context(deadline_s: float, hosts: MpiTransport | None, nccl: Callable[[], Any]) -> RankContext:
    return RankContext(0, 3, None, Signs(), deadline_s, lambda: None, nccl, hosts or GlooTransport(None))


def mpi(deadline_s: float) -> tuple[TransportCollective, Communicator]:
    pytest.importorskip("mpi4py.MPI", reason="needs mpi4py and an MPI library: pip install 'netfold[mpi]'")
    communicator = Communicator()
    peers = MpiTransport(communicator, deadline_s)
    return TransportCollective(peers, rank_context(deadline_s, peers, lambda: None), "sums"), communicator


def test_mpis_sums_are_all_begun_before_the_first_is_waited_for() -> None:
    collective, communicator = mpi(30)
    tensors = [
        torch.full((4,), 2.0),
        torch.full((2, 2), 4.0, dtype=torch.bfloat16),
        torch.full((3,), 1, dtype=torch.int32),
    ]
    sums = [collective.allreduce(tensor, average=number == 1) for number, tensor in enumerate(tensors)]
    assert len(communicator.requests) == 3 and not any(each.done() for each in sums)
    for request in communicator.requests:
        request.done.set()
    assert [each.wait().flatten()[0].item() for each in sums] == [6, 4, 3]
    assert all(each.value() is tensor for each, tensor in zip(sums, tensors, strict=True))
    collective.close()


def test_after_a_sum_of_mpis_that_never_ends_nothing_is_summed() -> None:
    collective, communicator = mpi(DEADLINE_S)
    first, second = (collective.allreduce(torch.ones(4), average=False) for _ in range(2))
    communicator.requests[1].done.set()
    for each in (first, second):
        with pytest.raises(HostlibError, match=f"did not come through within {DEADLINE_S} s"):
            each.wait()
    # What everybody has a part in, nobody may take back.
    assert not any(request.cancelled for request in communicator.requests)
    collective.close()


def test_a_message_that_does_not_come_is_taken_back() -> None:
    request = Request()
    with pytest.raises(RunError, match="did not come through"):
        MpiPending(request, DEADLINE_S).wait()
    assert request.cancelled


def test_nccl_is_not_given_what_it_cannot_sum() -> None:
    collective = NcclCollective(rank_context(30, None, lambda: None))
    for tensor, average, says in (
        (torch.ones(4), False, "nccl only sums CUDA tensors, but this one is on CPU"),
        (torch.ones(4, dtype=torch.float64), False, "unknown dtype 'torch.float64'"),
        (torch.ones(4, dtype=torch.int32), True, "can be summed, not averaged"),
    ):
        with pytest.raises(HostlibError, match=says):
            collective.allreduce(tensor, average).wait()
