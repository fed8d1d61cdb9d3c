"""One of four processes under mpirun: MPI's own all-reduce among the first 2, 3 and 4 of them, beside Gloo's.

Standard output of process 0 is a JSON list: for each world size and rank, which sums are not Gloo's or not the same bits
on all ranks, and what was said of a tensor that cannot be summed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

from hostlib.collectives.bootstrap import join_group
from hostlib.collectives.create import create_collective
from hostlib.collectives.vendor import TransportCollective
from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import find
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.mpi_transport import MpiConnector
from tests.integration.transports.mpi_results import print_gathered

PROCESSES = 4
WORLD_SIZES = (2, 3, 4)
SIZES = (0, 1, 7, 1000, 700_001)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32)
AVERAGED = len(DTYPES) * len(SIZES)  # its number
TIMEOUT_S = 60.0


def drawn(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + size)
    if dtype == torch.int32:
        return torch.randint(-(1 << 28), 1 << 28, (size,), generator=generator, dtype=dtype)
    return torch.randn(size, generator=generator).to(dtype)


def inputs(rank: int) -> list[Tensor]:
    """What is summed, and, the last two, a tensor that is averaged and one that is not contiguous."""
    plain = [drawn(rank, size, dtype) for dtype in DTYPES for size in SIZES]
    return [*plain, drawn(rank, 999, torch.float32), drawn(rank, 1000, torch.float32).view(20, 50).t()]


def gloos(number: int, world_size: int, rank: int) -> Tensor:
    wanted = inputs(rank)[number].contiguous()
    dist.all_reduce(wanted)
    return wanted / world_size if number == AVERAGED else wanted


def is_gloos(mine: Tensor, number: int, world_size: int, rank: int) -> bool:
    """The same where integers are added; else each of both may err by as much as its additions, and its dtype, do."""
    wanted = gloos(number, world_size, rank)
    if not mine.is_floating_point():
        return torch.equal(mine, wanted)
    magnitudes = sum(inputs(each)[number].double().abs() for each in range(world_size))
    bound = 2 * world_size * torch.finfo(mine.dtype).eps * magnitudes
    return bool(((mine.double() - wanted.double()).abs() <= bound).all())


def is_everyones(mine: Tensor) -> bool:
    first = mine.contiguous()
    bits = first.clone()
    dist.broadcast(bits, 0)
    return torch.equal(bits.view(torch.uint8), first.view(torch.uint8))


def play(here: LaunchEnvironment) -> dict[str, Any]:
    with join_group(here, "test", TIMEOUT_S) as (group, job):
        collective = create_collective(find("mpi"), group, "", job)
        assert isinstance(collective, TransportCollective)
        tensors = inputs(here.rank)
        sums = [collective.allreduce(tensor, number == AVERAGED) for number, tensor in enumerate(tensors)]
        try:
            collective.allreduce(torch.ones(3, dtype=torch.float64), False).wait()
            refused = ""
        except HostlibError as error:
            refused = str(error)
        for each in sums:
            each.wait()
        different = [
            f"{mine.dtype} of {mine.numel()}"
            for number, mine in enumerate(tensors)
            # Every rank asks both.
            if not all([is_gloos(mine, number, here.world_size, here.rank), is_everyones(mine)])
        ]
        collective.close()
    dist.destroy_process_group()
    return {"workers": here.world_size, "rank": here.rank, "different": different, "refused": refused}


def main() -> None:
    torch.set_num_threads(1)
    everybody = MPI.COMM_WORLD
    me = everybody.Get_rank()
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if me == 0 else None
    port = everybody.bcast(host.port if host else None)
    everyone = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    results = []
    for world_size in WORLD_SIZES:
        communicator = everybody.Split(0 if me < world_size else MPI.UNDEFINED, me)
        # One store for each: signs of life of several groups do not mix.
        own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if me == 0 else None
        own_port = everybody.bcast(own.port if own else None)
        if me < world_size:
            results.append(play(LaunchEnvironment(me, world_size, "127.0.0.1", own_port, MpiConnector(communicator))))
        # MPI itself would wait at full speed.
        everyone.set(f"{world_size}/{me}", "")
        everyone.wait([f"{world_size}/{rank}" for rank in range(PROCESSES)], timedelta(seconds=TIMEOUT_S))
    print_gathered(everybody, results)


if __name__ == "__main__":
    main()
