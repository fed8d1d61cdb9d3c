"""Mutated packets and mutated P4Runtime writes on a switch compiled with the sanitizers; started by test_fuzz.py.

python -m tests.fuzz.run packets|writes PROGRAM SEED COUNT, with the sanitizer's runtime preloaded.
"""

from __future__ import annotations

import ctypes
import random
import sys
from pathlib import Path

from google.protobuf.message import DecodeError
from p4.v1 import p4runtime_pb2 as p4rt

from controller.switches.table_entries import Names
from emulation.switch.p4runtime import pipeline
from emulation.switch.p4runtime.pipeline import Pipeline, load_config
from emulation.switch.p4runtime.status import RequestError
from tests.dataplane.traffic import Traffic, forwarding

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ROOM = 2048


def load(program: Path) -> Pipeline:
    """A pipeline whose library has the sanitizers, and nf_fuzz, in it."""
    plain = pipeline.compile_program
    extra = (Path(__file__).parent / "fuzz.h").read_text()
    pipeline.compile_program = lambda text, *_: plain(text + extra, FLAGS)  # type: ignore[attr-defined, assignment]
    p4info = program.with_name(program.stem + ".p4info.txtpb")
    return Pipeline(load_config(program.read_bytes(), p4info.read_text()))


def seeds(made: Pipeline, program: Path, seed: int) -> list[bytes]:
    """Packets to start from; of netfold's own program right ones of jobs that are installed."""
    draw = random.Random(seed)
    if not program.name.startswith("netfold"):
        return [draw.randbytes(draw.randrange(1, 200)) for _ in range(64)]
    traffic = Traffic(seed, int(program.stem.rsplit("-", 1)[1]))
    names = Names(made.config.p4info)
    entities = [*forwarding(names), *(e for job in traffic.jobs for e in names.job([pool.share for pool in job]))]
    with made.dataplane.writing():
        for entity in entities:
            made.update(p4rt.Update(type=p4rt.Update.INSERT, entity=entity))
    return [next(traffic)[1][:ROOM] for _ in range(2000)]


def packets(program: Path, seed: int, count: int) -> None:
    made = load(program)
    frames = seeds(made, program, seed)
    lengths = (ctypes.c_uint32 * len(frames))(*map(len, frames))
    laid = b"".join(frame.ljust(ROOM, b"\0") for frame in frames)
    fuzz = made.dataplane._lib.nf_fuzz
    fuzz.restype = ctypes.c_uint64
    held = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
    held.restype = ctypes.c_size_t
    with made.dataplane.writing():
        first = min(count, 1000)
        fuzz(ctypes.c_uint64(seed), ctypes.c_uint64(first), laid, lengths, len(frames), ROOM, 12)
        before = held()
        fuzz(ctypes.c_uint64(seed + 1), ctypes.c_uint64(count - first), laid, lengths, len(frames), ROOM, 12)
        assert held() - before < 4096, f"{held() - before} bytes were not given back"
    if program.name.startswith("netfold"):
        counted = packets_of(made, "port_in")
        assert counted == count, f"{count} packets came in, {counted} were counted"
        # Each is counted as an event, or was plainly forwarded and left or was dropped in egress.
        assert 0 < packets_of(made, "events") < count
        assert packets_of(made, "port_out") > 0 < packets_of(made, "egress_events")
    made.dataplane.close()


def packets_of(made: Pipeline, counter: str) -> int:
    """Packets over all cells of one counter."""
    entity = p4rt.Entity()
    entity.counter_entry.counter_id = Names(made.config.p4info).counter_id(counter)
    return sum(each.counter_entry.data.packet_count for each in made.read(entity))


def mutated(draw: random.Random, message: bytes) -> bytes:
    data = bytearray(message)
    for _ in range(draw.randrange(1, 4)):
        kind = draw.randrange(4)
        at = draw.randrange(len(data) + 1)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at:at] = draw.randbytes(draw.randrange(1, 4))
        elif kind == 2:
            del data[at : at + draw.randrange(1, 6)]
        elif data:
            data[at % len(data)] = draw.choice((0, 1, 127, 128, 255))
    return bytes(data)


def writes(program: Path, seed: int, count: int) -> None:
    """Only RequestError may come of a write; what the switch says it has can be taken away again, all of it."""
    made = load(program)
    draw = random.Random(seed)
    names = Names(made.config.p4info)
    traffic = Traffic(seed, int(program.stem.rsplit("-", 1)[1]))
    entities = [*forwarding(names), *(e for job in traffic.jobs for e in names.job([pool.share for pool in job]))]
    right = [entity.SerializeToString() for entity in entities]
    accepted = refused = unreadable = 0
    for _ in range(count):
        update = p4rt.Update(type=draw.choice((1, 1, 2, 3)))
        try:
            update.entity.ParseFromString(
                mutated(draw, draw.choice(right)) if draw.random() < 0.8 else draw.choice(right)
            )
        except DecodeError:
            unreadable += 1
            continue
        try:
            with made.dataplane.writing():
                made.update(update)
            accepted += 1
        except RequestError:
            refused += 1
        if draw.random() < 0.05:
            made.dataplane.process(draw.randrange(12), next(traffic)[1])
    assert accepted > count // 100 and refused > count // 10, (accepted, refused, unreadable)
    print(f"{accepted} accepted, {refused} refused, {unreadable} unreadable")
    everything = p4rt.Entity()
    everything.table_entry.SetInParent()
    with made.dataplane.writing():
        for found in list(made.read(everything)):
            made.update(p4rt.Update(type=p4rt.Update.DELETE, entity=found))
    assert list(made.read(everything)) == []
    made.dataplane.close()


if __name__ == "__main__":
    what, program, seed, count = sys.argv[1:]
    {"packets": packets, "writes": writes}[what](Path(program), int(seed), int(count))
