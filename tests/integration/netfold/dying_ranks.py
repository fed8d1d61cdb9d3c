"""Run by test_session_collectives.py with torchrun's environment: one rank dies between two of a session's collectives.

Usage: dying_ranks.py FOLDER MECHANISM COLLECTIVE RANK

Each other rank writes the error that it gets to FOLDER/rankN.txt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import netfold

folder, mechanism, collective, dying = sys.argv[1:]
try:
    with netfold.session(mechanism, deadline_s=5, silence_s=2) as session:
        rank = session.rank
        tensor = torch.ones(300_000)
        getattr(session, collective)(tensor).wait()
        if rank == int(dying):
            os._exit(0)  # without a word to the others
        getattr(session, collective)(tensor).wait()
except netfold.MissingRankError as error:
    Path(folder, f"rank{rank}.txt").write_text(str(error))
