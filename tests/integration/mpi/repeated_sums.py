"""An mpi4py program that sums random arrays again and again, and prints a digest of all sums, and whether all ranks have it."""

from __future__ import annotations

import hashlib

import numpy as np
from mpi4py import MPI


def main() -> None:
    everybody = MPI.COMM_WORLD
    digest = hashlib.sha256()
    for turn in range(40):
        values = np.random.default_rng([turn, everybody.rank]).standard_normal(300_000).astype(np.float32)
        everybody.Allreduce(MPI.IN_PLACE, values)
        digest.update(values.tobytes())
        if everybody.rank == 0 and turn == 0:
            print("begun", flush=True)
    digests = everybody.gather(digest.hexdigest())
    if everybody.rank == 0:
        print(digest.hexdigest(), digests == [digest.hexdigest()] * everybody.size)


if __name__ == "__main__":
    main()
