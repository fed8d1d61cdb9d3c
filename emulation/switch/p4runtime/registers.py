"""Register arrays (section 9.7)."""

from __future__ import annotations

from collections.abc import Iterator

from p4.config.v1 import p4types_pb2
from p4.v1 import p4data_pb2, p4runtime_pb2

from emulation.switch.compiler.bmv2_json import Register, in_words
from emulation.switch.p4runtime.codec import the_cells
from emulation.switch.p4runtime.context import Loaded, only_modify
from emulation.switch.p4runtime.p4data import reader, writer
from emulation.switch.p4runtime.status import invalid, missing


class Registers:
    """A program's register arrays. Writes are under the data plane's writing()."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._types = loaded.schema.p4info.type_info
        self._known: dict[int, tuple[Register, p4types_pb2.P4DataTypeSpec]] = {}
        for info in loaded.schema.p4info.registers:
            register = loaded.program.registers.get(info.preamble.name)
            if register is None:
                raise invalid(f"P4Info's register {info.preamble.name} is not in the program")
            self._known[info.preamble.id] = register, info.type_spec

    def _register(self, register_id: int) -> tuple[Register, p4types_pb2.P4DataTypeSpec]:
        if register_id not in self._known:
            raise missing(f"no register has id {register_id:#x}")
        return self._known[register_id]

    def update(self, how: int, entry: p4runtime_pb2.RegisterEntry) -> None:
        """Set one cell, or all of an array if there is no index; missing data means 0.

        Raises:
            RequestError: refused; nothing has changed.
        """
        only_modify(how, "a register cell")
        register, spec = self._register(entry.register_id)
        cells = the_cells("register", entry, register.size)
        value = 0
        if entry.HasField("data"):
            value = writer(spec, self._types)(entry.data, f"register {register.name}")
        for index in cells:
            self._loaded.dataplane.set_register(register, index, value)

    def read(self, wanted: p4runtime_pb2.RegisterEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Cells; a register id of 0 and a missing index are wildcards.

        Raises:
            RequestError: there is no such register or cell.
        """
        for register_id in [wanted.register_id] if wanted.register_id else list(self._known):
            register, spec = self._register(register_id)
            take = reader(spec, self._types)
            for index in the_cells("register", wanted, register.size):
                value = self._loaded.dataplane.register(register, index)
                data: p4data_pb2.P4Data = take(iter(in_words([value], [register.width])))
                cell = p4runtime_pb2.RegisterEntry(register_id=register_id, data=data)
                cell.index.index = index
                yield p4runtime_pb2.Entity(register_entry=cell)
