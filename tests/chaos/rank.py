"""A rank of a disturbed run, forked by a process that has loaded this."""

from __future__ import annotations

import faulthandler
import signal

import torch._dynamo  # noqa: F401  what takes so long

import hostlib.train.loop  # noqa: F401
from hostlib.datasets.batches import digits
from hostlib.train.__main__ import main as train

digits(1)


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where it hangs
    train()
