"""Run by test_session_collectives.py with torchrun's environment: ranks reduce tensors of different sizes.

Usage: differing_ranks.py FOLDER

Each rank writes the error that it gets to FOLDER/rankN.txt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import netfold

(folder,) = sys.argv[1:]
with netfold.session("ring", deadline_s=60) as session:
    try:
        session.reduce(torch.ones(100 + session.rank)).wait()
    except netfold.HostlibError as error:
        Path(folder, f"rank{session.rank}.txt").write_text(str(error))
