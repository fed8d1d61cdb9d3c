"""Context shared by the stores of controllers' state (tables.py, profiles.py, ...): a program and its P4Info."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from p4.v1 import p4runtime_pb2

from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.dataplane import Dataplane
from emulation.switch.p4runtime.codec import Schema
from emulation.switch.p4runtime.status import invalid

INSERT, MODIFY, DELETE = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY, p4runtime_pb2.Update.DELETE


@dataclass(slots=True, eq=False)
class Loaded:
    """A loaded program and its P4Info names."""

    program: Program
    schema: Schema
    dataplane: Dataplane


class Served(Protocol):
    """A committed pipeline config, as the server reads and writes it: pipeline.py's, or a chip's."""

    config: p4runtime_pb2.ForwardingPipelineConfig

    def writing(self) -> AbstractContextManager[None]:
        """Hold packets: everything written inside takes effect at once, at the end."""

    def update(self, update: p4runtime_pb2.Update) -> None:
        """Apply one update; called inside `writing()`. Raises RequestError: refused, nothing has changed."""

    def inverse(self, update: p4runtime_pb2.Update) -> list[p4runtime_pb2.Update]:
        """The updates that undo an update that is about to be applied."""

    def read(self, entity: p4runtime_pb2.Entity) -> Iterable[p4runtime_pb2.Entity]:
        """All objects that an entity selects. Raises RequestError: no such object can be read."""

    def take_over(self, old: Served) -> None:
        """Write everything that was written to another one. Raises RequestError: P4Info differs."""

    def restart(self) -> None:
        """A controller comes, and none was there: drop messages."""

    def close(self) -> None:
        """End its packets, and release what it holds."""


def only_modify(how: int, what: str) -> None:
    """Check an update of an object that always exists.

    Raises:
        RequestError: INVALID_ARGUMENT for an INSERT or DELETE.
    """
    if how != MODIFY:
        raise invalid(f"{what} can only be modified: it is always there")
