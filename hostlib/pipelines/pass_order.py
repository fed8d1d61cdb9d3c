"""The order of a pipeline's passes: which worker computes which micro-batch's pass of which part of the model. Torch-free.

A model is cut into parts, in forward order. With S workers (stages), part p is on worker p modulo S; there are S parts, or
S times the chunks on each worker. The orders are those of torch.distributed.pipelining, and a test compares them.

Sources: Huang et al. 2019, "GPipe" (all forward passes, then all backward passes); Narayanan et al. 2021, "Efficient
Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.2 (1f1b, interleaved).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hostlib.errors import HostlibError, UnknownNameError


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch's forward or backward pass of one part."""

    backward: bool
    part: int
    microbatch: int

    def __str__(self) -> str:
        return f"{'B' if self.backward else 'F'}{self.microbatch}"


@dataclass(frozen=True, slots=True)
class PassOrder:
    """What each worker of a pipeline computes, one pass after the other.

    Attributes:
        name: of the schedule.
        parts: of the model.
        workers: each one's passes, in order.
    """

    name: str
    parts: int
    microbatches: int
    workers: tuple[tuple[Pass, ...], ...]

    def needs(self, each: Pass) -> tuple[Pass, ...]:
        """The passes whose results a pass needs."""
        if not each.backward:
            return () if each.part == 0 else (Pass(False, each.part - 1, each.microbatch),)
        forward = Pass(False, each.part, each.microbatch)
        return (forward,) if each.part == self.parts - 1 else (forward, Pass(True, each.part + 1, each.microbatch))

    def label(self, each: Pass) -> str:
        """`F2` is micro-batch 2's forward pass, `B2` its backward pass.

        With several parts on a worker, a letter says which: `F2b` is of its second one.
        """
        stages = len(self.workers)
        return f"{each}{chr(ord('a') + each.part // stages) if self.parts > stages else ''}"


def gpipe(stages: int, microbatches: int) -> PassOrder:
    """All forward passes, then all backward passes."""
    each = tuple(
        (*(Pass(False, stage, m) for m in range(microbatches)), *(Pass(True, stage, m) for m in range(microbatches)))
        for stage in range(stages)
    )
    return PassOrder("gpipe", stages, microbatches, each)


def model_parallel(stages: int) -> PassOrder:
    """No pipeline: the batch goes through one stage after the other, and back."""
    return PassOrder("modelparallel", stages, 1, gpipe(stages, 1).workers)


def one_forward_one_backward(stages: int, microbatches: int) -> PassOrder:
    """Each worker begins with as many forward passes as workers follow it, then alternates."""

    def of_stage(stage: int) -> tuple[Pass, ...]:
        forward = [Pass(False, stage, m) for m in range(microbatches)]
        backward = [Pass(True, stage, m) for m in range(microbatches)]
        return _alternating(forward, backward, stages - 1 - stage)

    return PassOrder("1f1b", stages, microbatches, tuple(map(of_stage, range(stages))))


def interleaved(stages: int, microbatches: int, chunks: int) -> PassOrder:
    """1f1b with several parts on each worker, which micro-batches visit in rounds, a round's micro-batches together.

    Raises:
        HostlibError: the micro-batches cannot be divided into rounds of equally many, at least as many as there are stages.
    """
    rounds = max(1, microbatches // stages)
    if microbatches % rounds:
        raise HostlibError(
            f"interleaved: {microbatches} micro-batches cannot be divided into {rounds} equal rounds; "
            f"multiples of stages={stages} can"
        )
    in_round = microbatches // rounds

    def of_stage(stage: int) -> tuple[Pass, ...]:
        forward, backward = [], []
        for number in range(chunks * microbatches):
            turn, place = divmod(number, in_round)
            chunk, microbatch = turn % chunks, turn // chunks * in_round + place
            forward.append(Pass(False, chunk * stages + stage, microbatch))
            backward.append(Pass(True, (chunks - 1 - chunk) * stages + stage, microbatch))
        return _alternating(forward, backward, (chunks - 1) * in_round + 2 * (stages - 1 - stage))

    return PassOrder("interleaved", stages * chunks, microbatches, tuple(map(of_stage, range(stages))))


def _alternating(forward: list[Pass], backward: list[Pass], first: int) -> tuple[Pass, ...]:
    """Some forward passes, then one forward and one backward pass in turn, then the remaining backward passes."""
    first = min(first, len(forward))
    steady = [each for pair in zip(forward[first:], backward, strict=False) for each in pair]
    return (*forward[:first], *steady, *backward[len(forward) - first :])


SCHEDULES: dict[str, Callable[[int, int, int], PassOrder]] = {
    "gpipe": lambda stages, microbatches, _: gpipe(stages, microbatches),
    "1f1b": lambda stages, microbatches, _: one_forward_one_backward(stages, microbatches),
    "interleaved": interleaved,
    "modelparallel": lambda stages, *_: model_parallel(stages),
}


def pass_order(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> PassOrder:
    """The order of a schedule, by its name.

    Args:
        microbatches: of an iteration; `modelparallel` has one.
        chunks: parts on each worker, of `interleaved`.

    Raises:
        UnknownNameError: there is no such schedule.
        HostlibError: fewer than one stage, micro-batch or chunk; or see interleaved.
    """
    if schedule not in SCHEDULES:
        raise UnknownNameError("pipeline schedule", schedule, SCHEDULES)
    for what, number in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if number < 1:
            raise HostlibError(f"{schedule}: {what} must be at least 1, not {number}")
    return SCHEDULES[schedule](stages, microbatches, chunks)


def times(order: PassOrder, forward: Sequence[float], backward: Sequence[float]) -> dict[Pass, tuple[float, float]]:
    """When each pass begins and ends, in the order of their ends, if messages take no time.

    Args:
        forward, backward: time of each part's pass of one micro-batch.

    Raises:
        HostlibError: a pass is missing, is there twice, is on another worker than its part, or waits forever.
    """
    _require_all(order)
    done: dict[Pass, tuple[float, float]] = {}
    at = [0] * len(order.workers)
    free = [0.0] * len(order.workers)
    moved = True
    while moved:
        moved = False
        for worker, passes in enumerate(order.workers):
            while at[worker] < len(passes) and all(need in done for need in order.needs(passes[at[worker]])):
                each = passes[at[worker]]
                begin = max([free[worker], *(done[need][1] for need in order.needs(each))])
                free[worker] = begin + (backward if each.backward else forward)[each.part]
                done[each] = begin, free[worker]
                at[worker] += 1
                moved = True
    for worker, passes in enumerate(order.workers):
        if at[worker] < len(passes):
            raise HostlibError(f"{order.name}: worker {worker} waits forever to begin {passes[at[worker]]}")
    return dict(sorted(done.items(), key=lambda item: item[1][1]))


def _require_all(order: PassOrder) -> None:
    """Check that each part's worker does both passes of each micro-batch once. Raises HostlibError."""
    for worker, passes in enumerate(order.workers):
        own = range(worker, order.parts, len(order.workers))
        expected = {Pass(back, part, m) for back in (False, True) for part in own for m in range(order.microbatches)}
        counts = Counter(passes)
        wrong = sorted(map(str, {each for each in expected | set(counts) if counts[each] != (each in expected)}))
        if wrong:
            raise HostlibError(f"{order.name}: worker {worker} must do {wrong[0]} once, if it is its own")


def drawing(order: PassOrder) -> list[str]:
    """A line for each stage: passes by their labels, if all parts take equally long, and backward passes twice as long as
    forward ones.
    """
    label = {each: order.label(each) for passes in order.workers for each in passes}
    width = max(map(len, label.values())) + 1
    done = times(order, [1] * order.parts, [2] * order.parts)
    lines = []
    for worker, passes in enumerate(order.workers):
        line = ""
        for each in passes:
            begin, end = (round(time) * width for time in done[each])
            line = line.ljust(begin) + label[each].ljust(end - begin - 1, "-" if each.backward else " ") + " "
        lines.append(f"stage{worker}  {line.rstrip()}")
    return lines
