"""gpipe: a pipeline that does all forward passes, then all backward passes.

Source: Huang et al. 2019, "GPipe", section 2.3.
"""

from __future__ import annotations

from hostlib.pipelines.pipeline_options import PipelineOptions
from hostlib.strategies.common.pipeline_spec import pipeline_spec

SPEC = pipeline_spec(
    "gpipe",
    "a pipeline of the model's stages: all micro-batches' forward passes, then all their backward passes",
    PipelineOptions,
)
