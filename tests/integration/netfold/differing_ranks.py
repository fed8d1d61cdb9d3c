"""Run by test_session_collectives.py with torchrun's environment: ranks have tensors of different sizes.

Usage: differing_ranks.py FOLDER COLLECTIVE

Each rank writes the error that it gets to FOLDER/rankN.txt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import netfold

folder, collective = sys.argv[1:]
with netfold.session("ring", deadline_s=60) as session:
    try:
        getattr(session, collective)(torch.ones(99 + 3 * session.rank)).wait()
    except netfold.HostlibError as error:
        Path(folder, f"rank{session.rank}.txt").write_text(str(error))
