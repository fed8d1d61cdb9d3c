"""A running compiled program: the packet loop in a thread, and access to tables and counters."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import shutil
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulation.errors import CompilerError, SwitchMemoryError
from emulation.switch.compiler.bmv2_json import WORD, Program, Register, in_words, words
from emulation.switch.ports.capture import Capture
from emulation.switch.ports.open_port import OpenPort
from emulation.switch.ports.port_spec import Endpoint

STARTED_US = time.monotonic_ns() // 1000  # this process, whatever programs it runs: their timestamps count from here

PORT_STATS = (
    "packets_in",
    "packets_out",
    "bytes_in",
    "bytes_out",
    "lost",
    "duplicated",
    "reordered",
    "corrupted",
    "queue_depth",
    "queue_depth_max",
    "queue_dropped",  # the queue was full
    "marked",  # a frame that the queue made say so (ECN)
    "queue_dropped_early",  # in place of such a mark, as its sender would not listen
    "not_udp",  # a UDP port cannot send frames of other kinds
    "send_failed",
    "oversized",
    "missed",  # arrived faster than they were read; interfaces only
    "link_down",  # number of times that the interface went down
    "strangers",  # datagrams on a wire that were not from its other end: dropped
)
# Losses of the program itself.
LOSSES = (
    "endless",  # packets given up: resubmitted or recirculated too often, or in an endless parser
    "untold",  # digests and packets for the controllers that arrived faster than they were fetched
    "no_memory",  # frames that should have been queued, and recirculated packets, when memory ran out
)
CAPTURED_BYTES = 1 << 20
MOST_PRIORITIES = 8  # of runtime/shape.h: v1model's priorities have three bits
# Kinds of message from the data plane, of runtime.h: a digest's words, a frame for the CPU port.
TOLD_DIGEST, TOLD_PACKET = 1, 2


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choice of a table entry: an action with its parameters, or a member or group of the table's action profile."""

    action: int
    params: Sequence[int] = ()
    member: int = 0
    group: int = 0


NO_PORT = 0xFFFF  # of runtime/table.h
Marked = list[tuple[int, int]]  # (packets, bytes) per colour of a meter, green first


class _Counter(ctypes.Structure):
    _fields_ = [("packets", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


class Dataplane:
    """One loaded program. All writes are made within `writing()`, during which no packets are processed.

    Args:
        library: from compiler.compile_program; loaded under a unique name, so that its state is fresh.

    Raises:
        CompilerError: the library cannot be loaded.
        SwitchMemoryError: no memory for the program's own table entries, or no file descriptor.
    """

    def __init__(self, library: Path, program: Program) -> None:
        self._program = program
        self._lib = _load_fresh(library)
        self._lib.nf_counter.restype = ctypes.POINTER(_Counter)
        self._lib.nf_meter.restype = self._lib.nf_table_meter.restype = ctypes.c_void_p
        self._lib.nf_meter_set.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
        self._lib.nf_meter_marked.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_bool]
        self._lib.nf_activity.restype = self._lib.nf_table_idle.restype = ctypes.c_uint64
        self._lib.nf_bench_program.restype = self._lib.nf_bench_sums.restype = ctypes.c_uint64
        for function in (self._lib.nf_table_insert, self._lib.nf_process, self._lib.nf_told):
            function.restype = ctypes.c_uint32
        for name in ("member", "choice", "value_set", "group", "session"):
            getattr(self._lib, f"nf_{name}").restype = ctypes.c_bool
        ctypes.c_uint64.in_dll(self._lib, "nf_started_us").value = STARTED_US
        if error := self._lib.nf_init():
            self._unload()
            raise SwitchMemoryError(f"the program cannot be set up: {os.strerror(error)}")
        self._out = ctypes.create_string_buffer(CAPTURED_BYTES)  # messages that the program hands over, under writing()
        self._thread: threading.Thread | None = None
        self._closing = threading.Lock()
        self._closed = False
        self._dirty: set[int] = set()
        self._ports: tuple[OpenPort, ...] = ()

    def attach(
        self,
        ports: Sequence[OpenPort],
        destination: Endpoint | None,
        captures: Sequence[Capture] = (),
        priorities: int = MOST_PRIORITIES,
        trust_dscp: bool = False,
    ) -> None:
        """Attach the ports to the program.

        Args:
            destination: the address in rebuilt headers; None for each port's own.
            captures: what the program writes of the ports' frames.
            priorities: queues of a port with a rate; a frame of priority p joins number p, and is dropped if there is
                none.
            trust_dscp: a frame that the program gives no priority has that of its DSCP, the highest where there is none
                so high.

        Raises:
            PortError: out of memory.
        """
        self._ports = tuple(ports)  # Their memory holds the output queues.
        for port in ports:
            port.attach(self._lib, destination)
        for capture in captures:
            capture.attach(self._lib)
        self._lib.nf_priorities(ctypes.c_uint32(priorities))
        self._lib.nf_trust_dscp(ctypes.c_bool(trust_dscp))

    def start(self) -> None:
        """Start to process packets."""
        self._thread = threading.Thread(target=self._lib.nf_run, name="dataplane", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the loop and unload the program; the ports stay open. Only activity() may be called afterwards."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._thread is not None:
                self._lib.nf_stop()
                self._thread.join()
                self._thread = None
            self._unload()

    def _unload(self) -> None:
        self._lib.nf_close()
        # Python never unloads a library itself, and each one holds all registers of its program.
        _ctypes.dlclose(self._lib._handle)

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Process one frame, without sockets and faults; returns (port, frame) for each output."""
        with self.writing():
            return self.process_locked(port, frame)

    def process_locked(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """The same, under writing()."""
        self._commit()
        used = self._lib.nf_process(
            ctypes.c_uint32(port), frame, ctypes.c_uint32(len(frame)), self._out, ctypes.c_uint32(CAPTURED_BYTES)
        )
        return list(_records(self._out, used, 2))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold packets: everything written inside takes effect at once, at the end."""
        self._lib.nf_lock()
        try:
            yield
        finally:
            self._commit()
            self._lib.nf_unlock()

    def _commit(self) -> None:
        for table in self._dirty:
            self._lib.nf_table_commit(ctypes.c_uint32(table))
        self._dirty.clear()

    # ---- tables: all under writing() --------------------------------------------------------------------------

    def insert(self, table: int, value: Sequence[int], mask: Sequence[int], priority: int, chosen: Chosen) -> int:
        """Add an entry; returns its handle. Values and masks in key order (of a range: its ends).

        Raises:
            SwitchMemoryError: out of memory.
        """
        self._dirty.add(table)
        described = self._program.tables[table]
        handle = self._lib.nf_table_insert(
            ctypes.c_uint32(table),
            _array(described.laid_out(value)),
            _array(described.laid_out(mask)),
            ctypes.c_int32(priority),
            *self._chosen(chosen),
        )
        _require(handle, f"an entry of table {described.name}")
        return int(handle)

    def modify(self, table: int, handle: int, chosen: Chosen) -> None:
        """Give an entry (handle 0: the default) another action."""
        self._lib.nf_table_modify(ctypes.c_uint32(table), ctypes.c_uint32(handle), *self._chosen(chosen))

    def _chosen(self, chosen: Chosen) -> tuple[Any, ...]:
        return (*self._action(chosen), ctypes.c_uint32(chosen.member), ctypes.c_uint32(chosen.group))

    def _action(self, chosen: Chosen) -> tuple[Any, ...]:
        params = in_words(chosen.params, self._program.actions[chosen.action].widths) if chosen.params else []
        return ctypes.c_int32(chosen.action), _array(params), ctypes.c_uint32(len(params))

    def delete(self, table: int, handle: int) -> None:
        self._dirty.add(table)
        self._lib.nf_table_delete(ctypes.c_uint32(table), ctypes.c_uint32(handle))

    def hits(self, table: int, handle: int) -> tuple[int, int]:
        """(packets, bytes) that an entry (handle 0: the default) matched."""
        out = (ctypes.c_uint64 * 2)()
        self._lib.nf_table_hits(ctypes.c_uint32(table), ctypes.c_uint32(handle), out)
        return int(out[0]), int(out[1])

    def set_hits(self, table: int, handle: int, packets: int, bytes_: int) -> None:
        self._lib.nf_table_set_hits(
            ctypes.c_uint32(table), ctypes.c_uint32(handle), ctypes.c_uint64(packets), ctypes.c_uint64(bytes_)
        )

    def idle_us(self, table: int, handle: int) -> int:
        """Microseconds since an entry was written or last hit; of tables with idle timeouts."""
        return int(self._lib.nf_table_idle(ctypes.c_uint32(table), ctypes.c_uint32(handle)))

    def member(self, profile: int, handle: int, chosen: Chosen) -> None:
        """Add or change member `handle` (from 1) of an action profile.

        Raises:
            SwitchMemoryError: out of memory.
        """
        done = self._lib.nf_member(ctypes.c_uint32(profile), ctypes.c_uint32(handle), *self._action(chosen))
        _require(done, "a member of an action profile")

    def choice(self, profile: int, handle: int, members: Sequence[tuple[int, int | None]]) -> None:
        """Set the choices of group `handle` (from 1): (member, port that it watches); weight w means w repetitions.

        Raises:
            SwitchMemoryError: out of memory; impossible without members.
        """
        handles = (ctypes.c_uint32 * max(1, len(members)))(*(member for member, _ in members))
        ports = [NO_PORT if port is None else port for _, port in members]
        watched = (ctypes.c_uint16 * len(ports))(*ports) if any(port != NO_PORT for port in ports) else None
        done = self._lib.nf_choice(
            ctypes.c_uint32(profile), ctypes.c_uint32(handle), handles, watched, ctypes.c_uint32(len(members))
        )
        _require(done, "a group of an action profile")

    def value_set(self, index: int, members: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Set the members of a parser value set: (value, mask) pairs in words.

        Raises:
            SwitchMemoryError: out of memory.
        """
        size = len(members[0][0]) if members else 0
        flat = [word for value, mask in members for word in (*value, *mask)]
        done = self._lib.nf_value_set(
            ctypes.c_uint32(index), _array(flat), ctypes.c_uint32(size), ctypes.c_uint32(len(members))
        )
        _require(done, "a value set")

    # ---- counters, meters, registers --------------------------------------------------------------------------

    def counter(self, counter: int, index: int) -> tuple[int, int]:
        """(packets, bytes) of one cell of an indirect counter."""
        cell = self._lib.nf_counter(ctypes.c_uint32(counter))[index]
        return int(cell.packets), int(cell.bytes)

    def set_counter(self, counter: int, index: int, packets: int, bytes_: int) -> None:
        self._lib.nf_counter(ctypes.c_uint32(counter))[index] = _Counter(packets, bytes_)

    def set_meter(self, meter: int, index: int, rates: Sequence[int] | None) -> None:
        """(cir, cburst, pir, pburst[, eburst]) of one cell of an indirect meter; None: every packet is green."""
        cell = self._lib.nf_meter(ctypes.c_uint32(meter))
        self._lib.nf_meter_set(cell, ctypes.c_uint32(index), _rates(rates))

    def set_entry_meter(self, table: int, handle: int, rates: Sequence[int] | None) -> None:
        """The same for an entry's direct meter."""
        cell = self._lib.nf_table_meter(ctypes.c_uint32(table), ctypes.c_uint32(handle))
        self._lib.nf_meter_set(cell, ctypes.c_uint32(0), _rates(rates))

    def marked(self, meter: int, index: int) -> Marked:
        """(packets, bytes) that one cell of an indirect meter has marked green, yellow and red."""
        return self._marked(self._lib.nf_meter(ctypes.c_uint32(meter)), index)

    def set_marked(self, meter: int, index: int, marked: Marked) -> None:
        self._set_marked(self._lib.nf_meter(ctypes.c_uint32(meter)), index, marked)

    def entry_marked(self, table: int, handle: int) -> Marked:
        """The same for an entry's direct meter."""
        return self._marked(self._lib.nf_table_meter(ctypes.c_uint32(table), ctypes.c_uint32(handle)), 0)

    def set_entry_marked(self, table: int, handle: int, marked: Marked) -> None:
        self._set_marked(self._lib.nf_table_meter(ctypes.c_uint32(table), ctypes.c_uint32(handle)), 0, marked)

    def _marked(self, cell: int, index: int) -> Marked:
        out = (ctypes.c_uint64 * 6)()
        self._lib.nf_meter_marked(cell, ctypes.c_uint32(index), out, ctypes.c_bool(False))
        return [(int(out[i]), int(out[i + 1])) for i in (0, 2, 4)]

    def _set_marked(self, cell: int, index: int, marked: Marked) -> None:
        flat = _array([number for counted in marked for number in counted])
        self._lib.nf_meter_marked(cell, ctypes.c_uint32(index), flat, ctypes.c_bool(True))

    def register(self, register: Register, index: int) -> int:
        """One cell of a register array."""
        value = (ctypes.c_uint64 * words(register.width))()
        self._register(register, index, value, False)
        return sum(int(word) << WORD * i for i, word in enumerate(reversed(value)))

    def set_register(self, register: Register, index: int, value: int) -> None:
        self._register(register, index, _array(in_words([value], [register.width])), True)

    def _register(self, register: Register, index: int, value: Any, write: bool) -> None:
        family, column = ctypes.c_uint32(register.family), ctypes.c_uint32(register.column)
        self._lib.nf_register(family, column, ctypes.c_uint32(index), value, ctypes.c_bool(write))

    # ---- replication ------------------------------------------------------------------------------------------

    def group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Set a multicast group's (egress port, instance) pairs; no pairs remove it.

        Raises:
            SwitchMemoryError: out of memory.
        """
        _require(self._lib.nf_group(ctypes.c_uint32(group), *_replicas(replicas)), "a multicast group")

    def session(
        self, session: int, replicas: Sequence[tuple[int, int]] | None, group: int = 0, bytes_: int = 0
    ) -> None:
        """Set a clone session's replicas, multicast group (0: none) and truncated length (0: whole); None removes it.

        Raises:
            SwitchMemoryError: out of memory.
        """
        done = self._lib.nf_session(
            ctypes.c_uint32(session),
            ctypes.c_bool(replicas is not None),
            *_replicas(replicas or ()),
            ctypes.c_uint32(group),
            ctypes.c_uint32(bytes_),
        )
        _require(done, "a clone session")

    # ---- to the controller ------------------------------------------------------------------------------------

    def cpu_port(self, port: int) -> None:
        """Set the port whose output goes to the controller; 0 for none."""
        self._lib.nf_cpu_port(ctypes.c_uint32(port))

    def inject(self, port: int, frame: bytes) -> None:
        """Process a frame as if it had arrived at a port; output goes out by the ports. Under writing()."""
        self._commit()
        self._lib.nf_inject(ctypes.c_uint32(port), frame, ctypes.c_uint32(len(frame)))

    def messages(self) -> list[tuple[int, int, bytes]]:
        """(TOLD_*, id, data) of digests and packets for the controller since the last call; under writing()."""
        used = self._lib.nf_told(self._out)
        return list(_records(self._out, used, 3))

    def port_stats(self, number: int) -> dict[str, int]:
        """A port's counters and its link's, by PORT_STATS."""
        out = (ctypes.c_uint64 * len(PORT_STATS))()
        with self.writing():
            self._lib.nf_port_stats(ctypes.c_uint32(number), out)
        return dict(zip(PORT_STATS, map(int, out), strict=True))

    def losses(self) -> dict[str, int]:
        """The program's losses, by LOSSES."""
        out = (ctypes.c_uint64 * len(LOSSES))()
        with self.writing():
            self._lib.nf_losses(out)
        return dict(zip(LOSSES, map(int, out), strict=True))

    def statistics(self, ports: Sequence[int]) -> dict[str, Any] | None:
        """losses(), and port_stats() of `ports` under `ports`; None when closed."""
        with self._closing:
            if self._closed:
                return None
            return {**self.losses(), "ports": {str(number): self.port_stats(number) for number in ports}}

    def time_program(self, frames: np.ndarray, ports: Sequence[int], generation_at: int, rounds: int) -> float:
        """Measure the program's time per frame in nanoseconds, without ports.

        Args:
            frames: uint8, shape (frames, bytes). Processed in order, `rounds` times; each round increments the 32-bit
                number at `generation_at`.
        """
        count, size = frames.shape
        with self.writing():
            spent = self._lib.nf_bench_program(
                ctypes.c_void_p(frames.ctypes.data),
                ctypes.c_uint32(size),
                (ctypes.c_uint32 * count)(*ports),
                ctypes.c_uint32(count),
                ctypes.c_uint32(generation_at),
                ctypes.c_uint32(rounds),
            )
        return float(spent / (count * rounds))

    def time_sums(self, frames: np.ndarray, payload_at: int, vectors: int, rounds: int) -> float:
        """Nanoseconds per frame to convert its elements to host order and add them to one of `vectors` sums."""
        count, size = frames.shape
        sums = np.zeros((vectors, (size - payload_at) // 4), np.uint32)
        with self.writing():
            spent = self._lib.nf_bench_sums(
                ctypes.c_void_p(frames.ctypes.data),
                ctypes.c_uint32(size),
                ctypes.c_uint32(count),
                ctypes.c_uint32(payload_at),
                ctypes.c_void_p(sums.ctypes.data),
                ctypes.c_uint32(vectors),
                ctypes.c_uint32(rounds),
            )
        return float(spent / (count * rounds))

    def activity(self) -> int:
        """A number that grows while packets arrive; 0 when closed."""
        with self._closing:
            return 0 if self._closed else int(self._lib.nf_activity())


def _require(done: int, what: str) -> None:
    if not done:
        raise SwitchMemoryError(f"there is no memory for {what}")


def _records(buffer: ctypes.Array[ctypes.c_char], used: int, numbers: int) -> Iterator[tuple[Any, ...]]:
    """Consecutive records in the first `used` bytes: 32-bit numbers, the last one a size, and as many bytes."""
    laid, head, at = memoryview(buffer), struct.Struct(f"={numbers}I"), 0
    while at < used:
        *known, size = head.unpack_from(laid, at)
        at += head.size
        yield (*known, bytes(laid[at : at + size]))
        at += size


def _rates(rates: Sequence[int] | None) -> ctypes.Array[ctypes.c_uint64] | None:
    return None if rates is None else (ctypes.c_uint64 * 5)(*rates)


def _replicas(replicas: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
    flat = [n for replica in replicas for n in replica]
    return (ctypes.c_uint16 * max(1, len(flat)))(*flat), ctypes.c_uint32(len(replicas))


def _array(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * max(1, len(numbers)))(*numbers)


def _load_fresh(library: Path) -> ctypes.CDLL:
    """Load a fresh instance: dlopen returns the same one for the same file, but a private descriptor is another file."""
    try:
        fd = os.memfd_create(library.name)
        try:
            with library.open("rb") as source, os.fdopen(os.dup(fd), "wb") as copy:
                shutil.copyfileobj(source, copy)
            return ctypes.CDLL(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
    except OSError as error:
        raise CompilerError(f"the compiled program {library} cannot be loaded: {error}") from error
