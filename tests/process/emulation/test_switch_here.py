"""The suite on hosts of their own, with a switch on the machine that starts it: two namespaces and a third one on a bridge."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hostlib.system.network_namespace import namespace
from tests.conftest import ROOT
from tests.iproute import ip

HERE, HOSTS = "10.77.0.254", ("10.77.0.1", "10.77.0.2")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[str]:
    """The namespace of the launcher, whose `launcher` enters the hosts', which `hosts` lists."""
    with ExitStack() as stack:
        space = stack.enter_context(namespace("here"))
        ip("-n", space, "link", "add", "bridge", "type", "bridge")
        ip("-n", space, "address", "add", f"{HERE}/24", "dev", "bridge")
        ip("-n", space, "link", "set", "bridge", "up")
        cases = []
        for number, address in enumerate(HOSTS):
            host = stack.enter_context(namespace("host", str(number)))
            ip("-n", space, "link", "add", f"s{number}", "type", "veth", "peer", "name", "eth", "netns", host)
            ip("-n", space, "link", "set", f"s{number}", "master", "bridge", "up")
            ip("-n", host, "address", "add", f"{address}/24", "dev", "eth")
            ip("-n", host, "link", "set", "eth", "up")
            cases.append(f'{address}) exec nsenter --net=/run/netns/{host} sh -c "$2";;')
        launcher = tmp_path / "launcher"
        launcher.write_text("#!/bin/sh\ncase $1 in\n" + "\n".join(cases) + "\nesac\n")
        launcher.chmod(0o755)
        (tmp_path / "hosts").write_text("".join(f"{address} interface=eth\n" for address in HOSTS))
        yield space


def run(here: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        "nsenter", f"--net=/run/netns/{here}", sys.executable, "-m", "netfold", "suite", "run",
        "--datasets", "mnist", "--networks", "mobilenet2", "--workers", "2", "--batch", "2", "--iterations", "1",
        "--hosts", str(folder / "hosts"), "--launcher", str(folder / "launcher"), "--output", str(folder / "out"), *words,
    ]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_needs_a_switch_trains_on_hosts(here: str, tmp_path: Path) -> None:
    words = ("--way", "train", "--frameworks", "ring,inagg+mcast,mcast", "--switch-at", HERE, "--json")
    done = run(here, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    rows = {row["framework"]: row for row in json.loads(done.stdout)}
    # mcast's server is on a host of its own.
    assert rows.pop("mcast")["failed"].endswith("needs 3 hosts, with its servers; there are 2")
    assert all(row["failed"] is None and row["iteration_ms"] > 0 for row in rows.values()), rows
    left = subprocess.run(["ip", "netns", "pids", here], capture_output=True, text=True, timeout=20)
    assert left.stdout == ""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_switch_sums_what_hosts_send_it(here: str, tmp_path: Path) -> None:
    """A host's link carries its gradients once, and the sum."""
    words = ("--way", "replay", "--frameworks", "sequential,inagg+mcast", "--switch-at", HERE, "--json")
    done = run(here, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    found = {}
    for path in (tmp_path / "out").glob("*/results.json"):
        found |= {row["mechanism"]: row for row in json.loads(path.read_text())}
    gradients = 4 * json.loads(done.stdout)[1]["parameters"]
    for link in found["inagg+mcast"]["bytes_per_node"].values():
        assert gradients < link["sent"] < 1.5 * gradients and gradients < link["received"] < 1.5 * gradients
    assert 0 < found["inagg+mcast"]["cpu"]["switch"] < 2 and "switch" not in found["ring"]["cpu"]


@pytest.mark.root
def test_an_address_of_another_machine_is_refused(here: str, tmp_path: Path) -> None:
    done = run(here, tmp_path, "--way", "train", "--frameworks", "inagg+mcast", "--switch-at", "10.77.0.9", "--json")
    (row,) = json.loads(done.stdout)
    assert "cannot bind udp 10.77.0.9:0: Cannot assign requested address" in row["failed"] and "\n" not in row["failed"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--switch-at", "127.0.0.1"), "--switch-at are of real hosts: they need --hosts"),
        (("--hosts", "HOSTS", "--switch-at", "here"), "--switch-at 'here' is not an IPv4 address of this machine"),
        (("--hosts", "HOSTS", "--switch-at", "127.0.0.1", "--controller", "http://127.0.0.1:1"), "give one"),
    ],
)
def test_an_option_that_means_nothing_is_refused(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1\n")
    words = tuple(str(hosts) if word == "HOSTS" else word for word in words)
    command = [sys.executable, "-m", "netfold", "suite", "run", "--way", "train", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and says in " ".join(done.stderr.split())
