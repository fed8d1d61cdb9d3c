"""1f1b: a pipeline that alternates between forward and backward passes.

Source: Narayanan et al. 2019, "PipeDream", section 3.2 (the schedule), with an update of the weights after each batch.
"""

from __future__ import annotations

from hostlib.pipelines.pipeline_options import OneFOneBOptions
from hostlib.strategies.common.pipeline_spec import pipeline_spec

SPEC = pipeline_spec(
    "1f1b",
    "a pipeline whose stages alternate between a forward and a backward pass, which keeps fewer activations",
    OneFOneBOptions,
)
