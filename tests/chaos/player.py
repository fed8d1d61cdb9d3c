"""Play a scenario with real processes, and judge what became of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from controller.state_file import State
from hostlib.errors import HostlibError
from hostlib.launch.fork_server import ForkServer, fork_server
from hostlib.launch.launcher import OPTIONS_VARIABLE
from hostlib.train.options import TrainOptions
from tests.chaos.scenario import DEADLINE_S, KINDS, NONE, Blow, Equipment, Scenario, Workload
from tests.conftest import ROOT, Fabric, controller

RANK = "tests.chaos.rank"
HANG_S = 60.0  # No run takes so long, however busy the machine.
BACK_S = 30.0  # Within this the fabric must be back after whatever was done to it.
# Beyond the deadline: to look who is missing, and to end. A busy machine doubles it.
MARGIN_S = 6.0
LOOK_S = 0.01
DUMP_S = 1.0
LEAVE_S = 5.0  # So long the controller may need to hear that a rank left.
MISSING = re.compile(r"ranks? ([\d, ]+) (?:is|are) missing")


@dataclass(slots=True)
class Outcome:
    """What became of a run.

    Attributes:
        ended: finished (with the right weights), named (the missing rank), or failed.
        problems: why it failed: one line each; the evidence is in `dumps`.
        lost_ms: per failure of the fabric that the ranks went through, the most that a rank says.
        returned: of these, how many were followed by a return to the fabric.
    """

    scenario: Scenario
    ended: str
    seconds: float
    problems: list[str]
    stderr_lines: list[str]
    failures: list[dict[str, Any]] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)

    @property
    def lost_ms(self) -> list[float]:
        return [failure["lost_ms"] for failure in self.failures]

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.scenario.number,
            "seed": self.scenario.seed,
            "kind": self.scenario.kind,
            "ended": self.ended,
            "seconds": round(self.seconds, 2),
            "wrong": self.problems,
            "failures": self.failures,
            "scenario": self.scenario.as_json(),
            "said": self.stderr_lines,
            "dumps": self.dumps,
        }


class Fabrics:
    """Controllers with their switches, each started when it is first needed and kept for later runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: dict[Equipment, Path] = {}
        self._count = itertools.count()

    def state(self, equipment: Equipment) -> State | None:
        return State.read(self._started[equipment])

    def ready(self, equipment: Equipment) -> Fabric:
        """It, up and without jobs, whatever was done to it before.

        Raises:
            RuntimeError: it does not come back by itself.
        """
        if equipment not in self._started:
            self._started[equipment] = self._directory / f"fabric{next(self._count)}"
        state_dir = self._started[equipment]
        state = State.read(state_dir)
        if state is None or not state.controller.alive:
            self._start(state_dir, equipment)
        fabric = self._fabric(state_dir)
        give_up, status = time.monotonic() + BACK_S, {}
        while True:
            with contextlib.suppress(OSError):
                status = fabric.status()
                for job in status["jobs"]:
                    fabric.call("DELETE", f"/v1/jobs/{job['name']}")  # Ranks that were killed do not leave.
                if status["up"] and not status["jobs"]:
                    return fabric
            if time.monotonic() > give_up:
                raise RuntimeError(f"the fabric {equipment} was not back within {BACK_S:.0f} s: {status}")
            time.sleep(0.1)

    @staticmethod
    def places_left(fabric: Fabric) -> list[str]:
        """Jobs that somebody is still in, though all have had the time to leave."""
        give_up = time.monotonic() + LEAVE_S
        while jobs := [job["name"] for job in fabric.status()["jobs"]]:
            if time.monotonic() > give_up:
                break
            time.sleep(0.05)
        return jobs

    def _start(self, state_dir: Path, equipment: Equipment) -> None:
        faults = [word for name in ("loss", "duplicate", "reorder") for word in (f"--{name}", str(equipment.fault))]
        options = ["--elements", str(equipment.elements), *faults]
        done = controller("start", "--http", "127.0.0.1:0", "--state-dir", state_dir, *options)
        if done.returncode != 0:
            raise RuntimeError(f"controller start: {done.stderr.strip()}")

    @staticmethod
    def _fabric(state_dir: Path) -> Fabric:
        state = json.loads((state_dir / "controller.json").read_text())
        return Fabric(state["http"], state_dir, state)

    def give_up(self, equipment: Equipment) -> list[str]:
        """Stop it, for another to be started in its place; what its controller said last."""
        state_dir = self._started.pop(equipment, None)
        if state_dir is None:
            return []
        controller("stop", "--state-dir", state_dir)
        log = state_dir / "controller.log"
        return log.read_text().splitlines()[-20:] if log.exists() else []

    def close(self) -> None:
        for state_dir in self._started.values():
            controller("stop", "--state-dir", state_dir)


class Player:
    """Plays scenarios, one after the other. A context manager: nothing that it started outlives it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._weights: dict[tuple[Workload, int], str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Player:
        self.fabrics = Fabrics(self._directory)
        self._stack.callback(self.fabrics.close)
        self._fork_server = self._stack.enter_context(fork_server(RANK, folder=ROOT))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def play(self, scenario: Scenario) -> Outcome:
        """Play it, and before it, once, what it trains without any disturbance."""
        try:
            return self._play(scenario)
        except (OSError, RuntimeError, HostlibError) as error:
            # The fabric, or the fork_server: another run does not depend on it.
            stderr_lines = self.fabrics.give_up(scenario.equipment)
            return Outcome(scenario, "failed", 0.0, [str(error)], stderr_lines)

    def _play(self, scenario: Scenario) -> Outcome:
        key = scenario.workload, scenario.equipment.elements
        if key not in self._weights:
            calm = replace(scenario, kind=NONE, blows=(), equipment=replace(scenario.equipment, fault=0.0))
            outcome, weights = self._once(calm, None)
            if outcome.ended != "finished" or len(weights) != 1:
                outcome.problems.insert(0, "the undisturbed run of this configuration failed")
                return outcome
            self._weights[key] = weights.pop()
        return self._once(scenario, self._weights[key])[0]

    def _once(self, scenario: Scenario, expected: str | None) -> tuple[Outcome, set[str]]:
        fabric = self.fabrics.ready(scenario.equipment)
        folder = self._directory / f"run{scenario.number}"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        run = _Run(scenario, folder, self._fork_server, lambda: self.fabrics.state(scenario.equipment))
        try:
            run.start(store.port, fabric.http)
            run.watch()
        finally:
            run.end()
        if run.controller_hit:
            self.fabrics.ready(scenario.equipment)  # A switch that nobody controls ends after a while.
        if not run.took_away:
            run.places_left = self.fabrics.places_left(fabric)
        outcome, weights = run.judge(expected)
        if outcome.ended != "failed":
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        return outcome, weights


class _Run:
    """One run on its way."""

    def __init__(self, scenario: Scenario, folder: Path, forks: ForkServer, state: Any) -> None:
        self.scenario, self._folder, self._fork_server, self._state = scenario, folder, forks, state
        self._pids: list[int] = []
        self._events = (folder / "rank0.out").open("ab+")
        self._events.seek(0)
        self._partial = b""
        self._step, self._steps = 0, 0
        self._result: dict[str, Any] | None = None
        self._due: list[tuple[float, Blow]] = []
        self._continue: list[tuple[float, int]] = []
        self._waiting = list(scenario.blows)
        self._landed: list[Blow] = []
        self._lethal: dict[int, float] = {}  # rank -> when it was taken away
        self._paused: set[int] = set()  # may be named, too, when it happens to be stopped then
        self._gone_s: dict[int, float] = {}  # rank -> when its end was heard of
        self._began = time.monotonic()
        self.controller_hit = False
        self._hung: list[int] = []
        self.places_left: list[str] = []
        self._dumps: list[str] = []

    def start(self, port: int, http: str) -> None:
        work = self.scenario.workload
        options = TrainOptions(
            mechanism=work.mechanism,
            model=work.model,
            world_size=work.world_size,
            epochs=work.epochs,
            batch_size=work.batch_size,
            bucket_mb=work.bucket_mb,
            controller=http,
            deadline_s=DEADLINE_S,
        )
        for rank in range(work.world_size):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(work.world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                OPTIONS_VARIABLE: options.to_json(),
            }
            paths = (self._folder / f"rank{rank}.{kind}" for kind in ("err", "out"))
            with ExitStack() as opened:
                errors, output = (opened.enter_context(path.open("ab")).fileno() for path in paths)
                self._pids.append(self._fork_server.fork(RANK, environment, None, errors, output, f"rank {rank}"))

    @property
    def took_away(self) -> bool:
        """Whether somebody is gone who could have given a place back, or taken it; a place that is not is lost after
        the lease. While the switch is stopped, the controller waits for it, and a rank that ends does not.
        """
        stopped = any(blow.kind in ("stop-switch", "pause-switch") for blow in self._landed)
        return bool(self._lethal or self._hung or self.controller_hit or stopped)

    # ---- while it runs -------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Until every rank that can end has ended, or hangs."""
        while True:
            self._fork_server.listen(LOOK_S)
            now = time.monotonic()
            for rank, pid in enumerate(self._pids):
                if pid in self._fork_server.ended:
                    self._gone_s.setdefault(rank, now)
            left = [rank for rank in range(len(self._pids)) if rank not in self._gone_s and rank not in self._lethal]
            if not left:
                return
            if now > self._began + HANG_S:
                self._hung = left
                self._dump(left)
                return
            self._listen()
            self._strike(now)

    def _listen(self) -> None:
        *lines, self._partial = (self._partial + self._events.read()).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "step":
                self._step, self._steps = event["step"], event["steps"]
            elif event.get("event") == "result":
                self._result = event["result"]

    def _strike(self, now: float) -> None:
        while self._waiting and self._step > 0 and self._step >= self._waiting[0].after * self._steps:
            blow = self._waiting.pop(0)
            self._due.append((now + blow.delay_s, blow))
        for when, blow in [each for each in self._due if each[0] <= now]:
            self._due.remove((when, blow))
            self._landed.append(blow)
            for victim in KINDS[blow.kind].victims:
                self._hit(blow, victim, now)
        for when, pid in [each for each in self._continue if each[0] <= now]:
            self._continue.remove((when, pid))
            _signal(pid, signal.SIGCONT)

    def _hit(self, blow: Blow, victim: str, now: float) -> None:
        kind = KINDS[blow.kind]
        if victim == "rank":
            pid = self._pids[blow.rank]
            if blow.rank in self._gone_s or blow.rank in self._lethal:
                return
            if kind.ends_the_run:
                self._lethal[blow.rank] = now
            else:
                self._paused.add(blow.rank)
        else:
            state = self._state()
            process = None
            if state is not None:
                process = state.controller if victim == "controller" else state.processes.get("switch")
            self.controller_hit |= victim == "controller"
            if process is None or not process.alive:
                return
            pid = process.pid
        _signal(pid, signal.SIGKILL if kind.signal == "KILL" else signal.SIGSTOP)
        if blow.lasts_s is not None:
            self._continue.append((now + blow.lasts_s, pid))

    def _dump(self, ranks: list[int]) -> None:
        for rank in ranks:
            _signal(self._pids[rank], signal.SIGUSR1)
        time.sleep(DUMP_S)
        self._dumps = [f"rank {rank}:\n{self._error_text(rank)}" for rank in ranks]

    def _error_text(self, rank: int) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / f"rank{rank}.err").read_text(errors="replace")
        return ""

    def end(self) -> None:
        """Nothing of the run is left."""
        for _, pid in self._continue:
            _signal(pid, signal.SIGCONT)
        state = self._state()
        if state is not None and not state.controller.alive:
            for process in state.processes.values():
                _signal(process.pid, signal.SIGCONT)  # Nobody else would wake it.
        for pid in self._pids:
            if pid not in self._fork_server.ended:
                _signal(pid, signal.SIGKILL)
        give_up = time.monotonic() + 10
        while any(pid not in self._fork_server.ended for pid in self._pids) and time.monotonic() < give_up:
            self._fork_server.listen(0.1)
        self._listen()
        self._events.close()

    # ---- afterwards ----------------------------------------------------------------------------------------------

    def judge(self, expected: str | None) -> tuple[Outcome, set[str]]:
        """What became of it, and the weights that it ended with."""
        weights = set(self._result["weights_sha256"]) if self._result is not None else set()
        problems = list(self._complaints(weights, expected))
        errors = {rank: self._error_text(rank).strip() for rank in range(len(self._pids))}
        named = bool(self._lethal) and any(self._fork_server.ended.get(pid) == 1 for pid in self._pids)
        return Outcome(
            self.scenario,
            "failed" if problems else "named" if named else "finished",
            time.monotonic() - self._began,
            problems,
            [f"rank {rank}: {text}" for rank, text in errors.items() if text],
            self._failures(),
            self._dumps,
        ), weights

    def _complaints(self, weights: set[str], expected: str | None) -> Iterator[str]:
        if self._hung:
            yield f"hang: ranks {self._hung} were still there after {HANG_S:.0f} s"
        for rank, pid in enumerate(self._pids):
            if rank in self._lethal or rank in self._hung:
                continue
            status, text = self._fork_server.ended.get(pid), self._error_text(rank).strip()
            if status is None:
                yield f"rank {rank} (pid {pid}) was left over"
            elif status == 1 and self._lethal:
                yield from self._not_named(rank, text)
            elif status != 0:
                yield f"rank {rank} ended with {status}: {text}"
            elif text:
                yield f"rank {rank} ended well, but said: {text}"
        if self.places_left:
            yield f"places in {', '.join(self.places_left)} were not given back"
        if not self._lethal and not self._hung and self._result is None:
            yield "there is no result"
        if self._result is not None and (len(weights) != 1 or (expected is not None and weights != {expected})):
            yield f"wrong weights: {sorted(weights)}, not {expected}"

    def _not_named(self, rank: int, text: str) -> Iterator[str]:
        lines = text.splitlines()
        if len(lines) != 1 or not lines[0].startswith("error: "):
            yield f"rank {rank} said more than one line: {text}"
            return
        found = MISSING.search(text)
        missing = {int(number) for number in re.findall(r"\d+", found[1])} if found else set()
        if not missing & set(self._lethal) or missing - set(self._lethal) - self._paused:
            yield f"rank {rank} does not name {sorted(self._lethal)} alone: {text}"
        waited_s = self._gone_s[rank] - min(self._lethal.values())
        if waited_s > DEADLINE_S + MARGIN_S:
            yield f"rank {rank} needed {waited_s:.1f} s to find {sorted(self._lethal)} missing"

    def _failures(self) -> list[dict[str, Any]]:
        """Of the fabric, as the rank sees it that lost most."""
        if self._result is None:
            return []
        by_rank = self._result["fabric_failures"]
        return [
            max((rank[number] for rank in by_rank if number < len(rank)), key=lambda failure: failure["lost_ms"])
            for number in range(max(map(len, by_rank)))
        ]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
