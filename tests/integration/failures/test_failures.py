"""Real processes, really killed: a run ends with one clear line, or goes on, and nothing is left behind."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import torch.distributed as dist

from controller.state_file import State
from hostlib.collectives.bootstrap import meet
from hostlib.errors import RunError
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.waits import PATIENCE_S as USUAL_PATIENCE_S
from tests.chaos.training import PATIENCE_S, TrainingRun
from tests.conftest import Fabric, controller, running_fabric, stop_fabric
from tests.training_runs import trained

DEADLINE_S = 3


@pytest.fixture
def train() -> Iterator[Callable[..., TrainingRun]]:
    """Start `hostlib train` runs that would take minutes; none outlives the test."""
    runs: list[TrainingRun] = []

    def start(*options: str, epochs: int = 2000) -> TrainingRun:
        run = TrainingRun.start("--epochs", str(epochs), "--deadline", str(DEADLINE_S), *options)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.stop()


@pytest.mark.parametrize("mechanism", ["inagg+mcast", "ring"])
def test_a_killed_rank_ends_the_run_by_name(
    mechanism: str, train: Callable[..., TrainingRun], start_fabric: Callable[..., Fabric]
) -> None:
    run = train("--mechanism", mechanism, "--controller", start_fabric().http)
    run.wait_for_step()
    pid = run.ranks()[2]
    os.kill(pid, signal.SIGKILL)
    assert run.end(within_s=DEADLINE_S + 10) == 1
    assert run.error() == f"error: rank 2 (pid {pid}) was killed by SIGKILL; the other ranks were stopped"


def test_a_stopped_rank_is_named_by_the_others(train: Callable[..., TrainingRun]) -> None:
    """Over a ring; with the fabric tests/chaos stops one."""
    run = train("--mechanism", "ring")
    run.wait_for_step()
    os.kill(run.ranks()[1], signal.SIGSTOP)
    assert run.end(within_s=DEADLINE_S + 15) == 1
    assert "rank 1 is missing: no sign of life" in run.error()


def test_a_rank_that_never_starts_is_named() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(RunError, match=r"^ranks 1, 2 did not start within 1 s$"):
        meet(store, LaunchEnvironment(0, 3, "127.0.0.1", store.port), 1.0)


EPOCHS = 24  # Long enough for the switch to be back before the end.
SHORT = ("--mechanism", "inagg+mcast", "--workers", "2")


@pytest.fixture(scope="module")
def shared_fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with running_fabric(tmp_path_factory.mktemp("fabric") / "state") as fabric:
        yield fabric


@pytest.fixture(scope="module")
def undisturbed(shared_fabric: Fabric) -> str:
    """sha256 of the weights that a SHORT run of so many EPOCHS ends with."""
    first, second = trained(*SHORT, "--epochs", str(EPOCHS), "--controller", shared_fabric.http)["weights_sha256"]
    assert first == second
    return first


@pytest.mark.parametrize(
    "mechanism", ["inagg+mcast", pytest.param("inagg", marks=(pytest.mark.slow, pytest.mark.crossed))]
)  # With a server, that has to follow the ranks.
def test_training_survives_a_killed_switch_and_returns_to_it(
    mechanism: str, train: Callable[..., TrainingRun], shared_fabric: Fabric, undisturbed: str, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    options = (*SHORT, "--mechanism", mechanism, "--controller", shared_fabric.http, "--output", str(path))
    run = train(*options, epochs=EPOCHS)
    run.wait_for_step()
    state = State.read(shared_fabric.state_dir)
    assert state is not None
    os.kill(state.processes["switch"].pid, signal.SIGKILL)
    assert run.end(within_s=PATIENCE_S) == 0, run.output
    result = json.loads(path.read_text())
    assert result["weights_sha256"] == [undisturbed] * 2
    for (failure,) in result["fabric_failures"]:
        # Noticed when nobody listens at its address any more, and not before the ranks have looked twice.
        assert 0 < failure["agreement_ms"] <= failure["lost_ms"] < 1000 * DEADLINE_S
        assert failure["by_hosts"] > 0 and failure["returned"]


def test_who_has_less_patience_leaves_a_silent_switch_sooner(
    train: Callable[..., TrainingRun], start_fabric: Callable[..., Fabric], tmp_path: Path
) -> None:
    fabric, path = start_fabric(), tmp_path / "result.json"
    run = train(*SHORT, "--patience", "500ms", "--controller", fabric.http, "--output", str(path), epochs=4)
    run.wait_for_step()
    os.kill(fabric.state["processes"]["switch"]["pid"], signal.SIGSTOP)
    assert run.end(within_s=PATIENCE_S) == 0, run.output
    for failures in json.loads(path.read_text())["fabric_failures"]:
        assert 500 <= failures[0]["lost_ms"] < 1000 * USUAL_PATIENCE_S


def test_loss_is_not_taken_for_a_dead_switch(shared_fabric: Fabric, tmp_path: Path) -> None:
    """One packet in five is lost at every port, each way."""
    options = ("--mechanism", "inagg+mcast", "--workers", "4", "--iterations", "20")
    true = trained(*options, "--controller", shared_fabric.http)["weights_sha256"]
    with running_fabric(tmp_path / "state", "--loss", "0.2", "--seed", "1") as fabric:
        result = trained(*options, "--controller", fabric.http)
        assert fabric.status()["events"]["answered"] > 0
    assert result["fabric_failures"] == [[]] * 4
    assert result["weights_sha256"] == true


class Forwarding(ThreadingHTTPServer):
    """An address at which one controller answers, and then another, without the time that it takes to start."""

    daemon_threads = True

    def __init__(self, to: str) -> None:
        super().__init__(("127.0.0.1", 0), Forwarder)
        self.to = to
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Forwarder(BaseHTTPRequestHandler):
    def forward(self) -> None:
        assert isinstance(self.server, Forwarding)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers}
        try:
            answer = httpx.request(self.command, self.server.to + self.path, content=body, headers=headers, timeout=10)
        except httpx.HTTPError as error:
            self.send_error(502, str(error))
            return
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_DELETE = forward

    def log_message(self, *_: object) -> None:
        """Nothing is said."""


@pytest.mark.slow
def test_a_fabric_of_other_packets_is_not_gone_back_to(
    train: Callable[..., TrainingRun], start_fabric: Callable[..., Fabric], undisturbed: str, tmp_path: Path
) -> None:
    """Its blocks would be others, and with them the weights."""
    fabric, other, path = start_fabric(), start_fabric("--elements", "64"), tmp_path / "result.json"
    with Forwarding(fabric.http) as controllers:
        run = train(*SHORT, "--controller", controllers.url, "--output", str(path), epochs=EPOCHS)
        run.wait_for_step()
        controllers.to = other.http
        stop_fabric(fabric.state_dir)
        assert run.end(within_s=PATIENCE_S) == 0, run.output
    result = json.loads(path.read_text())
    assert result["weights_sha256"] == [undisturbed] * 2
    for (failure,) in result["fabric_failures"]:
        assert failure["by_hosts"] > 0 and not failure["returned"]
        assert failure["refused"].startswith("the fabric came back with 64 elements per packet in pools of ")
    assert run.output.count("warning: the fabric came back with 64 elements per packet") == 1


# Who sums the same on hosts, without a switch. Of two values every such sum is the same.
BY_HOSTS = {"mcast": "ring", "ring+mcast": "ring", "sfb:multicast/ring": "sfb/ring"}
STOPPED_EPOCHS = 4 * EPOCHS  # A switch that is stopped is taken for dead, and started again, seconds later.


@pytest.fixture(scope="module")
def by_hosts() -> Callable[[str, int], list[str]]:
    """sha256 of the weights that two ranks end with, by mechanism and number of epochs."""

    @functools.cache
    def weights(mechanism: str, epochs: int) -> list[str]:
        options = ("--mechanism", mechanism, "--workers", "2", "--epochs", str(epochs))
        sums: list[str] = trained(*options)["weights_sha256"]
        return sums

    return weights


@pytest.mark.parametrize(
    ("mechanism", "how"),
    [
        # The test's own bound for this run is above pytest's usual one for a test.
        pytest.param(
            "mcast",
            signal.SIGSTOP,
            marks=[
                pytest.mark.slow,
                pytest.mark.crossed,
                pytest.mark.timeout(60 + PATIENCE_S * STOPPED_EPOCHS / EPOCHS),
            ],
        ),
        ("ring+mcast", signal.SIGKILL),
        pytest.param("mcast", signal.SIGKILL, marks=(pytest.mark.slow, pytest.mark.crossed)),
        pytest.param("sfb:multicast/ring", signal.SIGKILL, marks=(pytest.mark.slow, pytest.mark.crossed)),
    ],
)
def test_what_the_switch_only_multicasts_goes_past_it_until_it_is_back(
    mechanism: str,
    how: signal.Signals,
    train: Callable[..., TrainingRun],
    start_fabric: Callable[..., Fabric],
    by_hosts: Callable[[str, int], list[str]],
    tmp_path: Path,
) -> None:
    fabric, path = start_fabric(), tmp_path / "result.json"
    epochs = STOPPED_EPOCHS if how == signal.SIGSTOP else EPOCHS
    options = ("--mechanism", mechanism, "--workers", "2", "--controller", fabric.http, "--output", str(path))
    run = train(*options, epochs=epochs)
    run.wait_for_step()
    os.kill(fabric.state["processes"]["switch"]["pid"], how)
    assert run.end(within_s=PATIENCE_S * epochs / EPOCHS) == 0, run.output
    result = json.loads(path.read_text())
    assert result["weights_sha256"] == by_hosts(BY_HOSTS[mechanism], epochs)
    own = result["strategy"].get("fabric_failures")
    for (failure,) in result["fabric_failures"] if own is None else [own]:
        # Both are of tenths of a millisecond, and a message may arrive just before the agreement begins.
        assert 0 < failure["agreement_ms"] <= failure["lost_ms"] < 1000 * DEADLINE_S
        assert failure["by_hosts"] > 0 and failure["returned"]
    assert sum(switch["events"]["chunk"] for switch in fabric.status()["switches"]) > 0


def test_training_goes_on_without_the_controller(
    train: Callable[..., TrainingRun], start_fabric: Callable[..., Fabric], undisturbed: str, tmp_path: Path
) -> None:
    fabric, path = start_fabric(), tmp_path / "result.json"
    run = train(*SHORT, "--controller", fabric.http, "--output", str(path), epochs=EPOCHS)
    run.wait_for_step()
    os.kill(fabric.state["pid"], signal.SIGKILL)
    assert run.end(within_s=PATIENCE_S) == 0, run.output
    result = json.loads(path.read_text())
    assert (result["weights_sha256"], result["fabric_failures"]) == ([undisturbed] * 2, [[], []])
    stopped = controller("stop", "--state-dir", fabric.state_dir)
    assert stopped.stdout == f"stopped switch (pid {fabric.state['processes']['switch']['pid']})\n"


def test_interrupting_leaves_nothing_behind(train: Callable[..., TrainingRun]) -> None:
    run = train("--mechanism", "ring")
    run.wait_for_step()
    run.process.send_signal(signal.SIGINT)
    assert run.end(within_s=15) == 130


def test_a_killed_launcher_takes_its_ranks_with_it(train: Callable[..., TrainingRun]) -> None:
    run = train("--mechanism", "ring")
    run.wait_for_step()
    run.process.kill()
    run.process.communicate(timeout=10)
    give_up = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in run.pids):
        assert time.monotonic() < give_up, f"still running: {run.pids}"
