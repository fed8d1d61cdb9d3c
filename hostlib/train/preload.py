"""What every rank loads in its first moments, for whoever forks ranks to load once for all: 0.1 s of CPU time of each.

The mechanisms, the strategies, and what the HTTP client loads when it is first used.
"""

from __future__ import annotations

import httpcore  # noqa: F401

from hostlib.mechanisms.mechanism import registered
from hostlib.strategies.strategy import registered_strategies

registered()
registered_strategies()
