"""What a switch counted, and how one sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.cc import compile_program
from emulation.switch.compiler.program_writer import Generator
from emulation.switch.dataplane import LOSSES, PORT_STATS, Dataplane
from hostlib.system.process import Starting
from tests.conftest import ROOT
from tests.emulation.test_switch_process import PROGRAM, SWITCH

LANGUAGE = (ROOT / "tests" / "data" / "language.json").read_text()
RECIRCULATE = 8  # an operation of language.p4


def test_what_the_program_loses_is_counted() -> None:
    # Nothing leaves by port 5: what should be recirculated once is recirculated for ever.
    endless, changed = re.subn(r'("egress_port"\][^\]]*?"0x000)4"', r'\g<1>5"', LANGUAGE)
    assert changed == 1
    program = Program(endless.encode())
    dataplane = Dataplane(compile_program(Generator(program).generate(), ("-O0",)), program)
    try:
        assert dataplane.losses() == {"endless": 0, "untold": 0, "no_memory": 0}
        assert dataplane.process(1, bytes([RECIRCULATE]) + bytes(19)) == []
        assert dataplane.losses() == {"endless": 1, "untold": 0, "no_memory": 0}
        dataplane.cpu_port(1)
        with dataplane.writing():  # A megabyte is kept for the controllers.
            for _ in range(20):
                dataplane.process_locked(1, bytes(60_000))
            fetched = len(dataplane.messages())
        assert fetched == 17
        assert dataplane.losses() == {"endless": 1, "untold": 3, "no_memory": 0}
    finally:
        dataplane.close()
    assert dataplane.statistics([]) is None


@contextmanager
def reporting(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A switch that reports ten times a second, and its ready file."""
    ready = folder / "ready.json"
    command = [*SWITCH, "--p4rt", "127.0.0.1:0", "--ready-file", str(ready), "--stats-every", "0.1", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as switch:
        try:
            yield switch, Starting("the switch", switch, ready, Path(os.devnull)).wait()
        finally:
            switch.kill()


def ended(switch: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    assert switch.stderr is not None
    switch.send_signal(signal.SIGTERM)
    errors = switch.stderr.read()
    return switch.wait(20), errors


def test_ports_are_reported_and_at_the_end_once_more(tmp_path: Path) -> None:
    with reporting(tmp_path, "--ports", "2", *PROGRAM) as (switch, ready):
        assert switch.stdout is not None
        first = json.loads(switch.stdout.readline())
        assert set(first) == {"time_s", "ports", *LOSSES} and set(first["ports"]) == {"1", "2"}
        assert set(first["ports"]["1"]) == set(PORT_STATS) and not any(first["ports"]["1"].values())
        assert abs(first["time_s"] - time.time()) < 60
        address, port = ready["ports"]["1"].split(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
            for _ in range(5):
                host.sendto(bytes(58), (address, int(port)))
            while (seen := json.loads(switch.stdout.readline()))["ports"]["1"]["packets_in"] < 5:
                assert seen["time_s"] < first["time_s"] + 20
        assert seen["ports"]["1"]["bytes_in"] == 5 * 100 and seen["ports"]["2"]["packets_in"] == 0
        switch.send_signal(signal.SIGTERM)
        last = json.loads(switch.stdout.read().splitlines()[-1])
        assert last["time_s"] >= seen["time_s"] and last["ports"] == seen["ports"]
        assert ended(switch) == (0, b"")


def test_a_reader_that_goes_away_does_not_matter(tmp_path: Path) -> None:
    with reporting(tmp_path, "--ports", "1", *PROGRAM) as (switch, _):
        assert switch.stdout is not None
        switch.stdout.readline()
        switch.stdout.close()
        time.sleep(0.5)
        assert switch.poll() is None
        assert ended(switch) == (0, b"")


def test_without_a_program_there_is_nothing_to_report(tmp_path: Path) -> None:
    with reporting(tmp_path, "--ports", "1") as (switch, _):
        time.sleep(0.5)
        assert ended(switch) == (0, b"")
        assert switch.stdout is not None and switch.stdout.read() == b""
