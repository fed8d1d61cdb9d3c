"""Tables, keys and values of an experiment's file, and the messages for illegal ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.schedules.contract import Collective
from hostlib.system.user_file import read_text
from simulation.errors import ExperimentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Texts = Annotated[list[str], Field(min_length=1)]
MOST = 100_000
Counts = Annotated[list[Annotated[int, Field(ge=1, le=MOST)]], Field(min_length=1)]
Probabilities = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=1)]
# Sizes may also be written as a number of bytes.
Size = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value)]


class Table(BaseModel):
    """A table without unknown keys; None values are left to their users."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class CellsTable(Table):
    models: Texts
    mechanisms: Texts | None = None
    collectives: Texts = [Collective.ALL_REDUCE.value]
    bandwidths: Texts = ["25gbit"]
    workers: Counts = [8]
    loss: Probabilities = [0.0]
    jobs: Counts = [1]
    slots: Counts = [SLOTS_PER_POOL]
    delays: Texts | None = None  # the topology's


class ReplayTable(Table):
    dilation: float = Field(0.0, ge=0)
    shrink: float = Field(1.0, ge=1)
    iterations: int = Field(3, ge=1)
    warm_up: int = Field(1, ge=0)
    bucket: Size = "25MiB"
    batch: int | None = Field(None, ge=1)
    pixels: int | None = Field(None, ge=1)
    tflops: float | None = Field(None, ge=0)


class TrainingTable(Table):
    iterations: int = Field(10, ge=1)
    warm_up: int = Field(2, ge=1)
    batch_size: int = Field(16, ge=1)
    bucket_mb: float = Field(25.0, ge=0.001)
    data: str = "digits"


class ExperimentFile(Table):
    title: str | None = None
    seed: int = 1
    recommended: str | None = None  # one of cells.mechanisms
    cells: CellsTable
    topology: dict[str, Any] = Field(default_factory=dict)  # validated by hostlib/topology/
    replay: ReplayTable = ReplayTable()
    training: TrainingTable | None = None

    @model_validator(mode="after")
    def _one_way(self) -> ExperimentFile:
        if self.training is not None and "replay" in self.model_fields_set:
            raise ValueError("replay and training exclude each other")
        return self

    @model_validator(mode="after")
    def _recommends_a_cell(self) -> ExperimentFile:
        if self.recommended is not None and self.recommended not in (self.cells.mechanisms or ()):
            raise ValueError(f"recommended must be one of cells.mechanisms, not {self.recommended!r}")
        return self


TABLES: dict[str, type[BaseModel]] = {"cells": CellsTable, "replay": ReplayTable, "training": TrainingTable}
KINDS = {"string_type": "a string", "int_type": "a whole number", "int_from_float": "a whole number"}


def read_file(path: Path) -> tuple[str, ExperimentFile]:
    """Read and parse a file.

    Raises:
        ExperimentError: it cannot be read, has an unknown key, or an illegal value.
    """
    try:
        text = read_text(path)
        return text, ExperimentFile.model_validate(tomllib.loads(text))
    except OSError as error:
        raise ExperimentError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ExperimentError(f"{path} cannot be read: it is not text") from None
    except RecursionError:
        raise ExperimentError(f"{path} is not TOML: it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        found = error.errors()
        # A misspelt key also counts as missing; report the unknown key.
        first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        raise ExperimentError(f"{path}: {_sentence(first)}") from None


def _sentence(found: Any) -> str:
    """Message for one of pydantic's errors."""
    names = [part for part in found["loc"] if isinstance(part, str)]
    key, kind, value = ".".join(names), found["type"], found["input"]
    within = len(names) < len(found["loc"])  # an index in a list
    if kind == "value_error":
        return str(found["ctx"]["error"])
    if kind == "extra_forbidden":
        legal = TABLES[names[0]] if len(names) > 1 else ExperimentFile
        return f"{key} is not a key of an experiment; legal are {', '.join(legal.model_fields)}"
    if kind == "missing":
        return f"{key} must be " + ("a table" if key in TABLES else "a list that is not empty")
    if kind == "greater_than_equal":
        return f"{key} must be {'' if within else 'a number of '}at least {found['ctx']['ge']:g}, not {value!r}"
    if kind == "less_than_equal":
        return f"{key} must be at most {found['ctx']['le']}, not {value!r}"
    if kind == "less_than":
        return f"{key} must be below {found['ctx']['lt']:g}, not {value!r}"
    if within or kind in ("list_type", "too_short"):
        of = "texts" if "string" in kind else "numbers"
        return f"{key} must be a list that is not empty{f' of {of}' if within else ''}, not {value!r}"
    what = "a table" if kind.startswith(("model", "dict")) else KINDS.get(kind, "a number")
    return f"{key} must be {what}, not {value!r}"
