"""The training loop of one rank."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hostlib.collectives.bootstrap import join_group
from hostlib.collectives.collective import Collective
from hostlib.collectives.create import MechanismCollective, create_collective
from hostlib.collectives.deferred_collective import DeferredCollective
from hostlib.collectives.rank_collectives import added_up
from hostlib.collectives.serve import serve
from hostlib.collectives.vendor import LibraryCollective
from hostlib.datasets.batches import Split, batches
from hostlib.datasets.dataset import parse_dataset
from hostlib.datasets.pairing import load_data, load_fitting, shape_for
from hostlib.errors import RunError
from hostlib.models.inspection import example
from hostlib.pipelines.pipeline_options import placement, worker_of
from hostlib.pytorch.ddp_hook import HookState
from hostlib.pytorch.step_times import StepTimes, summary, write_trace
from hostlib.strategies.strategy import Choice, choose
from hostlib.strategies.trainer import Trainer, TrainerContext
from hostlib.system.tcp_counters import ByteCounts, tcp_bytes
from hostlib.train.loss import loss_of
from hostlib.train.options import TrainOptions
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import Transport

MOMENTUM = 0.9
WARM_UP_STEPS = 5
PROFILED_STEPS = 10
TEST_BATCH = 64

Report = Callable[[dict[str, Any]], None]


def train(options: TrainOptions, here: LaunchEnvironment, report: Report) -> dict[str, Any]:
    """Train a model on this rank's share of the data; returns the result, the same on every rank.

    Raises:
        HostlibError: unknown names, no controller, a missing rank, a silent switch.
    """
    choice = choose(options.mechanism)
    servers = choice.servers
    workers = here.world_size - servers
    if workers < 1:
        raise RunError(f"{choice} needs {servers} servers beside its workers; {here.world_size} processes were started")
    choice.require_workers(workers)
    if options.world_size is not None and options.world_size != workers:
        raise RunError(f"--workers {options.world_size} does not match the {workers} ranks that were started")
    _be_deterministic(options.seed)
    with join_group(
        here,
        "train",
        options.deadline_s,
        servers,
        choice.strategy.servers,
        patience_s=options.patience_s,
        silence_s=options.silence_s,
        slots=options.slots,
    ) as (rank_context, job):
        if here.rank >= workers:
            _serve(options, choice, rank_context, job, here.rank - workers)
            return {}
        summing, job = _summing(choice, rank_context, job)
        create = partial(
            create_collective,
            choice.mechanism,
            summing,
            options.controller,
            job,
            options.address,
            fallback=options.fallback,
            lanes=options.lanes,
        )
        # What has shards may never sum a whole tensor, and then needs no place on a switch for it.
        collective = DeferredCollective(job, create) if choice.strategy.spec.sharded else create()
        finished = False
        trainer = None
        try:
            context = _context(options, choice, rank_context, collective)
            data = load_data(parse_dataset(options.data), context.model, options.seed)
            trainer = choice.strategy.trainer(context)
            ranks = replace(here, world_size=workers)
            run = Run(options, ranks, trainer, data, collective, rank_context.transport, report)
            result = run.go()
            finished = True
            return result
        finally:
            if trainer is not None:
                trainer.close(graceful=finished)
            collective.close(graceful=finished)


def _summing(choice: Choice, rank_context: RankContext, job: str) -> tuple[RankContext, str]:
    """The context and the job of the ranks that the mechanism sums over: all, or those with the same stage."""
    if choice.strategy.stages == 1:
        return rank_context, job
    place = placement(rank_context.rank, rank_context.world_size, choice.strategy.stages)
    first = worker_of(place.stage, 0, place.replicas)
    return rank_context.own_part(range(first, first + place.replicas))


def _context(
    options: TrainOptions, choice: Choice, rank_context: RankContext, collective: Collective | None
) -> TrainerContext:
    data = parse_dataset(options.data)
    model = load_fitting(options.model, data)
    return TrainerContext(
        rank_context,
        choice.mechanism,
        model,
        loss_of,
        partial(_sgd, lr=options.lr),
        collective,
        batch_size=options.batch_size,
        bucket_mb=options.bucket_mb,
        example=lambda: example(model, shape_for(data, model)),
        controller=options.controller,
        address=options.address,
    )


def _sgd(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM)


def _serve(options: TrainOptions, choice: Choice, rank_context: RankContext, job: str, number: int) -> None:
    """Run a server: the first ones are the mechanism's, the others the strategy's."""
    if number < choice.mechanism.servers:
        serve(choice.mechanism, rank_context, options.controller, job, options.address, options.lanes)
    else:
        choice.strategy.serve(_context(options, choice, rank_context, None), number - choice.mechanism.servers)


def _be_deterministic(seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    # As use_deterministic_algorithms(True), without importing torch's compiler, which takes a second.
    torch.set_deterministic_debug_mode("error")


class Run:
    """The training loop of one rank."""

    def __init__(
        self,
        options: TrainOptions,
        here: LaunchEnvironment,
        trainer: Trainer,
        data: Split,
        collective: MechanismCollective | DeferredCollective,
        transport: Transport,
        report: Report,
    ) -> None:
        self.options, self.here, self.data = options, here, data
        self.trainer, self.collective, self.transport, self.report = trainer, collective, transport, report

    def go(self) -> dict[str, Any]:
        """Train for all epochs, or for the requested number of steps, then test."""
        options, here = self.options, self.here
        examples = len(self.data.train_labels)
        steps = options.epochs * (examples // (options.batch_size * here.world_size))
        if steps == 0:
            raise RunError(
                f"{examples} examples are too few for one step of {here.world_size} ranks x {options.batch_size}"
            )
        steps = min(steps, options.steps or steps)
        profile = Profile(Path(options.profile), here.rank, steps) if options.profile else None
        durations_ms: list[float] = []
        times: list[tuple[int, int]] = []
        before = self._link_bytes()
        started = time.monotonic()
        for epoch, chosen in islice(self._batches(), steps):
            begin = time.perf_counter()
            with profile.step(len(durations_ms), self.trainer.state) if profile else nullcontext():
                loss = self.trainer.step(self.data.train_images[chosen], self.data.train_labels[chosen])
            durations_ms.append((time.perf_counter() - begin) * 1e3)
            times.append((self.trainer.state.step.communication_ns, self.trainer.state.step.exposed_ns))
            self.report({"event": "step", "step": len(durations_ms), "steps": steps, "epoch": epoch + 1, "loss": loss})
        seconds = time.monotonic() - started
        carried = self._link_bytes() - before
        model = self.trainer.whole()
        self._save(model)
        mine = {
            "sha256": _digest(model),
            "link": asdict(carried),
            "engine": self._engine(),
            "failures": self.collective.failures,
            "times": _steady(times),
            "correct": self._correct(model),
        }
        parameters = sum(p.numel() for p in model.parameters())
        return self._result(durations_ms, seconds, self._gather(mine), parameters)

    def _batches(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (epoch, this rank's batch) for all epochs; a pipeline's ranks have their batches in common."""
        options, here = self.options, self.here
        stages = choose(options.mechanism).strategy.stages
        place = placement(here.rank, here.world_size, stages)
        size, examples = options.batch_size * stages, len(self.data.train_labels)
        for epoch in range(options.epochs):
            for chosen in batches(examples, size, place.replica, place.replicas, options.seed, epoch):
                yield epoch, chosen

    def _link_bytes(self) -> ByteCounts:
        # For messages of libraries, only the kernel has counts.
        counted = None if isinstance(self.collective, LibraryCollective) else self.transport.carried
        carried = tcp_bytes(leave_out_port=self.here.port) if counted is None else counted
        engine = self._engine()
        return carried + ByteCounts(engine["bytes_sent"], engine["bytes_received"]) if engine else carried

    def _engine(self) -> dict[str, int] | None:
        """The counters of this rank's packet engines, added up; None without an engine."""
        return added_up([self.collective.stats(), self.trainer.stats()])

    def _save(self, model: nn.Module) -> None:
        if self.options.save is None or self.here.rank != 0:
            return
        try:
            torch.save(model.state_dict(), self.options.save)
        except (OSError, RuntimeError) as error:
            raise RunError(f"cannot write {self.options.save}: {str(error).splitlines()[0]}") from error

    def _gather(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        everybody: list[Any] = [None] * self.here.world_size
        dist.all_gather_object(everybody, mine)
        return everybody

    def _correct(self, model: nn.Module) -> int:
        """Number of this rank's share of the test examples that the model labels correctly."""
        mine = slice(self.here.rank, None, self.here.world_size)
        images, labels = self.data.test_images[mine], self.data.test_labels[mine]
        model.eval()
        with torch.no_grad():
            guesses = [model(some).argmax(-1) for some in images.split(TEST_BATCH)]
        return int((torch.cat(guesses) == labels).sum()) if guesses else 0

    def _result(
        self, durations_ms: list[float], seconds: float, everybody: list[dict[str, Any]], parameters: int
    ) -> dict[str, Any]:
        steps = len(durations_ms)
        buckets = self.trainer.state.buckets
        cut = self.collective.tensor_cut
        return {
            "mechanism": self.options.mechanism,
            "model": self.options.model,
            "data": self.options.data,
            "world_size": self.here.world_size,
            "seed": self.options.seed,
            "steps": steps,
            "seconds": round(seconds, 3),
            "iteration_ms_median": round(statistics.median(_steady(durations_ms)), 3),
            **summary(step for rank in everybody for step in rank["times"]),
            "test_accuracy": round(sum(rank["correct"] for rank in everybody) / self.data.test_labels.numel(), 4),
            "weights_sha256": [rank["sha256"] for rank in everybody],
            "strategy": self.trainer.notes,
            "parameters": parameters,
            "buckets_per_step": len(buckets) / steps,
            "bucket_elements": {str(size): count for size, count in sorted(Counter(buckets).items())},
            "elements_per_packet": cut.elements if cut else None,
            "steps_chunks_total": sum(cut.positions(size) for size in buckets) if cut else 0,
            "link_bytes": {f"rank{i}": rank["link"] for i, rank in enumerate(everybody)},
            "engine": [rank["engine"] for rank in everybody],
            "fabric_failures": [rank["failures"] for rank in everybody],
            "options": asdict(self.options),
            "versions": {"torch": torch.__version__},
        }


class Profile:
    """Write a Chrome trace of one rank's steps after the warm-up, at most PROFILED_STEPS.

    Raises:
        RunError: the run is too short, or the folder cannot be written to.
    """

    def __init__(self, folder: Path, rank: int, steps: int) -> None:
        if steps <= WARM_UP_STEPS:
            raise RunError(
                f"--chrome-traces writes the iterations after the first {WARM_UP_STEPS}; this run has only {steps}"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write to {folder}: {error.strerror}") from error
        self._path, self._rank = folder / f"rank{rank}.json", rank
        self._end = min(steps, WARM_UP_STEPS + PROFILED_STEPS)
        self._torch = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self._marks: dict[str, int] = {}
        self._times: list[StepTimes] = []

    @contextmanager
    def step(self, number: int, state: HookState) -> Iterator[None]:
        """Profile the step in the block, counted from 0; the trace is written after the last profiled step."""
        if not WARM_UP_STEPS <= number < self._end:
            yield
            return
        if number == WARM_UP_STEPS:
            self._torch.start()
        name = f"step {number + 1}"
        self._marks[name] = time.perf_counter_ns()
        with torch.profiler.record_function(name):
            yield
        self._times.append(state.step)
        if number == self._end - 1:
            self._torch.stop()
            self._write()

    def _write(self) -> None:
        try:
            with TemporaryDirectory(dir=self._path.parent) as folder:
                exported = Path(folder) / "exported.json"
                self._torch.export_chrome_trace(str(exported))
                write_trace(exported, self._path, self._rank, self._marks, self._times)
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}") from error


def _steady(steps: list[Any]) -> list[Any]:
    """The steps after the warm-up; all of them if the run was too short."""
    return steps[WARM_UP_STEPS:] or steps


def _digest(model: nn.Module) -> str:
    """sha256 over names and bytes of all weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
