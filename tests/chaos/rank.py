"""A rank of a disturbed run, forked by a process that has loaded this."""

from __future__ import annotations

import faulthandler
import signal

import hostlib.train  # noqa: F401
from hostlib.cli import run_rank
from hostlib.data import digits

digits(1)


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where it hangs
    run_rank()
