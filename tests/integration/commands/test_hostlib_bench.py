"""`hostlib bench`: the table is right, on loopback and between network namespaces, and nothing of it stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hostlib.bench.allreduce import BenchOptions, foot, parse_sizes, payload_limit_gbps
from hostlib.bench.reproducible_tensors import drawn, wrong_elements
from hostlib.launch.hosts import namespace_hosts, to_switch
from hostlib.protocol.addresses import FABRIC_ADDRESS
from hostlib.system.network_links import MTU
from hostlib.system.network_namespace import NamespaceError, inside, sweep
from tests.conftest import ROOT
from tests.iproute import ip

TCP_LIMIT_GBPS = 40e6 / 8e9 * 1448 / 1514  # of values, by a link of 40mbit
CONTRACT = {
    "mechanism",
    "collective",
    "size_bytes",
    "dtype",
    "time_us",
    "algbw_gbps",
    "busbw_gbps",
    "wrong",
    "retransmits",
}


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hostlib", "bench", "--json", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def bench(*options: str) -> list[dict[str, Any]]:
    with start(*options) as running:
        printed, complained = running.communicate(timeout=100)
    assert running.returncode == 0, complained
    return list(json.loads(printed))


def namespaces(pid: int) -> list[str]:
    return [entry.name for entry in Path("/run/netns").glob(f"netfold-*-{pid}-*")]


def test_every_mechanism_type_and_size_has_its_row() -> None:
    asked = ("--mechanism", "ring,inagg+mcast,gloo", "--workers", "2", "--size", "1000,256K")
    rows = bench(*asked, "--dtype", "float32,int32", "--repeats", "2", "--iterations", "2")
    assert [(row["mechanism"], row["dtype"], row["size_bytes"]) for row in rows] == [
        (mechanism, dtype, size)
        for mechanism in ("ring", "inagg+mcast", "gloo")
        for dtype in ("float32", "int32")
        for size in (1000, 256 << 10)
    ]
    for row in rows:
        assert row.keys() >= CONTRACT
        assert row["wrong"] == 0, row
        assert row["algbw_gbytes_per_s"] == row["algbw_gbps"] and row["busbw_gbytes_per_s"] == row["busbw_gbps"]
        assert row["algbw_gbps"] == pytest.approx(row["size_bytes"] / row["time_us"] / 1e3, rel=0.01, abs=2e-6)
        assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"], abs=2e-6)  # 2 (n - 1) / n of two ranks
        assert row["fastest_us"] <= row["time_us"] <= row["slowest_us"]
        assert row["sent_bytes"] is None and row["received_bytes"] is None, "of links, which loopback has none of"


def test_every_collective_has_its_rows() -> None:
    """Each mechanism's are those that it can do; 3 ranks have whole shards."""
    asked = ("--mechanism", "ring,tree,gloo", "--workers", "3", "--size", "1000,192K", "--dtype", "float32,bfloat16")
    named = "all_reduce,reduce_scatter,all_gather,broadcast,reduce,all_to_all,rs+ag"
    rows = bench("--collective", named, *asked, "--repeats", "1", "--iterations", "2")
    wanted = {
        "all_reduce": (("ring", "tree", "gloo"), 4 / 3),
        "reduce_scatter": (("ring", "gloo"), 2 / 3),
        "all_gather": (("ring", "gloo"), 2 / 3),
        "broadcast": (("ring", "tree", "gloo"), 1.0),
        "reduce": (("ring", "tree", "gloo"), 1.0),
        "all_to_all": (("ring", "gloo"), 2 / 3),
        "rs+ag": (("ring", "gloo"), 4 / 3),
    }
    assert {(row["mechanism"], row["collective"]) for row in rows} == {
        (mechanism, collective) for collective, (mechanisms, _) in wanted.items() for mechanism in mechanisms
    }
    assert len(rows) == 17 * 4
    for row in rows:
        assert row.keys() >= CONTRACT
        assert row["wrong"] == 0, row
        assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"] * wanted[row["collective"]][1], rel=0.01, abs=2e-6)
        assert row["size_bytes"] in (1000, 996, 192 << 10)


@pytest.mark.parametrize(
    ("how", "collective"),
    [("--window", "all_reduce"), ("NETFOLD_WINDOW", "all_reduce"), ("NETFOLD_WINDOW", "reduce_scatter")],
)
def test_a_static_window_is_what_is_outstanding(how: str, collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On links with a delay each window takes a round trip; the other rank's own window is as large."""
    times_ms = []
    size = {"all_reduce": "64K", "reduce_scatter": "128K"}[collective]  # A rank sends half of what is scattered.
    for packets in (4, 32):
        asked = ["--mechanism", "inagg+mcast", "--workers", "2", "--size", size, "--delay", "5ms"]
        asked += ["--collective", collective]
        if how == "--window":
            asked += [how, str(packets)]
        else:
            monkeypatch.setenv(how, str(packets))
        (row,) = bench(*asked, "--iterations", "1", "--repeats", "3")
        assert row["wrong"] == 0 and row["by_hosts"] == 0
        times_ms.append(row["fastest_us"] / 1000)
    narrow, wide = times_ms
    assert narrow > 64 / 4 * 2 * 5, "64 packets, four in each round trip of 10 ms"
    assert wide < narrow / 2


def test_a_path_that_there_is_not_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_PATH", "dpdk")
    with start("--mechanism", "inagg+mcast", "--workers", "2", "--size", "1K") as running:
        printed, complained = running.communicate(timeout=60)
    assert running.returncode == 1
    said = [line for line in complained.splitlines() if not line.startswith("measuring")]
    assert re.fullmatch(
        r"error: rank [01]: NETFOLD_PATH=dpdk: it is udp or xdp; the other ranks were stopped", said.pop()
    )
    assert not said and json.loads(printed).keys() == {"error"}


@pytest.mark.root
@pytest.mark.parametrize(
    ("mechanism", "limit_gbps", "faults"),
    [
        # What it loses and repeats is sent again.
        ("inagg+mcast", payload_limit_gbps("40mbit"), ("--loss", "0.02", "--duplicate", "0.02", "--seed", "3")),
        pytest.param(
            "inagg+mcast:via_server",
            payload_limit_gbps("40mbit"),
            ("--loss", "0.02", "--reorder", "0.02"),
            marks=(pytest.mark.slow, pytest.mark.crossed),
        ),
        # The server's link carries the sum once for each of both ranks.
        pytest.param(
            "inagg",
            payload_limit_gbps("40mbit") / 2,
            ("--loss", "0.02", "--duplicate", "0.02"),
            marks=(pytest.mark.slow, pytest.mark.crossed),
        ),
        # Both ranks' tensors to the server, the sum from there.
        (
            "mcast",
            1 / (2 / TCP_LIMIT_GBPS + 1 / payload_limit_gbps("40mbit")),
            ("--loss", "0.01", "--duplicate", "0.02"),
        ),
        # A half to the other rank, and a half, summed, through the switch.
        pytest.param(
            "ring+mcast",
            2 / (1 / TCP_LIMIT_GBPS + 1 / payload_limit_gbps("40mbit")),
            ("--loss", "0.01"),
            marks=pytest.mark.slow,
        ),
        # Of two ranks each sends every byte once; a frame of TCP carries up to 1448 bytes in 1514.
        ("gloo", TCP_LIMIT_GBPS, ()),
    ],
)
def test_links_between_namespaces_carry_their_rate_and_no_more(
    mechanism: str, limit_gbps: float, faults: tuple[str, ...]
) -> None:
    where = ("--on", "netns", "--workers", "2", "--bandwidth", "40mbit", "--mechanism", mechanism, *faults)
    with start(*where, "--size", "1M", "--repeats", "2", "--iterations", "1") as running:
        printed, complained = running.communicate(timeout=100)
    assert running.returncode == 0, complained
    (row,) = json.loads(printed)
    assert row["wrong"] == 0
    # What a burst lets through at once is not limited.
    assert 0.1 * limit_gbps < row["algbw_gbps"] < 1.02 * limit_gbps
    assert row["retransmits"] > 0 or not faults
    assert row["received_bytes"] > 2**20
    assert 0 < row["cores_busy"] <= 1
    assert namespaces(running.pid) == []


@pytest.mark.root
def test_links_carry_what_the_schedule_says_and_acknowledgements() -> None:
    """Of four ranks, each sends three quarters of what is summed and one of what is gathered, and gets the rest."""
    where = ("--on", "netns", "--workers", "4", "--bandwidth", "100mbit", "--mechanism", "inagg+mcast")
    collectives = ("--collective", "reduce_scatter,all_gather,rs+ag")
    with start(*where, *collectives, "--size", "4M", "--repeats", "1", "--iterations", "2") as running:
        printed, complained = running.communicate(timeout=100)
    assert running.returncode == 0, complained
    frame_bytes = 1098
    frames = 4 * 2**20 / 1024 * frame_bytes
    for row, sent, received in zip(json.loads(printed), (3 / 4, 1 / 4, 1), (1 / 4, 3 / 4, 1), strict=True):
        assert row["wrong"] == 0
        # Prologues and acknowledgements come on top, and what a machine that is too slow sends again, of all ranks.
        further = 0.06 + row["retransmits"] / 2 * frame_bytes / frames
        assert sent < row["sent_bytes"] / frames < sent + further, row
        assert received < row["received_bytes"] / frames < received + further, row


@pytest.mark.root
def test_a_tcp_stream_beside_the_ranks_is_counted() -> None:
    where = ("--on", "netns", "--workers", "2", "--bandwidth", "40mbit", "--mechanism", "inagg+mcast", "--queue", "50")
    once = ("--size", "4M", "--iterations", "1", "--repeats", "1")
    (alone,), (beside,) = bench(*where, *once), bench(*where, *once, "--beside-tcp")
    assert alone["tcp_gbytes_per_s"] is None
    assert beside["tcp_gbytes_per_s"] > 0
    assert alone["wrong"] == beside["wrong"] == 0
    assert beside["sent_bytes"] > alone["sent_bytes"]


@pytest.mark.root
@pytest.mark.parametrize("mechanism", ["inagg+mcast", "ring"])
def test_a_second_job_shares_the_links(mechanism: str) -> None:
    where = ("--on", "netns", "--workers", "2", "--bandwidth", "40mbit", "--mechanism", mechanism)
    times = ("--size", "64K,2M", "--iterations", "1", "--repeats", "2")
    alone, beside = bench(*where, *times), bench(*where, *times, "--beside-job")
    assert [row["job_gbytes_per_s"] for row in alone] == [None, None]
    assert all(row["job_gbytes_per_s"] > 0 and row["wrong"] == 0 for row in beside)
    assert beside[1]["time_us"] > alone[1]["time_us"]


@pytest.mark.root
def test_a_queue_that_a_tcp_stream_and_results_share_marks_both() -> None:
    where = ("--on", "netns", "--workers", "2", "--bandwidth", "40mbit", "--mechanism", "inagg+mcast", "--queue", "50")
    once = ("--size", "4M", "--iterations", "1", "--repeats", "1")
    (row,) = bench(*where, *once, "--beside-tcp-in", "--mark", "1:4")
    assert row["wrong"] == 0
    assert row["tcp_gbytes_per_s"] > 0 and row["marked"] > 0
    assert 1 <= row["queue_frames"] <= 50


@pytest.mark.root
def test_large_packets_have_links_that_carry_them_and_fewer_headers() -> None:
    """A header of 74 bytes for each KiB of a tensor, or for each 8 KiB."""
    options = (
        "--on",
        "netns",
        "--workers",
        "2",
        "--bandwidth",
        "200mbit",
        "--mechanism",
        "inagg+mcast",
        "--size",
        "4M",
    )
    (usual,), (large,) = (bench(*options, "--elements", elements) for elements in ("256", "2048"))
    assert usual["wrong"] == large["wrong"] == 0
    assert usual["sent_bytes"] > 1.07 * (4 << 20)
    assert 1.009 * (4 << 20) < large["sent_bytes"] < 1.06 * (4 << 20)


def await_bytes(space: str, interface: str, count: int) -> None:
    """Wait until so many bytes have come in over a link."""
    show = ["ip", "-n", space, "-s", "-j", "link", "show", "dev", interface]
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        (link,) = json.loads(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
        if link["stats64"]["rx"]["bytes"] >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{interface} carried less than {count} bytes in a minute")


@pytest.mark.root
def test_what_the_hosts_did_without_the_switch_is_not_the_fabrics() -> None:
    options = ("--on", "netns", "--workers", "2", "--bandwidth", "20mbit", "--mechanism", "inagg+mcast", "--size", "4M")
    with start(*options, "--iterations", "2", "--repeats", "1") as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("measuring")
        (middle,) = (name for name in namespaces(running.pid) if not re.search(r"h[0-9]+$", name))
        await_bytes(middle, "s1", 1 << 20)  # of four in the warm-up
        for pid in processes_in(middle):
            if b"emulation\0switch" in Path("/proc", pid, "cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
        printed, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    (row,) = json.loads(printed)
    assert row["by_hosts"] > 0
    assert row["wrong"] == 0


@pytest.mark.root
def test_a_rank_leaves_room_for_others_in_its_interfaces_queue() -> None:
    """Of 128 packets outstanding, 140 kB, some 30 wait there: 32 KiB, where the link sends less in a millisecond."""
    options = ("--on", "netns", "--workers", "2", "--bandwidth", "2mbit", "--mechanism", "inagg+mcast", "--size", "16M")
    waiting = [0]
    with start(*options) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("measuring")
        (host,) = (name for name in namespaces(running.pid) if name.endswith("h1"))
        give_up = time.monotonic() + 30
        while len(waiting) < 60 and time.monotonic() < give_up:
            show = ["tc", "-s", "-j", "-n", host, "qdisc", "show", "dev", "h1"]
            done = subprocess.run(show, capture_output=True, text=True, check=True)
            backlog = max(queue["backlog"] for queue in json.loads(done.stdout))
            if backlog > 0:
                waiting.append(backlog)
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=30)
    assert 10_000 < max(waiting) < 45_000


@pytest.mark.root
def test_ctrl_c_leaves_nothing_behind() -> None:
    with start(
        "--on", "netns", "--workers", "2", "--bandwidth", "1mbit", "--mechanism", "inagg+mcast", "--size", "16M"
    ) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "measuring: inagg+mcast, 16M float32\n"
        assert len(namespaces(running.pid)) == 3
        members = [pid for space in namespaces(running.pid) for pid in processes_in(space)]
        assert len(members) == 5, "switch, controller, store, and two ranks"
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
    assert namespaces(running.pid) == []
    assert [pid for pid in members if Path("/proc", pid).exists()] == []


def processes_in(space: str) -> list[str]:
    done = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.root
def test_the_namespaces_of_the_dead_are_swept_away_and_those_of_the_living_are_not() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    dead, living = f"netfold-test-{ended.pid}-0", f"netfold-test-{os.getpid()}-0"
    ip("netns", "add", dead)
    ip("netns", "add", living)
    try:
        assert dead in sweep()
        assert not Path("/run/netns", dead).exists()
        assert Path("/run/netns", living).exists()
    finally:
        ip("netns", "delete", living)


@pytest.mark.root
def test_a_bundle_of_datagrams_reaches_the_switch_as_single_frames() -> None:
    """A packet socket gets what the stack segments later, or never, in one piece; the switch takes frames."""
    count, each = 6, 1056
    with namespace_hosts(1, None) as made:
        hosts = to_switch(made)
        ip("-n", hosts.spaces[0], "neigh", "add", FABRIC_ADDRESS, "lladdr", "02:00:00:00:00:01", "dev", "h1")

        def listen() -> socket.socket:
            heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
            heard.bind(("s1", 0x0800))
            heard.settimeout(5)
            return heard

        def send() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                bundle = [(socket.IPPROTO_UDP, 103, struct.pack("=H", each))]  # UDP_SEGMENT
                sender.sendmsg([bytes(count * each)], bundle, 0, (FABRIC_ADDRESS, 4793))

        with inside(hosts.middle, listen) as heard:
            inside(hosts.spaces[0], send)
            frames = [len(heard.recv(1 << 16)) for _ in range(count)]
    assert frames == [14 + 20 + 8 + each] * count
    assert max(frames) <= 14 + MTU


def test_without_root_namespaces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NamespaceError, match="need root"), namespace_hosts(2, None):
        pass


# ---- what a row is made of --------------------------------------------------------------------------------------


def a_sum(dtype: torch.dtype, count: int, ranks: int) -> torch.Tensor:
    """Exact, but for its rounding to the type."""
    exact = torch.int64 if dtype == torch.int32 else torch.float64
    total = torch.zeros(count, dtype=exact)
    for rank in range(ranks):
        for start, block in drawn(7, rank, count, dtype):
            total[start : start + len(block)] += block.to(exact)
    return total.to(dtype)


def test_wrong_elements_of_a_shard_are_counted() -> None:
    count, ranks = 200_000, 4
    whole = a_sum(torch.float32, count, ranks)
    for first in (0, 50_000, 150_000):
        shard = whole[first : first + 50_000].clone()
        assert wrong_elements(shard, 7, ranks, None, first=first, count=count) == 0
        assert wrong_elements(shard, 7, ranks, None, first=(first + 50_000) % count, count=count) > 40_000
        shard[[0, -1]] += 1.0
        assert wrong_elements(shard, 7, ranks, None, first=first, count=count) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_wrong_elements_are_counted(dtype: torch.dtype) -> None:
    count, ranks = 70_000, 8
    result = a_sum(dtype, count, ranks)
    assert wrong_elements(result, 7, ranks, None) == 0
    assert wrong_elements(result, 8, ranks, None) > count / 2, "another seed's sum"
    step = 1 if dtype == torch.int32 else 16 * torch.finfo(dtype).eps
    for at in (0, 65_535, 65_536, count - 1):
        result[at] += step
    assert wrong_elements(result, 7, ranks, None) == 4
    if dtype.is_floating_point:
        result[5] = torch.nan
        assert wrong_elements(result, 7, ranks, None) == 5


def test_a_sum_in_floating_point_may_err_more_than_one_in_fixed_point() -> None:
    result = a_sum(torch.float32, 4096, 32)
    result += 40 * torch.finfo(torch.float32).eps
    assert wrong_elements(result, 7, 32, None) > 4000
    assert wrong_elements(result, 7, 32, torch.finfo(torch.float32).eps / 2) == 0


def test_sizes_are_lists_or_ranges() -> None:
    assert parse_sizes("64K,1M,64k", None, None, 4) == (64 << 10, 1 << 20)
    assert parse_sizes("1MiB,1MB", None, None, 4) == (1 << 20, 10**6)
    assert parse_sizes(None, "8", "1K", 4) == (8, 32, 128, 512)


def test_the_foot_says_what_a_link_carries() -> None:
    options = BenchOptions(("inagg+mcast", "ring"), (1 << 20,), hosts="netns:8", rate="100mbit")
    assert payload_limit_gbps("100mbit") == pytest.approx(0.0125 * 1024 / 1098)
    text = " ".join(foot(options))
    assert "0.01166 GB/s of values: 1024 of a frame's 1098 bytes" in text
    assert "for inagg+mcast look at algbw" in text
    assert "1.750 algbw" in text
