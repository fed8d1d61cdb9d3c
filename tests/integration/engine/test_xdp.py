"""The packet engine over AF_XDP: on a veth pair, where the driver runs the program, and on loopback; and its refusals."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from hostlib._engine import Engine, Multicaster, Reflector, Scatter, Server
from hostlib.system.network_links import set_up, with_tables
from hostlib.system.network_namespace import inside, namespace
from tests.checks import engine_checks
from tests.iproute import ip

ROOT = Path(__file__).resolve().parents[3]
HERE, THERE, PREFIX_BITS, MTU = "10.0.0.1", "10.0.0.2", 24, 9000
SOON_S = 20.0
Returned = TypeVar("Returned")

# A process that has the queue, and one that has it until it is killed.
CONFIGURED = f"""
import os
import time
from hostlib._engine import Engine
from tests.checks import engine_checks
engine = Engine("{HERE}")
engine.configure("{THERE}", 9, 1, 1, 0, 1, [(0, 8)], 64, engine_checks(1, 64))
"""
HOLDER = f"""{CONFIGURED}
print("it has the queue", flush=True)
time.sleep(600)
"""
# A child that its parent's queue is no good for.
FORKED = f"""{CONFIGURED}
if os.fork() == 0:
    try:
        Engine("{HERE}").configure("{THERE}", 9, 1, 1, 0, 1, [(0, 8)], 64, engine_checks(1, 64))
    except OSError as error:
        print(error, flush=True)
    os._exit(0)
print(os.wait()[1], flush=True)
"""
# What a user without rights is told. It loses them when all is loaded, which is in root's folders.
WITHOUT_RIGHTS = """
import os
from hostlib._engine import Engine
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
try:
    Engine("127.0.0.1")
except OSError as error:
    print(error)
"""


@dataclass(frozen=True, slots=True)
class Cable:
    """A veth pair between two namespaces; `here` has the interface rank, `there` the interface other."""

    here: str
    there: str

    def at_rank(self, do: Callable[[], Returned]) -> Returned:
        return inside(self.here, do)

    def reflector(self) -> Reflector:
        return inside(self.there, lambda: Reflector(THERE))

    def engine(self, port: int, elements: int = 256) -> Engine:
        def configured() -> Engine:
            engine = Engine(HERE)
            engine.configure(THERE, port, 1, 1, 0, 1, [(0, 128)], elements, engine_checks(1, elements))
            return engine

        return self.at_rank(configured)

    def datagrams(self) -> tuple[int, int]:
        """That the kernel's sockets of `here` have received and sent."""
        lines = self.at_rank(lambda: Path("/proc/thread-self/net/snmp").read_text()).splitlines()
        names, counts = (line.split() for line in lines if line.startswith("Udp:"))
        counted = dict(zip(names[1:], map(int, counts[1:]), strict=True))
        return counted["InDatagrams"], counted["OutDatagrams"]

    def has_program(self) -> bool:
        shown = subprocess.run(["ip", "-n", self.here, "link", "show", "rank"], capture_output=True, text=True)
        return "prog/xdp" in shown.stdout


def queues(count: int) -> tuple[str, ...]:
    return "numtxqueues", str(count), "numrxqueues", str(count)


@pytest.fixture
def cable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cable]:
    monkeypatch.setenv("NETFOLD_PATH", "xdp")
    monkeypatch.delenv("NETFOLD_XDP_QUEUE", raising=False)
    with namespace("veth") as here, namespace("veth") as there:
        # What the other end sends comes on the first queue of both, as it has one itself.
        rank, other = ("mtu", str(MTU), *queues(2)), ("mtu", str(MTU), *queues(1))
        ip("-n", here, "link", "add", "rank", *rank, "type", "veth", "peer", "other", *other, "netns", there)
        with_tables(here, lambda kernel: set_up(kernel, "rank", HERE, PREFIX_BITS))
        with_tables(there, lambda kernel: set_up(kernel, "other", THERE, PREFIX_BITS))
        yield Cable(here, there)
        gc.collect()


def require_sums(engine: Engine, elements: int) -> None:
    """Sums of one rank are what it gave."""
    given = np.arange(300 * elements + 1, dtype=np.int32)
    summed = given.copy()
    engine.allreduce(summed, False, SOON_S)
    assert np.array_equal(summed, given)


def await_true(what: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.xdp
@pytest.mark.parametrize("elements", [64, 256, 1024, 2048])
def test_sums_go_past_the_kernels_sockets(cable: Cable, elements: int) -> None:
    reflector = cable.reflector()
    engine = cable.engine(reflector.port, elements)

    def all_went_past() -> bool:
        before, sent = cable.datagrams(), engine.stats()["packets_sent"]
        require_sums(engine, elements)
        assert engine.stats()["packets_sent"] >= sent + 300
        return cable.datagrams() == before

    await_true(all_went_past)  # Packets go by UDP until the neighbour's MAC is known, and one once in a while later.
    shown = subprocess.run(["ip", "-n", cable.here, "link", "show", "rank"], capture_output=True, text=True).stdout
    assert "xdp" in shown and "xdpgeneric" not in shown, "the driver runs it"
    engine.halt()


@pytest.mark.xdp
def test_engines_share_a_queue_and_come_and_go(cable: Cable) -> None:
    reflector = cable.reflector()
    kept = cable.engine(reflector.port)
    for _ in range(100):
        require_sums(kept, 256)
        other = cable.engine(reflector.port)
        require_sums(other, 256)
        del other
    assert cable.has_program()
    del kept
    assert not cable.has_program()


@pytest.mark.xdp
def test_what_comes_on_another_queue_is_not_lost(cable: Cable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_XDP_QUEUE", "1")
    reflector = cable.reflector()
    engine = cable.engine(reflector.port)
    require_sums(engine, 256)
    assert cable.datagrams()[0] >= 300


@pytest.mark.xdp
def test_a_neighbour_with_another_mac_is_found_again(cable: Cable) -> None:
    reflector = cable.reflector()
    engine = cable.engine(reflector.port)
    require_sums(engine, 256)
    with_tables(cable.there, lambda kernel: set_up(kernel, "other", THERE, PREFIX_BITS, "02:00:00:00:00:42"))
    ip("-n", cable.here, "neigh", "flush", "dev", "rank")
    require_sums(engine, 256)


@pytest.mark.xdp
def test_what_is_too_long_for_the_link_goes_by_udp(cable: Cable) -> None:
    ip("-n", cable.here, "link", "set", "rank", "mtu", "1500")
    ip("-n", cable.there, "link", "set", "other", "mtu", "1500")
    reflector = cable.reflector()
    require_sums(cable.engine(reflector.port, 2048), 2048)


@pytest.mark.xdp
def test_the_engines_tests_pass_on_loopback() -> None:
    """A part of them; `make test` has all."""
    tests = ("test_echo.py", "test_engine_server.py", "test_multicaster.py")
    command = [sys.executable, "-m", "tests.xdp_namespace", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, *(f"tests/integration/engine/{name}" for name in tests)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "100%" in done.stdout and "not over AF_XDP" not in done.stdout


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Engine, Server, Multicaster, partial(Scatter, rank=0, world_size=2)])
def test_a_path_that_there_is_not_is_refused(kind: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_PATH", "dpdk")
    with pytest.raises(ValueError, match=r"^NETFOLD_PATH=dpdk: it is udp or xdp$"):
        kind("127.0.0.1")


def test_who_lacks_rights_is_told_which() -> None:
    environment = os.environ | {"NETFOLD_PATH": "xdp"}
    command = [sys.executable, "-c", WITHOUT_RIGHTS]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert "this process lacks CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF" in done.stdout, done.stderr
    assert "NETFOLD_PATH=udp needs none" in done.stdout and done.stdout.count("\n") == 1


@pytest.mark.xdp
@pytest.mark.parametrize("queue", ["first", "-1", "", "99999"])
def test_a_queue_is_a_number(cable: Cable, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_XDP_QUEUE", queue)
    with pytest.raises(ValueError, match=f"^NETFOLD_XDP_QUEUE={queue}: it is a queue's number, 0 to 9999$"):
        cable.engine(9)


@pytest.mark.xdp
def test_a_queue_that_there_is_not_is_refused(cable: Cable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_XDP_QUEUE", "7")
    with pytest.raises(OSError, match=r"there is no queue 7 of rank \(NETFOLD_XDP_QUEUE\).*NETFOLD_PATH=udp"):
        cable.engine(9)
    assert not cable.has_program()


@pytest.mark.xdp
def test_an_interface_that_is_shaped_is_refused(cable: Cable) -> None:
    shaped = ("tbf", "rate", "1gbit", "burst", "100k", "limit", "1m")
    tc = ["tc", "-n", cable.here, "qdisc", "replace", "dev", "rank", "root"]
    subprocess.run([*tc, *shaped], check=True)
    with pytest.raises(OSError, match=r"rank has a queue of the kind tbf.*it takes noqueue, mq.*NETFOLD_PATH=udp"):
        cable.engine(9)
    subprocess.run(["tc", "-n", cable.here, "qdisc", "del", "dev", "rank", "root"], check=True)
    subprocess.run([*tc, "pfifo"], check=True)
    reflector = cable.reflector()
    require_sums(cable.engine(reflector.port), 256)


@pytest.mark.xdp
def test_a_queue_of_another_process_is_refused_and_free_when_that_is_killed(
    cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["ip", "netns", "exec", cable.here, sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and "it has the queue" in holder.stdout.readline()
            assert cable.has_program()
            with pytest.raises(OSError, match=r"another process has queue 0 of rank's AF_XDP.*NETFOLD_PATH=udp"):
                cable.engine(9)
            monkeypatch.setenv("NETFOLD_XDP_QUEUE", "1")
            with pytest.raises(OSError, match=r"rank has another XDP program.*NETFOLD_PATH=udp"):
                cable.engine(9)
        finally:
            holder.kill()
    await_true(lambda: not cable.has_program())
    monkeypatch.delenv("NETFOLD_XDP_QUEUE")
    reflector = cable.reflector()
    require_sums(cable.engine(reflector.port), 256)


@pytest.mark.xdp
def test_a_forked_process_is_another_one(cable: Cable) -> None:
    command = ["ip", "netns", "exec", cable.here, sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    child, status = done.stdout.splitlines()
    assert "another process has queue 0 of rank's AF_XDP" in child and status == "0"
