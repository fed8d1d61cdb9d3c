"""Parameter sweeps: many simulations on all cores or a Dask cluster; results are saved line by line, so a sweep can
resume.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from rich.console import Console

from hostlib.errors import HostlibError
from hostlib.system import interrupts
from hostlib.system.plot_file import new_figure, require_drawable, save
from hostlib.system.user_file import parse_json, read_text
from hostlib.text import units
from hostlib.text.progress_lines import PlainProgress
from simulation.errors import ClusterError, SimulationError

MEASURES = ("iteration_s", "wall_s", "events", "events_per_s", "memory_mb")
Play = Callable[[Any], dict[str, Any]]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation; `options` are the command's, the same for all points."""

    model: str
    mechanism: str
    bandwidth: str
    workers: int
    options: dict[str, Any]

    @property
    def named(self) -> str:
        return f"{self.model}, {self.mechanism}, {self.bandwidth}, {self.workers} workers"

    @property
    def key(self) -> str:
        """Its identity in a file of results."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Grid:
    """All combinations of the parameters."""

    models: list[str]
    mechanisms: list[str]
    bandwidths: list[str]
    workers: list[str]
    options: dict[str, Any]

    def points(self) -> list[Point]:
        """The points, in order.

        Raises:
            SimulationError: an empty list, or an illegal number of workers.
        """
        for option, values in (
            ("--model", self.models),
            ("--mechanism", self.mechanisms),
            ("--bandwidth", self.bandwidths),
            ("--workers", self.workers),
        ):
            if not values:
                raise SimulationError(f"{option} is empty")
        for text in self.workers:
            if not text.isdecimal() or int(text) < 1:
                raise SimulationError(f"--workers takes numbers above 0, not {text!r}")
        for text in self.bandwidths:
            units.bandwidth(text)
        options = {name: list(value) if isinstance(value, tuple) else value for name, value in self.options.items()}
        return [
            Point(model, mechanism, bandwidth, int(workers), options)
            for model, mechanism, bandwidth, workers in product(
                self.models, self.mechanisms, self.bandwidths, self.workers
            )
        ]


def run_sweep(
    grid: Grid,
    play: Play,
    output: Path | None,
    processes: int | None,
    cluster: str | None,
    console: Console,
    require: Callable[[Point], None] = lambda _: None,
) -> list[Row]:
    """Simulate all points that `output` does not have yet; returns rows in the grid's order.

    Args:
        require: raises SimulationError or HostlibError for a point that cannot be played, before any is; it is left out.

    Raises:
        SimulationError: an impossible point (earlier results are kept), or an `output` that cannot be written.
        ClusterError: Dask is missing, or no cluster answers at that address.
    """
    points = _playable(grid.points(), require, console)
    if processes is not None and processes < 1:
        raise SimulationError(f"--processes must be at least 1, not {processes}")
    done = _known(output)
    _require_writable(output)
    if cluster is not None and importlib.util.find_spec("distributed") is None:
        raise ClusterError("--cluster needs Dask: pip install 'netfold[cluster]'")
    todo = [point for point in points if point.key not in done]
    with PlainProgress("simulating", len(points), len(points) - len(todo), console) as advance:
        for point, row in _on_cluster(play, todo, cluster) if cluster else _on_cores(play, todo, processes):
            done[point.key] = row
            if output is not None:
                with output.open("a") as file:
                    file.write(json.dumps({"key": point.key, **row}) + "\n")
            advance()
    return [done[point.key] for point in points]


def _playable(points: list[Point], require: Callable[[Point], None], console: Console) -> list[Point]:
    """Those that can be played; the others are named. Raises what the first does if none can."""
    kept, errors = [], []
    for point in points:
        try:
            require(point)
            kept.append(point)
        except (SimulationError, HostlibError) as error:
            errors.append((point, error))
    if not kept:
        raise errors[0][1]
    for point, reason in errors:
        console.print(f"left out: {point.named}: {reason}", soft_wrap=True, highlight=False)
    return kept


def _known(output: Path | None) -> dict[str, Row]:
    if output is None or not output.exists():
        return {}
    if not (output.is_file() or output.is_dir()):  # /dev/full is endless
        raise SimulationError(f"{output} cannot be read as a sweep's results: it is not a file")
    known = {}
    try:
        text = read_text(output)
    except (OSError, ValueError) as error:
        raise SimulationError(f"{output} cannot be read as a sweep's results: {error}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = parse_json(line)
            known[row.pop("key")] = row
        except (ValueError, KeyError, AttributeError):
            raise SimulationError(f"{output}, line {number}, key: is not a result of a sweep") from None
    return known


def _require_writable(output: Path | None) -> None:
    """Check that results can be saved before anything is simulated."""
    if output is None:
        return
    try:
        output.open("a").close()
    except OSError as error:
        raise SimulationError(f"{output} cannot be written: {error.strerror}") from None


def measured(play: Play, point: Point) -> Row:
    """Simulate a point; returns its parameters and results."""
    result = play(point)
    per_s = result["events"] / result["kernel_s"] if result["kernel_s"] else 0.0
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "model": point.model,
        "mechanism": point.mechanism,
        "bandwidth": point.bandwidth,
        "workers": point.workers,
        **result,
        "events_per_s": per_s,
        "memory_mb": memory_mb,
    }


def _on_cores(play: Play, points: list[Point], processes: int | None) -> Iterator[tuple[Point, Row]]:
    """Run each point in its own process, for its peak memory; a pool would share processes, and hang if one dies."""
    if processes is not None and processes < 1:
        raise SimulationError(f"--processes must be at least 1, not {processes}")
    context = get_context("forkserver")
    context.set_forkserver_preload([play.__module__])
    resource_tracker.ensure_running()  # It unblocks SIGINT.
    with interrupts.blocked():  # Ctrl-C is this process's to handle.
        forkserver.ensure_running()
    at_a_time = processes or os.cpu_count() or 1
    todo = list(reversed(points))
    running: dict[Any, tuple[Any, Point]] = {}
    try:
        while todo or running:
            while todo and len(running) < at_a_time:
                point = todo.pop()
                here, there = context.Pipe(duplex=False)
                child = context.Process(target=_child, args=(there, play, point))
                child.start()
                there.close()
                running[here] = (child, point)
            ready: Any
            for ready in wait(list(running)):
                child, point = running.pop(ready)
                try:
                    row, problem = ready.recv()
                except EOFError:
                    row, problem = None, "its process was killed, perhaps because memory ran out: use fewer --processes"
                child.join()
                if row is None:
                    raise SimulationError(f"{point.named}: {problem}")
                yield point, row
    finally:
        for child, _ in running.values():  # only if a point is impossible, or on Ctrl-C
            child.terminate()
            child.join()


def _child(there: Any, play: Play, point: Point) -> None:
    with suppress(BrokenPipeError):  # The sweep was interrupted.
        there.send(_attempt(play, point))


def _attempt(play: Play, point: Point) -> tuple[Row | None, str | None]:
    """A point's row, or its error's message: errors with fields of their own cannot be pickled."""
    try:
        return measured(play, point), None
    except (HostlibError, SimulationError) as error:
        return None, str(error)


def _on_cluster(play: Play, points: list[Point], address: str) -> Iterator[tuple[Point, Row]]:
    from dask.distributed import Client
    from dask.distributed import as_completed as as_done

    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        futures = {client.submit(_attempt, play, point, pure=False): point for point in points}
        for future in as_done(list(futures)):
            row, reason = future.result()
            if row is None:
                raise SimulationError(f"{futures[future].named}: {reason}")
            yield futures[future], row


def require_plot(value: str, path: Path | None) -> None:
    """Check that a measure can be plotted.

    Raises:
        SimulationError: there is no such measure.
        HostlibError: see hostlib.system.plot_file.
    """
    if value not in MEASURES:
        raise SimulationError(f"unknown measure {value!r} to plot; legal are {', '.join(MEASURES)}")
    require_drawable(path)


def draw(rows: list[Row], value: str, path: Path) -> None:
    """Plot a measure against the number of workers or, with one number of workers, against the bandwidth.

    Raises:
        SimulationError, HostlibError: see require_plot.
    """
    require_plot(value, path)
    by_workers = len({row["workers"] for row in rows}) > 1
    along = "workers" if by_workers else "bandwidth"
    figure = new_figure(8, 5)
    axes = figure.subplots()
    series = sorted({(r["model"], r["mechanism"], "" if not by_workers else r["bandwidth"]) for r in rows})
    for model, mechanism, bandwidth in series:
        mine = [
            r for r in rows if (r["model"], r["mechanism"]) == (model, mechanism) and bandwidth in ("", r["bandwidth"])
        ]
        x = [r["workers"] if by_workers else units.bandwidth(r["bandwidth"]) / 1e9 for r in mine]
        axes.plot(x, [r[value] for r in mine], marker="o", label=" ".join(filter(None, (model, mechanism, bandwidth))))
    axes.set(xlabel="workers" if along == "workers" else "Gbit/s", ylabel=value, xscale="log", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save(figure, path)
