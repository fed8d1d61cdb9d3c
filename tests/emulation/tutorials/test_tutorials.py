"""p4lang/tutorials, unmodified but for the switch's name: each exercise's solution does what its README says.

Nothing is fetched: NETFOLD_TUTORIALS=/path/to/tutorials names a checkout, and p4c-bm2-ss must be on PATH.
docs/conformance.md has the results.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

CHECKOUT = os.environ.get("NETFOLD_TUTORIALS", "")
PROGRAMS = ("p4c-bm2-ss", "make", "sudo", "ping", "iperf", "mn")
LACKING = [name for name in PROGRAMS if shutil.which(name) is None]
SWITCH = os.environ.get("NETFOLD_TUTORIALS_SWITCH", "netfold-simple-switch-grpc")  # simple_switch_grpc, to compare
PATIENCE_S = 110

pytestmark = [
    pytest.mark.root,
    pytest.mark.mininet,
    pytest.mark.timeout(PATIENCE_S + 10),
    pytest.mark.skipif(not CHECKOUT, reason="needs a checkout of p4lang/tutorials: NETFOLD_TUTORIALS=/path/to/it"),
    pytest.mark.skipif(bool(LACKING), reason=f"needs {', '.join(LACKING)}: docs/p4c.md, and Debian's packages"),
]


@dataclass(frozen=True)
class Exercise:
    """What is typed at Mininet's prompt, what must be printed, and what must not be."""

    name: str
    typed: str
    seen: tuple[str, ...]
    unseen: tuple[str, ...] = ()


SENDING = """
h2 ./receive.py > h2.log 2>&1 &
h22 iperf -s -u > /dev/null 2>&1 &
h1 sleep 3
h1 ./send.py 10.0.2.2 "P4 is cool" 12 > h1.log 2>&1 &
h11 sleep 3
h11 iperf -c 10.0.2.22 -t 6 -u > h11.log 2>&1
h1 sleep 5
sh cat h2.log
"""
CONTROLLED = """
h1 ping -c 2 -W 1 h2
sh timeout 15 python3 mycontroller.py > controller.log 2>&1 &
h1 sleep 6
h1 ping -c 3 -W 2 h2
h1 sleep 5
sh cat controller.log
"""

EXERCISES = (
    Exercise("basic", "pingall", (r"0% dropped \(12/12 received\)",)),
    Exercise(
        "basic_tunnel",
        """
h2 ./receive.py > h2.log 2>&1 &
h1 sleep 3
h1 ./send.py 10.0.2.2 "P4 is cool" > /dev/null
h1 ./send.py 10.0.3.3 "tunnelled" --dst_id 2 > /dev/null
h1 sleep 2
sh cat h2.log
""",
        (r"load *= b?'P4 is cool'", r"dst_id *= 2", r"dst *= 10\.0\.3\.3", r"load *= b?'tunnelled'"),
    ),
    Exercise("p4runtime", CONTROLLED, (r"100% packet loss", r"3 received, 0% packet loss", r"s2.*[1-9]\d* packets")),
    Exercise("ecn", SENDING, (r"tos *= 0x1\b", r"tos *= 0x3\b")),
    Exercise("mri", SENDING, (r"swid *= 1\b", r"swid *= 2\b", r"qdepth *= 0\b", r"qdepth *= [1-9]")),
    Exercise(
        "source_routing",
        r"""
h2 ./receive.py > h2.log 2>&1 &
h1 sleep 3
h1 printf "2 3 2 2 1\nq\n" | ./send.py 10.0.2.2 > /dev/null
h1 sleep 2
sh cat h2.log
""",
        (r"got a packet", r"ttl *= 59"),
    ),
    Exercise(
        "calc", r'h1 printf "1+1\n7&3\n9-4\nquit\n" | python3 calc.py', (r"> 1\+1\n2\n", r"7&3\n3\n", r"9-4\n5\n")
    ),
    Exercise(
        "load_balance",
        """
h2 ./receive.py > h2.log 2>&1 &
h3 ./receive.py > h3.log 2>&1 &
h1 sleep 3
h1 for i in 1 2 3 4 5 6 7 8 9 10 11 12; do ./send.py 10.0.0.1 "P4 is cool" > /dev/null; done
h1 sleep 2
sh grep -c "got a packet" h2.log h3.log
sh cat h2.log h3.log | grep -c "got a packet"
""",
        (r"h2\.log:[1-9]", r"h3\.log:[1-9]", r"\n(mininet> )?12\n"),
    ),
    Exercise(
        "qos",
        """
h2 ./receive.py > h2.log 2>&1 &
h1 sleep 3
h1 ./send.py --p=UDP --des=10.0.2.2 --m="P4 is cool" --dur=2 > /dev/null
h1 ./send.py --p=TCP --des=10.0.2.2 --m="P4 is cool" --dur=2 > /dev/null
h1 sleep 2
sh cat h2.log
""",
        (r"tos *= 0xb9[\s\S]*proto *= udp", r"tos *= 0xb1[\s\S]*proto *= tcp"),
    ),
    # The exercise's multicast group leaves out port 4: nobody's ARP request reaches h4.
    Exercise("multicast", "pingall", (r"h4 -> h1 h2 h3", r"25% dropped \(9/12 received\)")),
    Exercise(
        "firewall",
        """
h3 iperf -s > h3.log 2>&1 &
h1 iperf -s > h1.log 2>&1 &
h2 iperf -s > h2.log 2>&1 &
h1 sleep 1
h1 iperf -c 10.0.2.2 -t 1
h1 iperf -c 10.0.3.3 -t 1
h3 timeout -s KILL 6 iperf -c 10.0.1.1 -t 1; echo blocked $?
""",
        (r"10\.0\.2\.2[\s\S]*bits/sec[\s\S]*10\.0\.3\.3[\s\S]*bits/sec", r"blocked (137|1)\b"),
        (r"connected with 10\.0\.1\.1 port 5001[\s\S]*bits/sec",),
    ),
    Exercise(
        "link_monitor",
        """
h4 iperf -s > h4.log 2>&1 &
h1 ./receive.py > h1.log 2>&1 &
h1 ./send.py > /dev/null 2>&1 &
h1 sleep 4
h1 iperf -c 10.0.4.4 -t 6
h1 sleep 1
sh cat h1.log
""",
        (r"Switch 1 - Port [34]: 0\.\d", r"Switch 1 - Port [34]: [1-9]\d*\.\d+ Mbps"),
    ),
    # What the controller sends on has the first hop's MAC address, which no host takes: one request, and one reply, are
    # lost. Had the switches not sent on the packets that the controller gave them, the third ping would be, too.
    Exercise("flowcache", CONTROLLED, (r"icmp_seq=3 ttl=62", r"egressPktInCounter 2: 1 packets", r"Deleted .* on s1")),
)


@pytest.mark.parametrize("exercise", EXERCISES, ids=[exercise.name for exercise in EXERCISES])
def test_exercise(exercise: Exercise, tmp_path: Path) -> None:
    checkout, here = Path(CHECKOUT), tmp_path / "exercises" / exercise.name
    shutil.copytree(checkout / "utils", tmp_path / "utils")
    shutil.copytree(checkout / "exercises" / exercise.name, here)
    for solution in (here / "solution").iterdir():
        shutil.copy(solution, here)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "P4_EXTRA_SUDO_OPTS": f"PYTHONUNBUFFERED=1 PYTHONPATH={Path(__file__).parent / 'pi'}",
    }
    make = subprocess.Popen(
        ["make", "run", f"BMV2_SWITCH_EXE={SWITCH}"],
        cwd=here,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = make.communicate(f"{exercise.typed.strip()}\nexit\n", PATIENCE_S)
    finally:
        _end(make)
    assert make.returncode == 0, printed
    printed = printed.partition("Welcome to the BMV2 Mininet CLI!")[2]
    assert [pattern for pattern in exercise.seen if not re.search(pattern, printed)] == [], printed
    assert [pattern for pattern in exercise.unseen if re.search(pattern, printed)] == [], printed


def _end(make: subprocess.Popen[str]) -> None:
    """End it and what it started. Their network interfaces go with their namespaces."""
    if make.poll() is None:
        for process in reversed(psutil.Process(make.pid).children(recursive=True)):
            process.kill()
        make.kill()
        make.wait()
