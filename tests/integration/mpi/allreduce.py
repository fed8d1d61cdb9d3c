"""An mpi4py program that knows nothing of netfold: sums arrays, and prints on rank 0 what was wrong."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI


def main() -> None:
    everybody = MPI.COMM_WORLD
    rank, size = everybody.Get_rank(), everybody.Get_size()
    wrong = []
    for dtype in (np.float32, np.int32, np.float64):
        mine = (np.arange(100_003) % 1000 + rank).astype(dtype)
        total = np.empty_like(mine)
        everybody.Allreduce(mine, total, MPI.SUM)
        everybody.Allreduce(MPI.IN_PLACE, mine, MPI.SUM)
        wanted = (np.arange(100_003) % 1000 * size + size * (size - 1) // 2).astype(dtype)
        wrong += [np.dtype(dtype).name for found in (total, mine) if not np.array_equal(found, wanted)]
    everywhere = everybody.gather(wrong)
    if rank == 0:
        print(everywhere)


if __name__ == "__main__":
    main()
