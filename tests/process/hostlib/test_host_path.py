"""`hostlib bench --path`: a rank's engine against a reflector, on loopback and on a veth pair."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

import hostlib.cli
from hostlib._engine import Reflector
from hostlib.bench import host_path
from hostlib.errors import RunError
from hostlib.protocol import constants
from hostlib.protocol.framing import V1MODEL_ELEMENTS
from hostlib.protocol.header import Header
from hostlib.system.network_namespace import NamespaceError

CONTRACT = {"path", "elements", "goodput_gbit_s", "cpu_us_per_packet", "engine_us_per_kib"}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_path, "SECONDS", 0.2)
    monkeypatch.setattr(host_path, "TENSOR_BYTES", 1 << 20)


def bench(*words: str) -> Result:
    return CliRunner().invoke(hostlib.cli.main, ["bench", "--path", *words])


def measured(*paths: str) -> list[tuple[str, int]]:
    return [(path, elements) for path in paths for elements in V1MODEL_ELEMENTS]


def without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def refused(purpose: str) -> Iterator[str]:
        raise NamespaceError(f"cannot make a namespace for {purpose}")
        yield

    monkeypatch.setattr(host_path, "namespace", refused)


def test_every_size_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    without_namespaces(monkeypatch)
    done = bench("--json")
    assert done.exit_code == 0, done.output
    assert "the path xdp is not measured: cannot make a namespace for bench\n" in done.stderr
    require_sound(json.loads(done.stdout), "udp")


@pytest.mark.xdp
@pytest.mark.parametrize("chosen", [None, "xdp", "udp"])
def test_both_paths_are_measured_whatever_is_chosen(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if chosen is None:
        monkeypatch.delenv("NETFOLD_PATH", raising=False)
    else:
        monkeypatch.setenv("NETFOLD_PATH", chosen)
    done = bench("--json")
    assert done.exit_code == 0, done.output
    require_sound(json.loads(done.stdout), "udp", "xdp")
    assert os.environ.get("NETFOLD_PATH") == chosen and "not measured" not in done.stderr


def require_sound(rows: list[dict[str, Any]], *paths: str) -> None:
    assert [(row["path"], row["elements"]) for row in rows] == measured(*paths)
    for row in rows:
        assert row.keys() >= CONTRACT and min(row[name] for name in CONTRACT - {"path"}) > 0
        of_a_core = 32 * row["elements"] / row["cpu_us_per_packet"] / 1000
        assert row["goodput_gbit_s"] < 1.2 * of_a_core, "the thread's CPU time is counted in ticks"
        if row["path"] == "udp":
            assert row["goodput_gbit_s"] < row["stream_gbit_s"], "which does less"
        assert row["engine_us_per_kib"] < 1.2 * row["cpu_us_per_packet"] / (row["elements"] / 256)
        assert row["sent_again"] < 0.5
        assert row["round_trip_us"] > 0


def test_the_table_has_a_line_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    without_namespaces(monkeypatch)
    done = bench()
    assert done.exit_code == 0, done.output
    assert all(f"{elements:,}" in done.stdout for elements in V1MODEL_ELEMENTS)
    assert "rows: 8 of 8" in done.stderr and "a core copies" in done.stdout


def test_it_has_no_other_options() -> None:
    done = bench("--workers", "2")
    assert done.exit_code == 1
    assert str(done.exception) == "--workers: --path measures one rank's engine alone; --json is legal beside it"


def test_silence_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        port = 9  # discard(9): nobody listens

        def __init__(self, address: str) -> None: ...

    monkeypatch.setattr(host_path._engine, "Reflector", Nobody)
    monkeypatch.setattr(host_path, "DEADLINE_S", 0.3)
    with pytest.raises(RunError, match="the path does not carry packets"):
        host_path.measure_paths(sizes=[64], seconds=0.1, tensor_bytes=1 << 16)


def test_a_wrong_sum_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_one(engine: object, gradient: object) -> None:
        gradient[7] += 1  # type: ignore[index]

    monkeypatch.setattr(host_path, "_sum", add_one)
    with pytest.raises(RunError, match="sums of one rank's gradient are wrong"):
        host_path.measure_paths(sizes=[64], seconds=0.1, tensor_bytes=1 << 16)


@pytest.mark.parametrize("more", [0, 1, 1024])
def test_what_is_reflected_is_the_rest_of_the_packet(more: int) -> None:
    sent = Header(operation=constants.OPERATION_CONTRIBUTION, job=3, rank=5, generation=7, slot=9, element_count=64)
    reflector = Reflector("127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(5)
        sender.connect(("127.0.0.1", reflector.port))
        sender.send(b"short")
        assert sender.recv(2048) == b"short"
        vector = (bytes(range(256)) * 4)[:more]
        sender.send(sent.pack() + vector)
        came = sender.recv(2048)
    turned = replace(sent, operation=constants.OPERATION_RESULT, rank=constants.RANK_ALL)
    assert came == turned.pack() + vector
