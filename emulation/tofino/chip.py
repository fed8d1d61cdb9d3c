"""A Tofino 1, that is its model, with a program: tables, multicast groups and counters."""

from __future__ import annotations

import json
import re
import struct
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from controller.target import TOFINO
from emulation.errors import ModelError, ProgramError
from emulation.switch.p4runtime.pipeline import device_data
from emulation.tofino.chip_memory import PIPES, recirculating
from emulation.tofino.harness import HARNESS, START_S, Harness, Leaves
from emulation.tofino.model_tables import Tables, constant_entries, keep_apart, missed_rows
from emulation.tofino.register_values import initial_values
from emulation.tofino.replication_nodes import Replication

RECIRCULATION = 68
# Its "virtual" line reads another table's counters where several belong to one logical table.
_COUNTED = re.compile(r"counter (\S+)\(physical (\d+)\):(.*)")


def unpacked(config: bytes) -> tuple[str, bytes, bytes]:
    """A device config's program name, binary (tofino.bin), and description of tables (context.json).

    Source: p4lang/open-p4studio, p4runtime_update_config.py.

    Raises:
        ProgramError: it is no program for a Tofino.
    """
    data, at, parts = device_data(config), 0, []
    for _ in range(3):
        if at + 4 > len(data):
            break
        (size,) = struct.unpack_from("<i", data, at)
        if not 0 <= size <= len(data) - at - 4:
            break
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if len(parts) != 3 or at != len(data):
        raise ProgramError("not a program for a Tofino: name, tofino.bin and context.json, each after its length")
    return parts[0].decode(errors="replace"), parts[1], parts[2]


class Chip:
    """One chip. All ports are of pipe 0.

    Args:
        config: the program, as P4Runtime's controllers push it.
        ports: numbers of the ports that are up.
        command: the model's program.
        leaves: as of Harness.

    Raises:
        ModelError: the model is absent, or does not take the program.
        ProgramError: the config has no program for a Tofino.
    """

    def __init__(
        self,
        config: p4runtime_pb2.ForwardingPipelineConfig,
        ports: Iterable[int],
        command: str = HARNESS,
        leaves: Leaves | None = None,
    ) -> None:
        _, binary, described = unpacked(config.p4_device_config)
        try:
            context = json.loads(described)
            if (made_for := context["target"]) != TOFINO.name:
                raise ProgramError(f"the program is for a {made_for}, and the model is one of {TOFINO.name}")
            tables = context["tables"]
            keep_apart(tables)
            constant = list(constant_entries(tables))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ProgramError(f"context.json cannot be read: {error}") from error
        self.harness = Harness(command, leaves)
        try:
            with tempfile.TemporaryDirectory(prefix="netfold-tofino-") as folder:
                Path(folder, "tofino.bin").write_bytes(binary)
                # The tables alone: with the names of fields it describes every step of a packet, which nobody reads.
                Path(folder, "context.json").write_text(json.dumps(tables))
                self.harness.load(Path(folder, "tofino.bin"))
                said = self.harness.load(Path(folder, "context.json"))
            self.harness.run(constant, START_S)
            self.harness.write([*missed_rows(said), *initial_values(tables)])
            self.harness.run([f"expect {port}" for port in sorted({*ports, RECIRCULATION})])
            self.harness.write([recirculating(pipe) for pipe in PIPES])
            self.tables = Tables(self.harness, config.p4info, tables)
        except BaseException:
            self.harness.close()
            raise
        self._counters = {each.preamble.id: each for each in config.p4info.counters}
        self._replication = Replication()

    def group(self, number: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Set a multicast group's (egress port, replica) pairs; none remove it."""
        try:
            written = self._replication.set(number, replicas)
        except MemoryError as error:
            raise ModelError(str(error)) from error
        self.harness.write(written)

    def counters(self, counter: p4info_pb2.Counter, indices: Iterable[int]) -> dict[int, tuple[int, int]]:
        """(packets, bytes) by index; 0 of what it does not count."""
        name, indices = counter.preamble.name, list(indices)
        found = dict.fromkeys(indices, (0, 0))
        for line in self.harness.run([f"check_counter {name}({index})" for index in indices]):
            if (cell := _COUNTED.match(line)) is not None:
                counted = dict(each.split("=") for each in cell[3].split())
                found[int(cell[2])] = int(counted.get("packets", 0)), int(counted.get("bytes", 0))
        return found

    def close(self) -> None:
        self.harness.close()
