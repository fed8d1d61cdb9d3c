"""How long a model computes: given, published, or its FLOPs at a rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hostlib.models.layer_info import Family
from simulation.errors import SimulationError
from simulation.models import published_times
from simulation.models.assumption import DEFAULT, GIVEN, Assumption
from simulation.models.gpus import achieved, find_gpu

BACKWARD_SHARE = 2.0  # relative to the forward pass: gradients of the inputs and of the weights
DEFAULT_TFLOPS = 10.0
DEFAULT_BATCH = 32
MOST_BATCH = 10**9
LONGEST_S = 1e6
PUBLISHED = '"How to Train your DNN", table 3, at a batch of 32 and 299 pixels'


@dataclass(frozen=True, slots=True)
class Compute:
    """What is asked for; None for what is not.

    Attributes:
        batch: examples of a worker and iteration.
        forward_s, backward_s: of the passes.
        tflops: rate that training achieves, in TFLOP/s.
        gpu: a name of simulation/models/gpus.py.

    Raises:
        SimulationError: an impossible value, or values that exclude each other.
    """

    batch: int | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    tflops: float | None = None
    gpu: str | None = None

    def __post_init__(self) -> None:
        for what, value in (("forward time", self.forward_s), ("backward time", self.backward_s)):
            if value is not None and not 0 <= value < float("inf"):
                raise SimulationError(f"a {what} must be 0 or more seconds, not {value}")
        if self.batch is not None and not 1 <= self.batch <= MOST_BATCH:
            raise SimulationError(f"--batch must be at least 1 and at most {MOST_BATCH}, not {self.batch}")
        if self.tflops is not None and not 0 < self.tflops < float("inf"):
            raise SimulationError(f"--tflops must be above 0, not {self.tflops}")
        if self.tflops is not None and self.gpu is not None:
            raise SimulationError("--tflops and --gpu exclude each other: --tflops is what training achieves")
        if self.gpu is not None:
            find_gpu(self.gpu)
        rated = "--tflops" if self.tflops is not None else "--gpu" if self.gpu is not None else None
        if rated is not None and self.forward_s is not None and self.backward_s is not None:
            raise SimulationError(f"{rated} changes nothing beside --forward and --backward, which say all times")

    @property
    def examples(self) -> int:
        return DEFAULT_BATCH if self.batch is None else self.batch

    @property
    def has_rate(self) -> bool:
        """Whether a rate is asked for."""
        return self.tflops is not None or self.gpu is not None

    def rate(self, family: Family) -> Assumption:
        """TFLOP/s that training achieves."""
        if self.tflops is not None:
            return Assumption(self.tflops, GIVEN)
        if self.gpu is not None:
            return Assumption(*achieved(find_gpu(self.gpu), family))
        return Assumption(DEFAULT_TFLOPS, f"{DEFAULT}: neither --gpu nor --tflops is given, and no times are published")


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Times of an iteration.

    Attributes:
        first_backward: the backward time includes that of the last layer, the first one in the backward pass.
        assumptions: where they come from.
    """

    forward_s: float
    backward_s: float
    first_backward: bool
    assumptions: Mapping[str, Assumption]


def pass_times(compute: Compute, name: str, flops: int, family: Family, published_flops: int | None) -> PassTimes:
    """Times of a model's passes.

    Args:
        name: of the network, without options.
        flops: of one example's forward pass.
        published_flops: those of the network whose times are published; None if none are.

    Raises:
        SimulationError: it would compute for too long.
    """
    batch = compute.examples
    assumptions = {"batch": Assumption(batch, DEFAULT if compute.batch is None else GIVEN)}
    published = published_flops is not None and not compute.has_rate
    if published_flops is not None and published:
        scale = batch * flops / (DEFAULT_BATCH * published_flops)
        forward, backward = (seconds * scale for seconds in published_times.COMPUTE_S[name])
        source = PUBLISHED if scale == 1 else f"{PUBLISHED}, scaled by FLOPs to this batch and input"
        sources = source, f"{source}; without the last layer's"
    else:
        rate = compute.rate(family)
        if compute.forward_s is None or compute.backward_s is None:
            assumptions["tflops"] = rate
        forward = batch * flops / (float(rate.value) * 1e12)
        backward = BACKWARD_SHARE * forward
        work = f"{batch * flops / 1e9:.4g} GFLOP at {float(rate.value):.4g} TFLOP/s"
        sources = work, "twice the forward pass's FLOPs"
    if not max(forward, backward) < LONGEST_S:
        raise SimulationError(f"{name} would compute for {forward:.3g} s at this rate: raise --tflops")
    for what, seconds, given, source in (
        ("forward_s", forward, compute.forward_s, sources[0]),
        ("backward_s", backward, compute.backward_s, sources[1]),
    ):
        assumptions[what] = Assumption(seconds, source) if given is None else Assumption(given, GIVEN)
    return PassTimes(
        forward if compute.forward_s is None else compute.forward_s,
        backward if compute.backward_s is None else compute.backward_s,
        not published,
        assumptions,
    )
