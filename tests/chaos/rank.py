"""A rank of a disturbed run, forked by a process that has loaded this."""

from __future__ import annotations

import faulthandler
import signal

import torch._dynamo  # noqa: F401  what takes so long

import hostlib.train  # noqa: F401
from hostlib.data import digits
from hostlib.entry import run_rank

digits(1)


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where it hangs
    run_rank()
