"""`emulation bench`: what it measures is the real thing, and it leaves nothing behind. Figures are the machine's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from controller.jobs.switch_share import SwitchShare
from controller.target import V1MODEL
from emulation.benchmarks import switch_rates
from hostlib.protocol.addresses import udp_host_mac
from tests.conftest import ROOT

BENCH = [sys.executable, "-m", "emulation", "bench", "--duration", "0.2s"]
WITHOUT_BMV2 = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def namespaces(pid: int) -> list[str]:
    """Of this bench: tests that run at the same time may have others."""
    return [entry.name for entry in Path("/run/netns").glob(f"netfold-bench-{pid}-*")]


def test_one_packet_takes_longer_than_its_sums() -> None:
    program, sums = switch_rates.in_process(64, 0.1)
    assert program > sums > 0


def test_two_ranks_on_loopback() -> None:
    assert switch_rates.on_loopback(0.2) > 0


def test_wrong_results_are_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contributions of another job are dropped: nothing is completed."""
    monkeypatch.setattr(
        switch_rates, "_load", lambda elements, share, load=switch_rates._load: load(elements, other_job(share))
    )
    with pytest.raises(switch_rates.BenchError, match="the switch completed 0 slots where"):
        switch_rates.in_process(64, 0.1)


@pytest.mark.root
def test_wrong_sums_between_interfaces_are_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    of = switch_rates.Contributions.of
    monkeypatch.setattr(
        switch_rates.Contributions, "of", lambda *a, **k: replace(sent := of(*a, **k), total=sent.total[::-1])
    )
    with pytest.raises(switch_rates.BenchError, match=r"^(\d+) of \1 results were wrong"):
        switch_rates.between_interfaces(switch_rates.embedded_switch, 64, 0.2)


@pytest.mark.root
def test_no_results_between_interfaces_are_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        switch_rates, "_load", lambda elements, share, load=switch_rates._load: load(elements, other_job(share))
    )
    with pytest.raises(switch_rates.BenchError, match="no slot of 8 was completed"):
        switch_rates.between_interfaces(switch_rates.embedded_switch, 64, 0.2)


def other_job(share: SwitchShare) -> SwitchShare:
    return switch_rates.replace(share, job_id=share.job_id + 1)


def test_without_root_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(switch_rates.BenchError, match="needs root"):
        switch_rates.run_bench(0.1, Console(stderr=True))


def test_frames_of_the_ranks() -> None:
    share = switch_rates._share(switch_rates._members(2))
    made = switch_rates.Contributions.of(share, 64, range(5, 8))
    assert made.frames.shape == (2, 3, switch_rates.PAYLOAD_AT + 256)
    assert made.checks.shape == (2, 3)
    second = made.frames[1, 2].tobytes()
    assert second[6:12] == udp_host_mac(2).to_bytes(6, "big")
    assert int.from_bytes(second[switch_rates._at("generation") :][:4], "big") == 0
    assert int.from_bytes(second[switch_rates._at("slot") :][:2], "big") == 7


@pytest.mark.root
def test_the_command_prints_its_contract() -> None:
    with subprocess.Popen(
        [*BENCH, "--json"], cwd=ROOT, env=WITHOUT_BMV2, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        printed, complained = running.communicate(timeout=100)
    assert running.returncode == 0, complained
    result = json.loads(printed)
    assert list(result) == [
        "in_process_ns",
        "limit_ns",
        "interfaces",
        "loopback_gbit_per_s_per_rank",
        "machine",
        "loopback_gbps_per_rank",
    ]
    for key in ("in_process_ns", "limit_ns"):
        assert list(result[key]) == [str(elements) for elements in V1MODEL.elements] and min(result[key].values()) > 0
    for rates in result["interfaces"].values():
        assert rates["embedded_ate_s"] > 0 and rates["bmv2_ate_s"] is None
    assert result["loopback_gbit_per_s_per_rank"] == result["loopback_gbps_per_rank"] > 0
    assert "measuring: two ranks on loopback" in complained
    assert namespaces(running.pid) == []


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("reached", ["one packet of 64", "switch between interfaces, 64", "two ranks on loopback"])
def test_it_can_be_interrupted_anywhere(reached: str, number: signal.Signals) -> None:
    running = subprocess.Popen(BENCH, cwd=ROOT, env=WITHOUT_BMV2, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stderr is not None
    while reached not in (line := running.stderr.readline().decode()):
        assert line
    running.send_signal(number)
    out, rest = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, b"")
    assert rest.decode().splitlines()[-1] == "interrupted"
    assert namespaces(running.pid) == []
