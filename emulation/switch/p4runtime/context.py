"""Context shared by the stores of controllers' state (tables.py, profiles.py, ...): a program and its P4Info."""

from __future__ import annotations

from dataclasses import dataclass

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


def only_modify(how: int, what: str) -> None:
    """Check an update of an object that always exists.

    Raises:
        RequestError: INVALID_ARGUMENT for an INSERT or DELETE.
    """
    if how != MODIFY:
        raise invalid(f"{what} can only be modified: it is always there")
