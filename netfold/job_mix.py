"""A cluster's jobs, and what switches that aggregate are worth for all of them."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from rich.table import Table as RichTable

from hostlib.system.user_file import read_text
from netfold.question import Asked
from netfold.recommendation import recommendation
from simulation.errors import ExperimentError
from simulation.experiments.scenario import MOST_JOBS
from simulation.experiments.tables import Table
from simulation.recommendation.recommendation import Wanted
from simulation.recommendation.search import Tell

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_HOURS = 1e6  # a century

# Keys of a job that stand for an option of the same name.
OPTIONS = ("bandwidth", "batch", "gpu", "tflops")


class JobTable(Table):
    """One [[job]] of a mix; what it does not say is as the command's options have it."""

    model: str
    workers: Annotated[int, Field(ge=1)]
    count: Annotated[int, Field(ge=1, le=MOST_JOBS)] = 1
    hours: Annotated[float, Field(gt=0, le=MOST_HOURS)]
    batch: Annotated[int, Field(ge=1)] | None = None
    gpu: str | None = None
    tflops: Annotated[float, Field(gt=0)] | None = None
    bandwidth: str | None = None


class MixFile(Table):
    """A mix of jobs."""

    job: Annotated[list[JobTable], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class JobValue:
    """One kind of job.

    Attributes:
        hours: of each of the `count` jobs, with the best mechanism of hosts alone.
        hosts, fabric: best plans; None if there is none of that kind.
        share: of its time that the fabric saves; low, high: where both intervals are at their ends.
        saved_gpu_hours: of all its jobs; 0 where the fabric does not help.
    """

    model: str
    workers: int
    count: int
    hours: float
    hosts: str | None
    fabric: str | None
    share: float
    low: float
    high: float
    saved_gpu_hours: float
    slots: int


@dataclass(frozen=True, slots=True)
class MixValue:
    """What switches that aggregate are worth.

    Attributes:
        gpu_hours: that the jobs take with hosts alone.
        saved_gpu_hours: of these, by the fabric; low, high: if all intervals are at their ends.
        price: of a GPU hour; None if it is not given.
        slots: of all jobs at the same time on one switch.
    """

    jobs: tuple[JobValue, ...]
    gpu_hours: float
    saved_gpu_hours: float
    low: float
    high: float
    price: float | None
    slots: int

    @property
    def saved(self) -> float | None:
        """In the unit of the price."""
        return None if self.price is None else self.price * self.saved_gpu_hours

    @property
    def text(self) -> str:
        share = self.saved_gpu_hours / self.gpu_hours
        money = "" if self.saved is None else f", worth {self.saved:,.2f} at the given price"
        return (
            f"Switches that aggregate save {self.saved_gpu_hours:,.0f} of {self.gpu_hours:,.0f} GPU hours ({share:.0%}, "
            f"between {self.low:,.0f} and {self.high:,.0f}){money}; {self.slots} slots if all jobs run at once."
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "saved": self.saved}


def value_of(path: Path, asked: Asked, gpu_memory: str | None, price: float | None, tell: Tell) -> MixValue:
    """What the fabric is worth for a file's jobs.

    Args:
        asked: for what a job does not say.

    Raises:
        ExperimentError: the file is invalid.
        SimulationError, HostlibError: a job cannot be simulated.
    """
    jobs = []
    for job in read_mix(path).job:
        said = {name: value for name in OPTIONS if (value := getattr(job, name)) is not None}
        of_job = {**asked.options, **{name: value for name, value in said.items() if name != "bandwidth"}}
        of_job["workers"] = job.workers
        if "gpu" in said or "tflops" in said:
            of_job["tflops"], of_job["gpu"] = job.tflops, job.gpu
        tell(f"job {job.model} with {job.workers} workers")
        rate, given = job.bandwidth or asked.bandwidth, {*asked.given, *said}
        of_this = Asked(job.model, None, None, rate, of_job, given)
        found = recommendation(of_this, Wanted(map=False, changes=False), gpu_memory)[0]
        hosts = next((each for each in found.finalists if not each.uses_fabric), None)
        fabric = next((each for each in found.finalists if each.uses_fabric), None)
        share = low = high = 0.0
        if hosts is not None and fabric is not None and hosts.iteration_ms:
            share = max(0.0, 1 - fabric.iteration_ms / hosts.iteration_ms)
            low = max(0.0, 1 - fabric.high_ms / hosts.low_ms)
            high = max(0.0, 1 - fabric.low_ms / hosts.high_ms)
        all_hours = job.workers * job.count * job.hours
        jobs.append(
            JobValue(
                job.model,
                job.workers,
                job.count,
                job.hours,
                None if hosts is None else hosts.name,
                None if fabric is None else fabric.name,
                share,
                low,
                high,
                share * all_hours,
                fabric.slots * job.count if fabric is not None and share else 0,
            )
        )
    hours = [each.workers * each.count * each.hours for each in jobs]
    return MixValue(
        tuple(jobs),
        sum(hours),
        sum(each.saved_gpu_hours for each in jobs),
        sum(each.low * of for each, of in zip(jobs, hours, strict=True)),
        sum(each.high * of for each, of in zip(jobs, hours, strict=True)),
        price,
        sum(each.slots for each in jobs),
    )


def mix_table(value: MixValue) -> RichTable:
    """A row for each kind of job."""
    made = RichTable("model", title="What switches that aggregate save", title_justify="left")
    for heading in ("workers", "jobs", "hours each"):
        made.add_column(heading, justify="right")
    made.add_column("hosts alone")
    made.add_column("with the fabric")
    for heading in ("saved", "interval", "GPU hours"):
        made.add_column(heading, justify="right")
    for each in value.jobs:
        made.add_row(
            each.model,
            f"{each.workers:,}",
            str(each.count),
            f"{each.hours:g}",
            each.hosts or "-",
            each.fabric or "-",
            f"{each.share:.0%}",
            f"{each.low:.0%} to {each.high:.0%}",
            f"{each.saved_gpu_hours:,.0f}",
        )
    return made


def read_mix(path: Path) -> MixFile:
    """Read a mix of jobs.

    Raises:
        ExperimentError: the file is no TOML, or a key or value is illegal; names file and key.
        HostlibError: it cannot be read.
    """
    try:
        return MixFile.model_validate(tomllib.loads(read_text(path)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ExperimentError(f"{path}: {where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise ExperimentError(f"{path} is not a TOML file: {error}") from None
