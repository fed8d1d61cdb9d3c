"""p4runtime-shell as a library against a running switch; docs/clients.md says how to start one and what comes back.

Run: python tests/clients/with_shell.py ADDRESS:PORT, from the root of the repository. Port 1 of the switch is a wire from
127.0.0.1:9300 to 127.0.0.1:9301.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import p4runtime_sh.shell as sh

ROOT = Path(__file__).resolve().parents[2]
WIRE, HOST = ("127.0.0.1", 9300), ("127.0.0.1", 9301)


def push(name: str, folder: str = "tests/data") -> None:
    files = [str(ROOT / folder / f"{name}.{kind}") for kind in ("p4info.txtpb", "json")]
    sh.setup(device_id=1, grpc_addr=sys.argv[1], election_id=(0, 1), config=sh.FwdPipeConfig(*files))
    print(f"---- {name}")


def entry(table: str, action: str | None = None, priority: int = 0, **match: str) -> sh.TableEntry:
    made = sh.TableEntry(table)(action=action) if action else sh.TableEntry(table)
    if priority:
        made.priority = priority
    names = {field.name.rpartition(".")[2]: field.name for field in sh.context.get_table(table).match_fields}
    for name, value in match.items():
        made.match[names[name]] = value
    return made


def show(wanted: sh.TableEntry) -> None:
    for found in wanted.read():
        print(found)


def netfold() -> None:
    push("netfold-v1model-64", "p4/build")
    route = entry("ipv4", "ipv4_forward", dst_addr="10.0.0.0/24")
    route.action["port"], route.action["src_mac"], route.action["dst_mac"] = (
        "1",
        "02:00:00:00:00:01",
        "02:00:00:00:00:02",
    )
    route.insert()
    show(sh.TableEntry("ipv4"))
    group = sh.MulticastGroupEntry(7)
    group.add(1, 1).add(2, 1)
    group.insert()
    sh.MulticastGroupEntry(7).read(print)
    sh.teardown()


def tables() -> None:
    push("tables")
    verdict = entry("verdicts", "verdict", 5, src_addr="10.0.0.0&&&255.0.0.0", ingress_port="1")
    verdict.action["name"] = "9"
    verdict.insert()
    show(sh.TableEntry("verdicts"))
    try:
        verdict.insert()
    except Exception as refused:
        print(refused)
    sh.teardown()


def resources() -> None:
    push("resources")
    for number in (1, 2):
        member = sh.ActionProfileMember("ways")(member_id=number, action="pick")
        member.action["name"] = str(number)
        member.insert()
    group = sh.ActionProfileGroup("ways")(group_id=1)
    group.max_size = 4
    group.add(1, 1)
    group.add(2, 2)
    group.insert()
    show(sh.ActionProfileGroup("ways"))
    balanced = entry("balanced", choice="1")
    balanced.group_id = 1
    balanced.insert()
    show(sh.TableEntry("balanced"))
    meter = sh.MeterEntry("cell_meters")
    meter.index, meter.cir, meter.cburst, meter.pir, meter.pburst = 1, 1, 2, 3, 4
    meter.modify()
    ranged = entry("ranges", "set_ranged", 3, number="5..9")
    ranged.action["name"] = "1"
    ranged.insert()
    show(sh.TableEntry("ranges"))
    wide = entry("wides", "set_wide", wide="2001:db8::1")
    wide.action["wide"] = "0xfedc0000000000000000000000000001"
    wide.insert()
    show(sh.TableEntry("wides"))
    sh.teardown()


def control() -> None:
    push("control")
    punt = entry("destinations", "punt", dst_addr="02:00:00:00:00:02")
    punt.action["reason"] = "42"
    punt.insert()
    digest = sh.DigestEntry("learned_t")
    digest.max_list_size, digest.ack_timeout_ns = 1, 10**9
    digest.insert()
    known = entry("sources", "NoAction", src_addr="02:00:00:00:00:09")
    known.idle_timeout_ns = 400 * 10**6
    known.insert()
    clone = sh.CloneSessionEntry(5)
    clone.add(1, 1)
    clone.packet_length_bytes = 60
    clone.insert()
    print(next(iter(sh.IdleTimeoutNotification().sniff(timeout=1))))
    packets, digests = sh.PacketIn(), sh.DigestList()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        host.bind(HOST)
        host.settimeout(5)
        host.sendto(bytes.fromhex("0200000000020200000000010800") + b"hello", WIRE)
        print(next(iter(packets.sniff(timeout=2))))
        print(next(iter(digests.sniff(timeout=2))))
        sh.PacketOut(bytes(12) + b"\x08\x00out", egress_port="1", pad="0").send()
        print("left by port 1:", host.recv(2000))
    sh.teardown()


for part in (netfold, tables, resources, control):
    part()
