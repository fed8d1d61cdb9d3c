"""What a pipeline's schedule makes of its stages' times, if all stages take equally long. Torch-free."""

from __future__ import annotations


def iteration_ns(
    forward_ns: float, backward_ns: float, stages: int, microbatches: int, chunks: int = 1, recompute: bool = False
) -> float:
    """Time of an iteration without transfers: the same for gpipe, 1f1b and, with chunks, interleaved.

    Args:
        forward_ns, backward_ns: of a worker's part of the model for one micro-batch, all its chunks together.
        recompute: the backward pass begins with another forward pass.

    Source: Huang et al. 2019, "GPipe", section 2.3; Narayanan et al. 2021, "Efficient Large-Scale Language Model
    Training", sections 2.2.1 and 2.2.2.
    """
    both = forward_ns + backward_ns + (forward_ns if recompute else 0)
    return both * (microbatches + (stages - 1) / chunks)


def bubble_share(stages: int, microbatches: int, chunks: int = 1) -> float:
    """The part of an iteration in which a worker idles: (S - 1) / (m + S - 1) with one chunk."""
    idle = (stages - 1) / chunks
    return idle / (microbatches + idle)
