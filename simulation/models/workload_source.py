"""Subjects of a simulation: a model or a recorded trace, to which strategies apply, or a bare all-reduce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hostlib.models.layer_info import LayerInfo
from hostlib.models.zoo.catalogue import SMALL, is_factory
from hostlib.schedules.contract import Collective
from hostlib.strategies.plan import Plan
from hostlib.strategies.strategy import DEFAULT_STRATEGY, Choice
from hostlib.traces.trace import Trace, read
from simulation.errors import SimulationError
from simulation.models.architectures import BUILDERS, Architecture
from simulation.models.assumption import DEFAULT, GIVEN, Assumption
from simulation.models.compute import BACKWARD_SHARE, DEFAULT_BATCH, Compute
from simulation.models.described_model import Shape
from simulation.models.synthetic_trace import trained_model
from simulation.simulator.workload import trace_of_size

DEFAULT_SIZE = 16 * 2**20


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """The subject of a simulation.

    Attributes:
        layers: as strategies see them; empty if unknown.
        batch: examples of a worker.
        message_bytes: see of_plan.
        bare: one collective without training.
        collective: what is done with the tensor, if it is bare.
        name: for titles.
        assumptions: where its sizes and times come from, by what they are about.
        architecture: its layers with their outputs and variables; None if unknown, as of a trace.
        optimiser: of training, by its name in simulation/plans/memory.py.
    """

    trace: Trace
    layers: tuple[LayerInfo, ...]
    batch: int
    message_bytes: int
    bare: bool = False
    name: str = ""
    assumptions: Mapping[str, Assumption] = field(default_factory=dict)
    architecture: Architecture | None = None
    optimiser: str = "momentum"
    collective: Collective = Collective.ALL_REDUCE

    def plan(self, choice: Choice, workers: int) -> Plan:
        """Apply a strategy to it.

        Raises:
            SimulationError: strategies do not apply to a bare all-reduce.
            HostlibError: see hostlib.strategies.strategy.Choice.plan.
        """
        if self.bare and choice.strategy.plain != DEFAULT_STRATEGY:
            raise SimulationError(
                f"{choice} is a training strategy: name a --model or --trace; an all-reduce takes a mechanism alone"
            )
        return choice.plan(self.trace, self.layers, workers, self.batch)


def is_trace(text: str) -> bool:
    """Whether what --model names is a trace's file: a path, and no network of the zoo."""
    name = text.partition(":")[0]
    if name in BUILDERS or text in SMALL:
        return False
    return text.endswith(".trace") or (not is_factory(text) and ("/" in text or Path(text).is_file()))


def model(text: str, compute: Compute, shape: Shape = None, message_bytes: int = 0) -> WorkloadSource:
    """A model: a network of the zoo with its options, MODULE:FACTORY of the user's own, or a trace's file.

    Args:
        shape: of one example, see simulation.models.described_model.describe.

    Raises:
        SimulationError, HostlibError: see trained_model and recorded.
    """
    if is_trace(text):
        if shape is not None:
            raise SimulationError(f"--input: {text} is a trace, whose model has its input already")
        return recorded(Path(text), compute, message_bytes)
    described, trace, times = trained_model(text, shape, compute)
    extents = "x".join(map(str, described.architecture.input))
    usual = DEFAULT if times.first_backward else f"{DEFAULT}: that of the published times"
    assumptions = {
        "model": Assumption(text, described.source),
        "input": Assumption(extents, usual if shape is None else GIVEN),
        "gradients_bytes": Assumption(trace.bytes, "a value of each trained parameter, in the parameter's format"),
        **times.assumptions,
    }
    return WorkloadSource(
        trace,
        described.layers,
        compute.examples,
        message_bytes,
        name=text,
        assumptions=assumptions,
        architecture=described.architecture,
    )


def recorded(path: Path, compute: Compute | None = None, message_bytes: int = 0) -> WorkloadSource:
    """A recorded trace from a file, its times scaled to another batch or rate.

    Raises:
        SimulationError: it lacks what scaling needs.
        HostlibError: it cannot be read.
    """
    compute, trace = compute or Compute(), read(path)
    batch = compute.batch or trace.batch or DEFAULT_BATCH
    assumptions = {"model": Assumption(str(path), "a trace")}
    if compute.forward_s is not None or compute.backward_s is not None:
        raise SimulationError(f"--forward, --backward: {path} is a trace, which has its own times")
    if trace.batch is not None:
        of_trace = Assumption(batch, "as recorded in the trace")
        assumptions["batch"] = of_trace if compute.batch is None else Assumption(batch, GIVEN)
    times = f"{path}: the trace's own"
    if compute.has_rate:
        trace, rate = _at_rate(path, trace, compute, batch)
        assumptions["tflops"] = rate
        times = f"{path}: the trace's shares of {float(rate.value):.4g} TFLOP/s"
    elif compute.batch is not None and compute.batch != trace.batch:
        if trace.batch is None:
            raise SimulationError(f"--batch: {path} does not say the batch of its times. {_RECORD}")
        trace = replace(trace.scale_compute(batch / trace.batch), batch=batch)
        times = f"{path}: the trace's times, scaled by batch"
    passes = [
        sum(times_ns) / 1e9 for times_ns in zip(*((x.forward_ns, x.backward_ns) for x in trace.layers), strict=True)
    ]
    for what, seconds in zip(("forward_s", "backward_s"), passes, strict=True):
        assumptions[what] = Assumption(seconds, times)
    assumptions["gradients_bytes"] = Assumption(trace.bytes, "the trace")
    return WorkloadSource(trace, (), batch, message_bytes, name=str(path), assumptions=assumptions)


_RECORD = "Record it with `netfold profile`, or scale its times by `netfold simulate trace edit --scale-compute`"


def _at_rate(path: Path, trace: Trace, compute: Compute, batch: int) -> tuple[Trace, Assumption]:
    """A trace with the times that its FLOPs take at a rate, and the rate."""
    option = "--tflops" if compute.tflops is not None else "--gpu"
    if trace.flops is None or trace.family is None or (compute.batch is None and trace.batch is None):
        raise SimulationError(f"{option}: {path} does not say its FLOPs and batch. {_RECORD}")
    if not trace.compute_s:
        raise SimulationError(f"{option}: {path} has no computing times, so no shares of layers")
    rate = compute.rate(trace.family)
    seconds = (1 + BACKWARD_SHARE) * batch * trace.flops / (float(rate.value) * 1e12)
    return replace(trace.scale_compute(seconds / trace.compute_s), batch=batch), rate


def bare(
    size_bytes: int = DEFAULT_SIZE, message_bytes: int = 0, collective: Collective = Collective.ALL_REDUCE
) -> WorkloadSource:
    """One bare collective, with a whole tensor of that size on each rank."""
    what = f"the tensor of one {collective.words}; nothing computes"
    return WorkloadSource(
        trace_of_size(size_bytes),
        (),
        1,
        message_bytes,
        bare=True,
        name=collective.words,
        assumptions={"gradients_bytes": Assumption(size_bytes, what)},
        collective=collective,
    )
