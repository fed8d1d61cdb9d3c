"""The demo: one model, trained the same way over several mechanisms, through a switch it starts and stops itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from controller.errors import ControllerError
from controller.state_file import STATE_FILE, State
from controller.switches.program import load_artifact
from emulation.demo.comparison import about_weights, compare
from emulation.errors import EmulationError
from hostlib.errors import HostlibError, UnknownNameError
from hostlib.launch.fork_server import ForkServer, fork_server
from hostlib.mechanisms.mechanism import registered
from hostlib.system.http_client import HttpError, controller_status
from hostlib.system.process import StartError, running, write_whole
from hostlib.train.local import TRAINING, launch
from hostlib.train.options import TrainOptions
from hostlib.train.progress import TrainingProgress


class DemoError(EmulationError):
    """The demo could not do what it promises; the message says what and where to look."""


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """What to train and how the network behaves. Probabilities are per packet, port and direction."""

    output: Path
    mechanisms: tuple[str, ...] = ("inagg+mcast", "ring", "gloo")
    model: str = "lenet"
    world_size: int = 4
    epochs: int | None = None
    seed: int = 1
    elements: int = 256
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    deadline_s: float = 30.0


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What build/demo/result.json holds, and the raw material of the printed table."""

    runs: dict[str, dict[str, Any]]
    switch: dict[str, Any]
    predicted_slots: int
    ports: dict[str, dict[str, int]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The contract: {"mechanisms": {NAME: ...}, "switch": ..., "comparison": [...], "weights": SENTENCE}."""
        kept = ("steps", "iteration_ms_median", "test_accuracy", "weights_sha256", "link_bytes")
        return {
            "mechanisms": {name: {key: run[key] for key in kept} for name, run in self.runs.items()},
            "switch": {**self.switch, "slots_predicted": self.predicted_slots},
            "comparison": [each.as_json() for each in compare(self.runs)],
            "weights": about_weights(self.runs),
        }


@contextmanager
def fabric(config: DemoConfig) -> Iterator[str]:
    """A controller with its embedded switch, for as long as the block runs; yields the controller's URL.

    Raises:
        DemoError: it did not come up; the message is the controller's own.
    """
    state_dir = config.output / "fabric"
    state_dir.mkdir(parents=True, exist_ok=True)
    stop = [sys.executable, "-m", "controller", "stop", "--state-dir", str(state_dir)]
    earlier = State.read(state_dir)
    if earlier is not None and earlier.controller.alive:
        raise DemoError(f"another demo is using {config.output}: wait for it, or choose another --output")
    # What a killed earlier demo may have left; when there is nothing this fails, and that is fine.
    subprocess.run(stop, capture_output=True)
    options = {
        "--http": "127.0.0.1:0",
        "--state-dir": state_dir,
        "--elements": config.elements,
        "--seed": config.seed,
        "--loss": config.loss,
        "--duplicate": config.duplicate,
        "--reorder": config.reorder,
    }
    command = [sys.executable, "-m", "controller", "start", "--foreground"]
    command += [str(word) for option in options.items() for word in option]
    with ExitStack() as stack:
        # Also when the controller was killed: its switch is in the state file.
        stack.callback(subprocess.run, stop, capture_output=True)
        try:
            # A session of its own: Ctrl-C reaches the demo alone, which then stops its children in order. And when the
            # demo is killed, the controller is told to end, and takes its switch with it.
            described = stack.enter_context(
                running(
                    command,
                    state_dir / STATE_FILE,
                    config.output / "controller.stderr",
                    what="the controller",
                    dies_by=signal.SIGTERM,
                )
            )
        except StartError as error:
            raise DemoError(str(error)) from error
        yield str(described["http"])


def status(url: str) -> dict[str, Any] | None:
    """The controller's GET /v1/status, or None when it does not answer (it may have been killed)."""
    with suppress(HttpError):
        return controller_status(url)
    return None


def train(config: DemoConfig, mechanism: str, url: str, console: Console, forks: ForkServer) -> dict[str, Any]:
    """One training run, progress on the console; its result, also kept in the output folder.

    Raises:
        DemoError: the run failed; the message is the run's own.
    """
    options = TrainOptions(
        mechanism=mechanism,
        model=config.model,
        world_size=config.world_size,
        seed=config.seed,
        controller=url,
        deadline_s=config.deadline_s,
    )
    if config.epochs is not None:
        options = replace(options, epochs=config.epochs)
    try:
        with TrainingProgress(console, mechanism, shown=True) as report:
            result = launch(options, report, forks)
    except HostlibError as failed:
        raise DemoError(f"{mechanism}: {failed}") from failed
    write_whole(config.output / f"{mechanism.replace('/', '_')}.json", result)
    return result


def run_demo(config: DemoConfig, console: Console) -> DemoResult:
    """Train over every mechanism and compare.

    Raises:
        DemoError: something that was asked for does not exist, a run failed, ranks disagree, or the switch completed another number of slots than predicted.
    """
    _require_runnable(config)
    (config.output / "result.json").unlink(missing_ok=True)
    program = f"netfold-v1model-{config.elements}"
    with ExitStack() as stack:
        # Loads torch while the controller starts.
        forks = stack.enter_context(fork_server(*TRAINING))
        with _step(console, f"starting the controller and the embedded switch, which runs {program} as native code"):
            url = stack.enter_context(fabric(config))
        console.print(f"controller at {url}")
        runs = {}
        for number, mechanism in enumerate(config.mechanisms, start=1):
            title = f"training {config.model} on {config.world_size} workers over {mechanism}"
            with _step(console, f"{title} (run {number} of {len(config.mechanisms)})"):
                runs[mechanism] = train(config, mechanism, url, console, forks)
        described = status(url)
    if described is None:
        raise DemoError(
            "training went on to its end, but the controller died: the switch could not be asked for its counters"
        )
    result = _result(runs, described)
    _verify(result)
    write_whole(config.output / "result.json", result.as_json())
    return result


@contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    """A line that says what begins, and one that says how long it took."""
    begun = time.monotonic()
    console.print(f"{what} ...", soft_wrap=True)
    yield
    console.print(f"  done in {time.monotonic() - begun:.1f} s")


def _require_runnable(config: DemoConfig) -> None:
    """Find out what cannot work before anything is started."""
    try:
        if not config.mechanisms:
            raise UnknownNameError("mechanism", "", registered())
        for name in config.mechanisms:
            defaults = TrainOptions(name, config.model, config.world_size, deadline_s=config.deadline_s)
            replace(defaults, epochs=defaults.epochs if config.epochs is None else config.epochs)
        load_artifact(config.elements)
    except (HostlibError, ControllerError) as error:
        raise DemoError(str(error)) from error
    for name in ("loss", "duplicate", "reorder"):
        if not 0.0 <= getattr(config, name) < 1.0:
            raise DemoError(f"--{name} {getattr(config, name)} is not a probability in [0, 1)")
    try:
        config.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"cannot create {config.output}: {error.strerror}") from error


def _result(runs: dict[str, dict[str, Any]], described: dict[str, Any]) -> DemoResult:
    events, (switch,) = described["events"], described["switches"]
    ports = switch["ports"]
    switch = {
        "kind": described["kind"],
        "program": switch["program"],
        "slots_completed": events["completed"],
        "packets_in": sum(port["packets_in"] for port in ports.values()),
        "replicas_out": events["replica"],
        "drops": {reason: n for reason, n in described["drops"].items() if n},
    }
    predicted = sum(run["steps_chunks_total"] for run in runs.values())
    return DemoResult(runs, switch, predicted, ports)


def _verify(result: DemoResult) -> None:
    for name, run in result.runs.items():
        if len(set(run["weights_sha256"])) != 1:
            raise DemoError(f"{name}: the ranks ended with different weights: {run['weights_sha256']}")
    if result.switch["slots_completed"] != result.predicted_slots:
        raise DemoError(
            f"the switch completed {result.switch['slots_completed']} slots, but steps x buckets x chunks "
            f"predict {result.predicted_slots}"
        )
