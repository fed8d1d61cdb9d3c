"""Performance of the embedded switch: one packet in process, between interfaces compared with BMv2, and over loopback."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2
from rich.console import Console
from rich.table import Table

from controller.errors import ControllerError
from controller.jobs.switch_share import Member, SwitchShare
from controller.switches.own_entries import OwnEntries
from controller.switches.program import ELEMENTS, load_artifact
from controller.switches.session import P4RuntimeSession
from controller.switches.table_entries import Names
from controller.target import V1MODEL
from emulation.errors import EmulationError
from emulation.switch.compiler.cc import compile_library
from emulation.switch.p4runtime.pipeline import Pipeline, load_config
from emulation.switch.ports.open_port import open_ports
from emulation.switch.ports.packet_socket import PacketSocket
from emulation.switch.ports.port_spec import Endpoint, PortSpec
from emulation.switch.ports.udp import UdpSocket
from hostlib._engine import Engine
from hostlib.fabric.engine_checks import for_engine
from hostlib.protocol import constants as layout
from hostlib.protocol.addresses import FABRIC_ADDRESS, SWITCH_MAC, udp_host_mac
from hostlib.protocol.check_words import check_words
from hostlib.protocol.framing import MTU, ip_bytes
from hostlib.protocol.header import Header
from hostlib.system.machine import cpu_name, pinned, usable_cores
from hostlib.system.network_namespace import inside, veths
from hostlib.system.process import StartError, running
from hostlib.text.output import output

BMV2 = "simple_switch_grpc"
SLOTS = 128
HEADERS = 14 + 20 + 8  # Ethernet, IPv4, UDP
PAYLOAD_AT = HEADERS + layout.HEADER_BYTES
RANKS = 4  # between interfaces
# A switch has to buffer what is in flight: each is measured with the window that suits it.
WINDOWS = (8, 24, 64, 128)
ALL_WINDOWS = 256  # slots for all of them, a power of two
AGAIN_S = 0.05
SLICE_S = 0.2  # packets per call of C code; Ctrl-C is handled between calls
REPETITIONS = 7
RUN_NS = 2e6  # one in-process measurement: shorter than the time slices of other processes, which evict the caches
START_S = 20.0
GRADIENT = 1 << 20  # elements of one all-reduce
SECRET = 16 * "00"  # any takes as long
CHECK_STEP = 0x9E3779B1  # check words change from one generation to the next


class BenchError(EmulationError):
    """A benchmark that failed."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The output of `emulation bench --json`. Keys of the first three are elements per packet.

    Attributes:
        in_process_ns: per aggregation packet: parsed, matched, summed, deparsed.
        limit_ns: only byte-swapping and adding the same elements.
        interfaces: aggregated elements per second; those of BMv2 are None if it is not installed.
        loopback_gbit_per_s_per_rank: gradient bits per second and rank.
    """

    in_process_ns: dict[str, float]
    limit_ns: dict[str, float]
    interfaces: dict[str, dict[str, float | None]]
    loopback_gbit_per_s_per_rank: float
    machine: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """As `emulation bench --json` prints it; the rate also under the name that it had one version ago."""
        return {**asdict(self), "loopback_gbps_per_rank": self.loopback_gbit_per_s_per_rank}


def run_bench(seconds: float, console: Console) -> BenchResult:
    """Run all measurements, with progress on the console.

    Args:
        seconds: approximate time of each measurement.

    Raises:
        BenchError: not root, a failed measurement, or wrong sums of the switch.
    """
    if os.geteuid() != 0:
        raise BenchError("interfaces are measured in a network namespace: that needs root")
    programs, limits = {}, {}
    interfaces: dict[str, dict[str, float | None]] = {}
    for elements in ELEMENTS:
        with _saying(console, f"one packet of {elements} elements in process"):
            programs[str(elements)], limits[str(elements)] = in_process(elements, seconds)
    for elements in ELEMENTS:
        rates: dict[str, float | None] = {"embedded_ate_s": None, "bmv2_ate_s": None}
        with _saying(console, f"embedded switch between interfaces, {elements} elements"):
            rates["embedded_ate_s"] = between_interfaces(embedded_switch, elements, seconds)
        if shutil.which(BMV2) is not None:
            with _saying(console, f"BMv2 between interfaces, {elements} elements"):
                rates["bmv2_ate_s"] = between_interfaces(bmv2_switch, elements, seconds)
        interfaces[str(elements)] = rates
    with _saying(console, "two ranks on loopback"):
        loopback = on_loopback(seconds)
    return BenchResult(programs, limits, interfaces, loopback, _machine())


@contextmanager
def _saying(console: Console, what: str) -> Iterator[None]:
    if not console.is_terminal:
        console.print(f"measuring: {what}")
    with console.status(f"measuring: {what}"):
        yield


def _machine() -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 1),
    }


# ---- the job and its packets ------------------------------------------------------------------------------------


def _members(count: int) -> tuple[Member, ...]:
    return tuple(
        Member(rank, rank + 1, udp_host_mac(rank + 1), f"10.0.1.{rank + 1}", 5000 + rank, rank + 1)
        for rank in range(count)
    )


def _share(members: tuple[Member, ...], slots: int = SLOTS) -> SwitchShare:
    return SwitchShare(job_id=1, epoch=1, first_slot=0, slots=slots, group=1, members=members)


def _load(elements: int, share: SwitchShare) -> Pipeline:
    """The program with the job's entries."""
    artifact = load_artifact(elements)
    names = Names(text_format.Parse(artifact.p4info, p4info_pb2.P4Info()))
    pipeline = Pipeline(load_config(artifact.program, artifact.p4info))
    with pipeline.dataplane.writing():
        for entity in [names.fabric_address(FABRIC_ADDRESS), *names.job([share])]:
            pipeline.update(p4runtime_pb2.Update(type=p4runtime_pb2.Update.INSERT, entity=entity))
    return pipeline


def _at(field: str) -> int:
    """Offset of an aggregation header field in a frame."""
    before = layout.HEADER_FIELDS.index(field)
    return HEADERS + struct.calcsize(layout.HEADER_FORMAT[: 1 + before])


def _frame(share: SwitchShare, member: Member, header: Header, payload: bytes) -> bytes:
    length = 8 + layout.HEADER_BYTES + len(payload)
    addresses = IPv4Address(member.address).packed + IPv4Address(FABRIC_ADDRESS).packed
    ip = struct.pack(">BBHHHBBH8s", 0x45, 0, 20 + length, 0, 0, 64, 17, 0, addresses)
    checksum = sum(struct.unpack(">10H", ip))
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    ip = ip[:10] + struct.pack(">H", ~checksum & 0xFFFF) + ip[12:]
    ethernet = SWITCH_MAC.to_bytes(6, "big") + member.mac.to_bytes(6, "big") + b"\x08\x00"
    udp = struct.pack(">4H", member.udp_port, layout.NETFOLD_UDP_PORT, length, 0)
    return ethernet + ip + udp + header.pack() + payload


@dataclass(frozen=True, slots=True)
class Contributions:
    """Every rank's initial packets.

    Attributes:
        frames: uint8, shape (ranks, slots, bytes of a frame).
        checks: uint32, shape (ranks, slots): the check words of the results, as a switch adds them.
        total: the elements of every result, in network byte order.
    """

    frames: np.ndarray
    checks: np.ndarray
    total: bytes

    @classmethod
    def of(cls, share: SwitchShare, elements: int, slots: range) -> Contributions:
        draw = np.random.default_rng(1)
        vectors = draw.integers(-(2**24), 2**24, (len(share.members), elements), dtype=np.int32)
        total = vectors.sum(axis=0, dtype=np.int32)
        words = check_words(SECRET, len(share.members), elements)
        frames, checks = [], []
        for slot in slots:
            at = Header(job=share.job_id, epoch=share.epoch, slot=slot, element_count=elements)
            checks.append(0)
            for member, vector in zip(share.members, vectors, strict=True):
                header = replace(at, rank=member.rank, check=words.word(at, vector, [member.rank]))
                checks[-1] += header.check
                frames.append(np.frombuffer(_frame(share, member, header, vector.astype(">i4").tobytes()), np.uint8))
        stacked = np.stack(frames).reshape(len(slots), len(share.members), -1).transpose(1, 0, 2)
        all_checks = np.tile(np.array(checks, np.uint32), (len(share.members), 1))
        return cls(np.ascontiguousarray(stacked), all_checks, total.astype(">i4").tobytes())


# ---- in process -------------------------------------------------------------------------------------------------


def in_process(elements: int, seconds: float) -> tuple[float, float]:
    """Nanoseconds of CPU time per packet of two ranks: through the program, and of the sums alone.

    Raises:
        BenchError: the program did not complete every slot.
    """
    share = _share(_members(2))
    pipeline = _load(elements, share)
    try:
        first = Contributions.of(share, elements, range(SLOTS))
        # In the order of arrival from a network: the ranks of one slot one after the other.
        frames = np.ascontiguousarray(first.frames.transpose(1, 0, 2)).reshape(2 * SLOTS, -1)
        ports = [member.port for _ in range(SLOTS) for member in share.members]
        dataplane = pipeline.dataplane
        rounds = 1
        while dataplane.time_program(frames, ports, _at("generation"), rounds) * len(ports) * rounds < RUN_NS:
            rounds *= 2
        repetitions = max(REPETITIONS, round(seconds / 0.01))
        before, expected = _completed(pipeline), SLOTS * rounds * repetitions
        programs, sums = [], []
        for _ in range(repetitions):
            programs.append(dataplane.time_program(frames, ports, _at("generation"), rounds))
            sums.append(dataplane.time_sums(frames, PAYLOAD_AT, SLOTS, rounds))
        completed = _completed(pipeline) - before
        if completed != expected:
            raise BenchError(f"the switch completed {completed} slots where {expected} were full")
        return round(statistics.median(programs), 1), round(statistics.median(sums), 1)
    finally:
        pipeline.dataplane.close()


def _completed(pipeline: Pipeline) -> int:
    entity = p4runtime_pb2.Entity()
    entity.counter_entry.counter_id = Names(pipeline.config.p4info).counter_id("events")
    entity.counter_entry.index.index = layout.EVENT_COMPLETED
    (cell,) = pipeline.read(entity)
    return int(cell.counter_entry.data.packet_count)


# ---- between interfaces -----------------------------------------------------------------------------------------


class _Generator(ctypes.Structure):
    """generator_t of runtime/generator.h."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("ranks", "slots", "bytes")),
        *((name, ctypes.c_void_p) for name in ("frames", "checks", "sum")),
        *((name, ctypes.c_uint64) for name in ("again_ns", "results", "wrong", "resent", "ns")),
    ]


def between_interfaces(
    switch: Callable[[str, int, SwitchShare], contextlib.AbstractContextManager[None]], elements: int, seconds: float
) -> float:
    """Elements per second that a switch sums and multicasts to RANKS ranks, each behind a veth pair.

    Raises:
        BenchError: no namespace could be made, or results were wrong or missing.
    """
    share = _share(_members(RANKS), ALL_WINDOWS)
    with ExitStack() as stack:
        space = stack.enter_context(veths(RANKS, "bench", max(MTU, ip_bytes(elements))))
        stack.enter_context(switch(space, elements, share))
        specs = [PortSpec(rank, PacketSocket(f"h{member.port}")) for rank, member in enumerate(share.members)]
        ends = inside(space, lambda: open_ports(specs))
        library = ctypes.CDLL(str(_generator_library()))
        for end in ends:
            stack.callback(end.close)
            end.attach(library, None)
            stack.callback(library.ng_close, ctypes.c_uint32(end.number))
        each_s = seconds / len(WINDOWS)
        return max(_generate(library, share, elements, n, window, each_s) for n, window in enumerate(WINDOWS))


def _generate(
    library: ctypes.CDLL, share: SwitchShare, elements: int, attempt: int, window: int, seconds: float
) -> float:
    # Other slots than the previous attempts', which may have left theirs half full.
    first = sum(WINDOWS[:attempt])
    sent = Contributions.of(share, elements, range(first, first + window))
    generator = _Generator(
        len(share.members),
        window,
        sent.frames.shape[-1],
        sent.frames.ctypes.data,
        sent.checks.ctypes.data,
        ctypes.cast(ctypes.c_char_p(sent.total), ctypes.c_void_p),
        int(AGAIN_S * 1e9),
    )
    give_up = time.monotonic() + max(seconds, SLICE_S)
    while time.monotonic() < give_up:
        library.ng_run(ctypes.byref(generator), ctypes.c_uint64(int(SLICE_S * 1e9)))
    if generator.wrong:
        raise BenchError(f"{generator.wrong} of {generator.results} results were wrong")
    if not generator.results:
        raise BenchError(f"no slot of {window} was completed in {seconds:.1f} s")
    return round(int(generator.results) / len(share.members) * elements / (int(generator.ns) / 1e9), 1)


def _generator_library() -> Path:
    constants = {
        "OPERATION_RESULT": layout.OPERATION_RESULT,
        "CHECK_STEP": CHECK_STEP,
        "PAYLOAD_AT": PAYLOAD_AT,
        **{f"{name.upper()}_AT": _at(name) for name in ("operation", "slot", "generation", "check")},
    }
    defined = "\n".join(f"#define {name} {value}u" for name, value in constants.items())
    return compile_library(defined, ("generator.h",))


@contextmanager
def embedded_switch(space: str, elements: int, share: SwitchShare) -> Iterator[None]:
    """Run the embedded switch on s1, s2, ... of a namespace."""
    specs = [PortSpec(member.port, PacketSocket(f"s{member.port}")) for member in share.members]
    with ExitStack() as stack:
        ports = inside(space, lambda: open_ports(specs))
        for port in ports:
            stack.callback(port.close)
        pipeline = _load(elements, share)
        stack.callback(pipeline.dataplane.close)
        pipeline.dataplane.attach(ports, None)
        # The scheduler tends to keep two threads that wake each other on one core.
        cores = sorted(os.sched_getaffinity(0))
        with pinned(cores[:1]):
            pipeline.dataplane.start()
        with pinned(cores[1:] or cores):
            yield


@contextmanager
def bmv2_switch(space: str, elements: int, share: SwitchShare) -> Iterator[None]:
    """Run BMv2 on s1, s2, ... of a namespace.

    Raises:
        BenchError: it did not start, or refused the program.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netfold-bench-")))
        command = [BMV2, "--no-p4", "--device-id", "1"]
        command += [word for member in share.members for word in ("-i", f"{member.port}@s{member.port}")]
        command += ["--log-level", "off", "--", "--grpc-server-addr", f"unix:{folder}/p4rt"]
        try:
            stack.enter_context(running(command, folder / "p4rt", folder / "log", what=BMV2, space=space))
        except StartError as error:
            raise BenchError(str(error)) from error
        try:
            fabric = P4RuntimeSession(f"unix:{folder}/p4rt", 1)
            stack.callback(fabric.close)
            fabric.push(load_artifact(elements), OwnEntries(FABRIC_ADDRESS))
            fabric.install([share])
        except ControllerError as error:
            raise BenchError(str(error)) from error
        yield


# ---- on loopback ------------------------------------------------------------------------------------------------


def on_loopback(seconds: float) -> float:
    """Gradient Gbit/s that each of two ranks' engines sums through UDP ports, 256 elements per packet.

    Raises:
        BenchError: an engine failed.
    """
    elements, ranks = V1MODEL.usual_elements, 2
    with ExitStack() as stack:
        ports = open_ports([PortSpec(1 + rank, UdpSocket(Endpoint("127.0.0.1", 0))) for rank in range(ranks)])
        for port in ports:
            stack.callback(port.close)
        engines = [Engine("127.0.0.1") for _ in range(ranks)]
        members = tuple(
            Member(rank, 1 + rank, udp_host_mac(1 + rank), "127.0.0.1", engine.ports[0], 1 + rank)
            for rank, engine in enumerate(engines)
        )
        share = _share(members)
        pipeline = _load(elements, share)
        stack.callback(pipeline.dataplane.close)
        pipeline.dataplane.attach(ports, Endpoint(FABRIC_ADDRESS, layout.NETFOLD_UDP_PORT))
        pipeline.dataplane.start()
        check = for_engine(check_words(SECRET, ranks, elements))
        for rank, engine in enumerate(engines):
            engine.configure(
                "127.0.0.1",
                ports[rank].endpoint.port,
                share.job_id,
                share.epoch,
                rank,
                ranks,
                [(0, SLOTS)],
                elements,
                check,
            )
        once = _allreduce(engines, 1)
        rounds = max(1, round(seconds / once))
        return round(32e-9 * GRADIENT * rounds / _allreduce(engines, rounds), 3)


def _allreduce(engines: list[Engine], rounds: int) -> float:
    """Seconds for `rounds` all-reduces of all ranks."""
    errors: list[Exception] = []
    tensors = [np.random.default_rng(rank).standard_normal(GRADIENT, np.float32) for rank in range(len(engines))]

    def run(engine: Engine, tensor: np.ndarray) -> None:
        try:
            for _ in range(rounds):
                engine.allreduce(tensor, True, 10.0)
        except Exception as failed:
            errors.append(failed)

    threads = [threading.Thread(target=partial(run, *each)) for each in zip(engines, tensors, strict=True)]
    start = time.perf_counter()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        for engine in engines:
            engine.cancel()
        raise
    if errors:
        raise BenchError(f"two ranks on loopback: {errors[0]}") from errors[0]
    return time.perf_counter() - start


# ---- output ---------------------------------------------------------------------------------------------------


def print_bench(result: BenchResult) -> None:
    """Print the results as tables on standard output."""
    console = output()
    table = Table("elements per packet", title="the embedded switch", title_justify="left")
    for heading in ("in process (ns)", "sums alone (ns)", "between interfaces (M/s)", "BMv2 (M/s)", "ratio"):
        table.add_column(heading, justify="right")
    for elements, rates in result.interfaces.items():
        embedded, bmv2 = rates["embedded_ate_s"], rates["bmv2_ate_s"]
        assert embedded is not None
        table.add_row(
            elements,
            f"{result.in_process_ns[elements]:.0f}",
            f"{result.limit_ns[elements]:.0f}",
            f"{embedded / 1e6:.2f}",
            "-" if bmv2 is None else f"{bmv2 / 1e6:.2f}",
            "-" if bmv2 is None else f"{embedded / bmv2:.1f}x",
        )
    console.print(table)
    console.print(f"two ranks on loopback: {result.loopback_gbit_per_s_per_rank:.2f} Gbit/s of gradient per rank")
    machine = result.machine
    console.print(f"on {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, load {machine['load']}")
