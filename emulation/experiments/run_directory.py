"""Read and check an earlier run's files in an experiment's directory before anything is added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, StrictStr, TypeAdapter, ValidationError

from emulation.errors import EmulationError
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.text.validation import first_error
from simulation.predictors.predictor import DEFAULT_PREDICTOR

Row = dict[str, Any]
Read = TypeVar("Read")


class Carried(BaseModel):
    """Bytes on a node's link in an iteration."""

    sent: int
    received: int


class ResultRow(BaseModel):
    """A line of results.json."""

    cell: StrictStr
    model: StrictStr
    mechanism: StrictStr
    workers: int
    bandwidth: StrictStr
    jobs: int
    loss: float
    slots: int = SLOTS_PER_POOL
    delay: str | None = None
    dilation: float
    iteration_ms: float
    iteration_ms_spread: float
    simulated_ms: float | None
    simulated_low_ms: float | None = None
    simulated_high_ms: float | None = None
    valid: bool
    bottleneck: str | None
    enough_dilation: float | None
    bytes_per_node: dict[str, Carried]
    retransmits: int
    marked: int | None = None
    again: float = 0.0
    cpu: dict[str, float]
    late: float
    cause: str | None = None
    latest: float = 0.0
    lacked: Any = None
    peak_memory_bytes: int | None = None


class RunRecord(BaseModel):
    """The fields of run.json that the next run takes over."""

    started: StrictStr
    predictor: StrictStr = DEFAULT_PREDICTOR


def earlier_rows(output: Path, text: str, predictor: str) -> dict[str, Row]:
    """The rows of an earlier run, by cell; empty if there was none.

    Args:
        text: of the experiment.
        predictor: of this run, by name: one column of times belongs to one predictor.

    Raises:
        EmulationError: the directory holds other files, or a broken one.
    """
    kept, results = output / "experiment.toml", output / "results.json"
    if not kept.exists():
        if output.exists() and any(output.iterdir()):
            raise EmulationError(f"{output} holds other things than an experiment: name another --output")
        return {}
    if kept.read_bytes() != text.encode():
        raise EmulationError(f"{output} holds another experiment, or an earlier version: name another --output")
    earlier = earlier_record(output)
    if earlier is not None and earlier.predictor != predictor:
        raise EmulationError(
            f"{output} has times of the predictor {earlier.predictor}, not of {predictor}: continue with "
            f"--predictor {earlier.predictor}, or name another --output"
        )
    if not results.exists():
        return {}
    read_record(results, TypeAdapter(list[ResultRow]), "cells' results")
    return {row["cell"]: row for row in json.loads(results.read_text())}


def earlier_record(output: Path) -> RunRecord | None:
    """Of an earlier run; None where there was none.

    Raises:
        EmulationError: its run.json is broken.
    """
    path = output / "run.json"
    return read_record(path, TypeAdapter(RunRecord), "what a run was") if path.exists() else None


def read_record(path: Path, kind: TypeAdapter[Read], what: str) -> Read:
    """Read a JSON file of a results directory.

    Raises:
        EmulationError: it cannot be read, or is not of this kind.
    """
    try:
        return kind.validate_json(path.read_bytes())
    except OSError as error:
        raise EmulationError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise EmulationError(f"{path} cannot be read as {what} ({first_error(error)}): fix or remove it") from None
