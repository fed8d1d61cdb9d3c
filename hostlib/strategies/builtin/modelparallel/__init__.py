"""modelparallel: a model's stages on several workers, without a pipeline.

Source: "Benchmarking and recommender for distributed training", as the baseline of its pipelines.
"""

from __future__ import annotations

from hostlib.pipelines.pipeline_options import ModelParallelOptions
from hostlib.strategies.common.pipeline_spec import pipeline_spec

SPEC = pipeline_spec(
    "modelparallel",
    "the model's stages on several workers, of which one works at a time",
    ModelParallelOptions,
)
