"""interleaved: 1f1b with several parts of the model on each worker.

Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training", section 2.2.
"""

from __future__ import annotations

from hostlib.pipelines.pipeline_options import InterleavedOptions
from hostlib.strategies.common.pipeline_spec import pipeline_spec

SPEC = pipeline_spec(
    "interleaved",
    "1f1b with several parts of the model on each worker, which idles less and sends more",
    InterleavedOptions,
)
