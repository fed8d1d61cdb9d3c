"""One rank of a training run: `python -m hostlib.train` under torchrun, or started by `hostlib train`."""

from __future__ import annotations

import hashlib
import os
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hostlib.collective import Group, LibraryCollective, ScheduledCollective, chunks, create_collective, gloo_reason
from hostlib.data import Split, batches, digits
from hostlib.errors import HostlibError, RunError
from hostlib.hook import HookState, average_hook
from hostlib.link import LinkBytes, tcp_bytes
from hostlib.liveness import Liveness
from hostlib.models import build_model
from hostlib.options import TrainOptions
from hostlib.registry import choose

MOMENTUM = 0.9
WARM_UP_STEPS = 5
GLOO_GRACE_S = 10.0

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What torchrun (or the launcher) says in the environment."""

    rank: int
    world_size: int
    host: str
    port: int

    @classmethod
    def from_environment(cls) -> Surroundings:
        """Raises RunError when started by hand."""
        try:
            here = cls(
                int(os.environ["RANK"]),
                int(os.environ["WORLD_SIZE"]),
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
            )
        except KeyError as absent:
            raise RunError(f"{absent.args[0]} is not set: run this under torchrun, or use `hostlib train`") from absent
        except ValueError as wrong:
            raise RunError(f"RANK, WORLD_SIZE and MASTER_PORT must be numbers: {wrong}") from wrong
        if not 0 <= here.rank < here.world_size:
            raise RunError(
                f"rank {here.rank} is not in 0..{here.world_size - 1}, the ranks of world size {here.world_size}"
            )
        return here


def train(options: TrainOptions, here: Surroundings, report: Report) -> dict[str, Any]:
    """Train one model on this rank's share of the data; what came of it, the same on every rank.

    Raises:
        HostlibError: unknown names, no controller, a missing rank, a silent switch.
    """
    choice = choose(options.mechanism)
    if options.world_size is not None and options.world_size != here.world_size:
        raise RunError(
            f"--world-size {options.world_size} does not match the {here.world_size} ranks that were started"
        )
    _be_deterministic(options.seed)
    model = build_model(options.model)
    store = dist.TCPStore(
        here.host,
        here.port,
        is_master=False,
        timeout=timedelta(seconds=options.deadline_s + 30),
        wait_for_workers=False,
    )
    store = dist.PrefixStore(f"netfold-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(
        "gloo", store=store, rank=here.rank, world_size=here.world_size, timeout=timedelta(seconds=options.deadline_s)
    )
    if here.rank == 0:
        store.set("job", f"train-{uuid.uuid4().hex[:12]}")
    job = store.get("job").decode()
    liveness = Liveness(here.host, here.port, job, here.rank, here.world_size)
    started = time.monotonic()
    try:
        gloo = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        group = Group(here.rank, here.world_size, gloo, liveness, options.deadline_s)
        collective = create_collective(choice.mechanism, group, options.controller, job, options.address)
        try:
            run = Run(options, here, choice.strategy, model, digits(options.seed), collective, report)
            return run.go()
        finally:
            collective.close()
    except HostlibError:
        raise
    except (RuntimeError, OverflowError) as wrong:
        raise _unwrapped(wrong, liveness, time.monotonic() - started) from wrong
    finally:
        liveness.close()


def _unwrapped(wrong: Exception, liveness: Liveness, waited_s: float) -> HostlibError:
    """torch turns a future's exception into a RuntimeError that quotes it; the line of ours is inside."""
    text = str(wrong)
    for line in text.splitlines():
        name, colon, message = line.partition("Error: ")
        if colon and name in ("MissingRank", "Fabric", "Run", "UnknownName", "Hostlib", "Join", "Schedule"):
            return RunError(message)
    return liveness.explain(waited_s, lambda: RunError(gloo_reason(wrong)))


def _be_deterministic(seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


class Run:
    """The training loop of one rank."""

    def __init__(
        self,
        options: TrainOptions,
        here: Surroundings,
        strategy: str,
        model: nn.Module,
        data: Split,
        collective: ScheduledCollective | LibraryCollective,
        report: Report,
    ) -> None:
        self.options, self.here, self.data = options, here, data
        self.collective, self.report = collective, report
        self.state = HookState(collective)
        self.plain = model
        self.wait_free = strategy == "wfbp"
        self.model: nn.Module = model
        if self.wait_free:
            self.model = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
            self.model.register_comm_hook(self.state, average_hook)
        self.optimiser = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=MOMENTUM)
        self.loss = nn.CrossEntropyLoss()

    def go(self) -> dict[str, Any]:
        """Train for all epochs, then test."""
        options, here = self.options, self.here
        examples = len(self.data.train_labels)
        steps = options.epochs * (examples // (options.batch_size * here.world_size))
        if steps == 0:
            raise RunError(f"{examples} examples are not one step of {here.world_size} ranks x {options.batch_size}")
        durations_ms: list[float] = []
        before = self._link_bytes()
        started = time.monotonic()
        for epoch in range(options.epochs):
            for chosen in batches(examples, options.batch_size, here.rank, here.world_size, options.seed, epoch):
                begin = time.perf_counter()
                loss = self._step(self.data.train_images[chosen], self.data.train_labels[chosen])
                durations_ms.append((time.perf_counter() - begin) * 1e3)
                self.report(
                    {"event": "step", "step": len(durations_ms), "steps": steps, "epoch": epoch + 1, "loss": loss}
                )
        seconds = time.monotonic() - started
        carried = self._link_bytes() - before
        mine = {"sha256": _digest(self.plain), "link": asdict(carried), "engine": self.collective.stats()}
        return self._result(durations_ms, seconds, self._gather(mine))

    def _step(self, images: Tensor, labels: Tensor) -> float:
        self.optimiser.zero_grad(set_to_none=False)
        loss = self.loss(self.model(images), labels)
        loss.backward()
        if not self.wait_free:
            self._synchronise()
        self.optimiser.step()
        return float(loss.detach())

    def _synchronise(self) -> None:
        """bsp: all gradients as one tensor, after the backward pass."""
        gradients = [p.grad for p in self.plain.parameters() if p.grad is not None]
        flat = torch.cat([g.view(-1) for g in gradients])
        self.state.buckets.append(flat.numel())
        self.collective.allreduce(flat, average=True).wait()
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _link_bytes(self) -> LinkBytes:
        carried = tcp_bytes(leave_out_port=self.here.port)
        engine = self.collective.stats()
        return carried + LinkBytes(engine["bytes_sent"], engine["bytes_received"]) if engine else carried

    def _gather(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        everybody: list[Any] = [None] * self.here.world_size
        dist.all_gather_object(everybody, mine)
        return everybody

    def _accuracy(self) -> float:
        self.plain.eval()
        with torch.no_grad():
            guesses = self.plain(self.data.test_images).argmax(1)
        return float((guesses == self.data.test_labels).float().mean())

    def _result(self, durations_ms: list[float], seconds: float, everybody: list[dict[str, Any]]) -> dict[str, Any]:
        steps = len(durations_ms)
        buckets = self.state.buckets
        packet = self.collective.elements_per_packet
        steady = durations_ms[WARM_UP_STEPS:] or durations_ms
        return {
            "mechanism": self.options.mechanism,
            "model": self.options.model,
            "world_size": self.here.world_size,
            "seed": self.options.seed,
            "steps": steps,
            "seconds": round(seconds, 3),
            "iteration_ms_median": round(statistics.median(steady), 3),
            "test_accuracy": round(self._accuracy(), 4),
            "weights_sha256": [rank["sha256"] for rank in everybody],
            "parameters": sum(p.numel() for p in self.plain.parameters()),
            "buckets_per_step": len(buckets) / steps,
            "bucket_elements": {str(size): count for size, count in sorted(Counter(buckets).items())},
            "elements_per_packet": packet or None,
            "steps_chunks_total": sum(chunks(size, packet) for size in buckets) if packet else 0,
            "link_bytes": {f"rank{i}": rank["link"] for i, rank in enumerate(everybody)},
            "engine": [rank["engine"] for rank in everybody],
            "options": asdict(self.options),
            "versions": {"torch": torch.__version__},
        }


def _digest(model: nn.Module) -> str:
    """sha256 over names and bytes of all weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    from hostlib.cli import run_rank

    run_rank()
