"""Hosts: several GPUs in each, and what their cores cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import netfold
from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import find
from hostlib.system.host_costs import HostCosts, write_costs
from netfold.cli import main
from simulation.errors import SimulationError
from simulation.models.host_links import HOST_LINKS, find_host_link
from simulation.models.host_rates import HostRates
from simulation.simulator.host_link import last_gathered_ps
from simulation.simulator.network import Network
from simulation.simulator.play import Job, only
from simulation.simulator.workload import Tensor, Variation, Workload

MS = 1_000_000
MIB = 2**20
GIGABYTE = Network(8e9)


def workload(steps_ns: list[int], size: int = 10**6) -> Workload:
    """One tensor after each step."""
    count = len(steps_ns)
    tensors = tuple(Tensor(f"t{n}", size, n, 0, n) for n in range(count))
    released = tuple((n,) for n in range(count))
    return Workload(tensors, np.array([MS], np.int64), np.array([steps_ns], np.int64), released)


# ---- the switch's recirculation port --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "jobs", "times"),
    [("inagg+mcast", 1, 2), ("inagg+mcast", 2, 4), ("inagg+mcast:via_server", 1, 2), ("ring", 1, 1), ("mcast", 1, 1)],
)
def test_sums_pass_the_recirculation_port_and_nothing_else_does(mechanism: str, jobs: int, times: float) -> None:
    """A port of half the hosts' rate, shared by all jobs."""
    plain, limited = (
        netfold.predict(None, mechanism, 4, "10gbit", size="64MiB", jobs=jobs, apart=True, recirculation=port)
        for port in (None, "5gbit")
    )
    assert limited.iteration_s == pytest.approx(times * plain.iteration_s, rel=0.01)


# ---- several GPUs in a host -----------------------------------------------------------------------------------------


def test_one_gpu_per_host_changes_nothing() -> None:
    plain = netfold.predict("alexnet", "ring", 4, "10gbit")
    same = netfold.predict("alexnet", "ring", 4, "10gbit", gpus_per_host=1, host_link="pcie4")
    assert (plain.iteration_s, plain.bytes_per_link) == (same.iteration_s, same.bytes_per_link)


@pytest.mark.parametrize("mechanism", ["ring", "inagg+mcast", "ps"])
def test_with_an_infinitely_fast_link_a_host_is_one_gpu(mechanism: str) -> None:
    one = netfold.predict("alexnet", mechanism, 4, "10gbit")
    eight = netfold.predict("alexnet", mechanism, 32, "10gbit", gpus_per_host=8, host_link="1000000tbit")
    assert eight.iteration_s == pytest.approx(one.iteration_s, rel=1e-6)
    assert eight.bytes_per_link == one.bytes_per_link


def test_one_tensor_is_reduced_before_the_network_and_gathered_after() -> None:
    # 1 ms forward, 2 ms backward, 1 MB: 3 ms each way in the host, and on two hosts' ring 1 ms of 1 GB/s.
    job = Job(workload([2 * MS]), find("ring"), 2, host_ps_per_byte=3000.0)
    plain = only(GIGABYTE, Job(workload([2 * MS]), find("ring"), 2))[0]
    found = only(GIGABYTE, job)[0]
    assert plain.iteration_end_ns[1] == 4 * MS
    assert found.delivered_ns[1] == [7 * MS]
    assert found.iteration_end_ns[1] == 10 * MS


def test_the_hosts_link_serves_one_bucket_at_a_time() -> None:
    # Ready at 2 and 3 ms, reduce-scattered by 5 and 8: delivered at 6 and 9. The first is gathered after both.
    found = only(GIGABYTE, Job(workload([MS, MS]), find("ring"), 2, host_ps_per_byte=3000.0))[0]
    assert found.delivered_ns[1] == [6 * MS, 9 * MS]
    assert found.iteration_end_ns[1] == (2 + 4 * 3) * MS


def test_an_idle_host_link_only_adds_its_last_gather() -> None:
    found = only(GIGABYTE, Job(workload([MS, 90 * MS]), find("ring"), 2, host_ps_per_byte=3000.0))[0]
    assert found.iteration_end_ns[1] == (92 + 3 + 1 + 3) * MS


def test_each_iteration_waits_for_the_gathers_of_the_last() -> None:
    one = only(GIGABYTE, Job(workload([2 * MS]), find("ring"), 2, host_ps_per_byte=3000.0))[0]
    three = only(GIGABYTE, Job(workload([2 * MS]), find("ring"), 2, iterations=3, host_ps_per_byte=3000.0))[0]
    assert three.iteration_end_ns == [0, *(n * one.iteration_end_ns[1] for n in (1, 2, 3))]


def test_the_slowest_host_counts() -> None:
    variation = Variation(stragglers={1: 2.0})
    found = only(GIGABYTE, Job(workload([2 * MS]), find("ring"), 2, variation=variation, host_ps_per_byte=3000.0))[0]
    assert found.iteration_end_ns[1] == (2 * 3 + 3 + 1 + 3) * MS


def test_one_host_needs_no_network() -> None:
    found = netfold.predict("lenet", "inagg+mcast", 8, "1mbit", gpus_per_host=8, host_link="8gbit", jitter=1e-9)
    alone = netfold.predict("lenet", "inagg+mcast", 1, "1mbit", jitter=1e-9)
    size = sum(sum(link.values()) for link in netfold.predict("lenet", "ring", 2).bytes_per_link.values()) / 4
    # Its gradients are one bucket: 2 * 7/8 of them at 1 GB/s.
    assert found.iteration_s - alone.iteration_s == pytest.approx(2 * 7 / 8 * size / 1e9, rel=1e-3)


def test_the_links_work_is_done_at_the_end_of_its_last_busy_period() -> None:
    end = last_gathered_ps(np.array([[0.0, 10.0]]), np.array([4, 4]), np.array([5.0, 100.0]), np.array([4.0, 4.0]))
    assert end == 104
    assert last_gathered_ps(np.array([[0.0]]), np.array([4]), np.array([2.0]), np.array([4.0])) == 8


def test_a_host_is_as_slow_as_its_slowest_gpu() -> None:
    rates = {"gpus_per_host": 2, "host_link": "nvlink3"}
    of_gpu = netfold.predict("alexnet", "ring", 8, stragglers={5: 3.0, 4: 2.0}, **rates)  # type: ignore[arg-type]
    other = netfold.predict("alexnet", "ring", 8, stragglers={4: 3.0}, **rates)  # type: ignore[arg-type]
    assert of_gpu.iteration_s == other.iteration_s
    faster = netfold.predict("alexnet", "ring", 8, stragglers={4: 0.5}, jitter=1e-9, **rates)  # type: ignore[arg-type]
    plain = netfold.predict("alexnet", "ring", 8, jitter=1e-9, **rates)  # type: ignore[arg-type]
    assert faster.iteration_s == pytest.approx(plain.iteration_s, rel=1e-6)


def test_links_of_hosts() -> None:
    assert find_host_link("NVLink4") is HOST_LINKS["nvlink4"] and find_host_link("400gbit").gb_s == 50
    assert all(link.gb_s > 0 and link.source for link in HOST_LINKS.values())
    with pytest.raises(SimulationError, match="nvlink4, nvlink3, pcie5, pcie4"):
        find_host_link("infiniband")


def test_ask_says_what_limits_and_what_it_assumes() -> None:
    found = netfold.ask("alexnet", 16, "100gbit", mechanisms="ring", gpus_per_host=4, host_link="1gbit")
    assert found.rows[0].limited_by == "the link between a host's GPUs"
    assert found.assumptions["workers"]["value"] == 16
    assert found.assumptions["hosts"]["value"] == "4 hosts of 4 GPUs"
    assert found.assumptions["host link"] == {"value": "0.125 GB/s each way of each GPU", "source": "--host-link"}
    usual = netfold.ask("lenet", 8, mechanisms="ring", gpus_per_host=8)
    assert usual.assumptions["host link"]["source"].startswith("default; NVIDIA H100")
    assert "host link" not in netfold.ask("lenet", 8, mechanisms="ring").assumptions


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--workers", "12", "--gpus-per-host", "8"], "8 does not divide 12"),
        (["--workers", "8", "--host-link", "pcie4"], "it needs --gpus-per-host of 2 or more"),
        (["--workers", "8", "--gpus-per-host", "4", "--host-link", "fast"], "--host-link takes a rate"),
        (["--workers", "8", "--gpus-per-host", "4", "--semantics", "papers"], "--semantics runtime"),
        (["--workers", "8", "--gpus-per-host", "4", "--barrier", "none"], "--barrier global"),
        (["--workers", "8", "--gpus-per-host", "4", "--mechanism", "hybcomm/ring"], "is a training strategy"),
        (["--workers", "8", "--gpus-per-host", "4", "--straggler", "8=2"], "there are only 8 workers"),
    ],
)
@pytest.mark.parametrize("command", [["ask"], ["simulate", "run"]])
def test_what_is_impossible_is_one_line(command: list[str], words: list[str], says: str) -> None:
    done = CliRunner().invoke(main, [*command, "--model", "lenet", *words])
    assert done.exit_code != 0 and isinstance(done.exception, SimulationError) and says in str(done.exception)
    assert "\n" not in str(done.exception)


# ---- hosts' cores ----------------------------------------------------------------------------------------------------

INFINITE = 1e30
FAST = HostCosts("a CPU", 2, "2026-01-01T00:00:00+00:00", {}, *[INFINITE] * 5, 1024, INFINITE)


def file_of(folder: Path, costs: HostCosts = FAST, **changes: float) -> Path:
    write_costs(replace(costs, **changes), folder / "costs.json")  # type: ignore[arg-type]
    return folder / "costs.json"


@pytest.mark.parametrize("mechanism", ["ring", "ps", "tree", "inagg+mcast", "inagg", "mcast", "ring+mcast"])
def test_infinitely_fast_hosts_change_nothing(mechanism: str, tmp_path: Path) -> None:
    plain = netfold.predict("alexnet", mechanism, 4, "10gbit")
    fast = netfold.predict("alexnet", mechanism, 4, "10gbit", host_costs=file_of(tmp_path))
    assert (fast.iteration_s, fast.bytes_per_link) == (plain.iteration_s, plain.bytes_per_link)


@pytest.mark.parametrize("mechanism", ["ring", "ps", "inagg+mcast", "inagg", "mcast"])
def test_slow_hosts_are_the_limit(mechanism: str, tmp_path: Path) -> None:
    slow = file_of(tmp_path, pack_gb_s=0.1, packets_per_s=1e5, tcp_gb_s=0.1)
    found = netfold.ask("alexnet", 4, "10gbit", mechanisms=mechanism, host_costs=slow)
    plain = netfold.ask("alexnet", 4, "10gbit", mechanisms=mechanism)
    assert found.rows[0].limited_by == "the hosts' cores" != plain.rows[0].limited_by
    assert found.rows[0].iteration_ms > 3 * plain.rows[0].iteration_ms


def test_a_ring_goes_at_the_rate_of_tcp_and_sums(tmp_path: Path) -> None:
    """Half of what a host receives it adds: of 2 GB/s and half of 2 GB/s, 1 / (1 / 2 + 1 / 4) GB/s is left."""
    size, values = 64 * MIB, 2 * 3 / 4 * 64 * MIB
    costs = file_of(tmp_path, tcp_gb_s=2.0, add_gb_s=2.0)
    found = netfold.predict(None, "ring", 4, "1000gbit", size=str(size), host_costs=costs)
    assert found.iteration_s == pytest.approx(values * (1 / 2e9 + 1 / 4e9), rel=0.02)


def test_the_slot_protocol_goes_at_the_rate_of_all_lanes(tmp_path: Path) -> None:
    """A core packs and unpacks at 2 GB/s each, and has a million packets of 1,024 bytes a second."""
    size = 64 * MIB
    costs = file_of(tmp_path, pack_gb_s=2.0, unpack_gb_s=2.0, packets_per_s=1e6)
    one_s = size * (2 / 2e9 + 1 / 1.024e9)
    for cores, lanes in ((1, 1), (None, 2), (4, 4), (64, 4)):
        found = netfold.predict(
            None, "inagg+mcast", 4, "1000gbit", size=str(size), host_costs=costs, cores=cores, slots=0
        )
        assert found.iteration_s == pytest.approx(one_s / lanes, rel=0.02)
    small = netfold.predict(
        None, "inagg+mcast", 4, "1000gbit", size=str(size), host_costs=costs, cores=1, slots=0, elements=32
    )
    assert small.iteration_s == pytest.approx(size * (2 / 2e9 + 1 / 1.28e8), rel=0.02)


def test_a_server_adds_what_it_receives(tmp_path: Path) -> None:
    """All but the first of four tensors are added; the workers add none."""
    size = 16 * MIB
    slow, fast = (HostRates(replace(FAST, tcp_gb_s=1.0, add_gb_s=rate), 1) for rate in (1.0, INFINITE))
    assert slow.of(find("ps"), 4, size, 1024) == pytest.approx((8e9, 8e9 / 1.75))
    assert fast.of(find("ps"), 4, size, 1024) == pytest.approx((8e9, 8e9))
    # Multicast packets and TCP: the slower.
    packets = HostRates(replace(FAST, tcp_gb_s=1.0, packets_per_s=5e5), 1)
    assert packets.of(find("mcast"), 4, size, 1000) == pytest.approx((4e9, 4e9))


def test_ask_names_the_costs_and_the_cores(tmp_path: Path) -> None:
    costs = file_of(tmp_path, tcp_gb_s=1.0)
    found = netfold.ask("lenet", 4, mechanisms="ring", host_costs=costs).assumptions
    assert found["host costs"]["source"] == f"{costs}: a CPU, 2026-01-01T00:00:00+00:00"
    assert "8 Gbit/s in TCP" in str(found["host costs"]["value"])
    assert found["cores"] == {"value": "2 for the slot protocol, one for TCP and sums", "source": f"as {costs} has"}
    given = netfold.ask("lenet", 4, mechanisms="ring", host_costs=str(costs), cores=3).assumptions
    assert given["cores"]["source"] == "--cores"
    without = netfold.ask("lenet", 4, mechanisms="ring").assumptions
    assert without["host costs"] == {"value": "none: hosts keep up with their links", "source": "assumed"}


def test_the_command_gives_the_number_of_the_api(tmp_path: Path) -> None:
    costs = file_of(tmp_path, tcp_gb_s=0.5)
    words = ["--model", "alexnet", "--workers", "8", "--mechanism", "ring", "--gpus-per-host", "2", "--json"]
    done = CliRunner().invoke(main, ["simulate", "run", *words, "--host-costs", str(costs)])
    of_api = netfold.predict("alexnet", "ring", 8, gpus_per_host=2, host_costs=costs)
    assert json.loads(done.stdout)["iteration_s"] == of_api.iteration_s
    answer = json.loads(CliRunner().invoke(main, ["ask", *words, "--host-costs", str(costs)]).stdout)
    assert answer["rows"][0]["iteration_ms"] == of_api.iteration_s * 1e3


def test_wrong_costs_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(HostlibError, match="cannot be read"):
        netfold.predict("lenet", "ring", host_costs=tmp_path / "none.json")
    with pytest.raises(SimulationError, match="--cores is of --host-costs"):
        netfold.predict("lenet", "ring", cores=2)
    with pytest.raises(SimulationError, match="--cores must be at least 1, not 0"):
        netfold.predict("lenet", "ring", cores=0, host_costs=file_of(tmp_path))


def test_what_hosts_let_through_is_as_sure_as_links(tmp_path: Path) -> None:
    def width(**options: object) -> float:
        row = netfold.ask(size="64MiB", workers=8, bandwidth="100gbit", mechanisms="ring", **options).rows[0]  # type: ignore[arg-type]
        return (row.high_ms - row.low_ms) / row.iteration_ms

    links = width()
    assert width(gpus_per_host=4, host_link="1gbit") == pytest.approx(links, rel=0.5)
    assert width(host_costs=file_of(tmp_path, tcp_gb_s=0.1)) == pytest.approx(links, rel=0.5)
