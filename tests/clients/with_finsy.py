"""finsy against a running switch; docs/clients.md says how to start one and what comes back.

Run: python tests/clients/with_finsy.py ADDRESS:PORT, from the root of the repository. Port 1 of the switch is a wire from
127.0.0.1:9300 to 127.0.0.1:9301.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import finsy
from finsy.p4entity import P4ValueSetMember

ROOT = Path(__file__).resolve().parents[2]
WIRE, HOST = ("127.0.0.1", 9300), ("127.0.0.1", 9301)


def switch(name: str, folder: str = "tests/data") -> finsy.Switch:
    print(f"---- {name}")
    base = ROOT / folder
    options = finsy.SwitchOptions(p4info=base / f"{name}.p4info.txtpb", p4blob=base / f"{name}.json", device_id=1)
    return finsy.Switch("switch", sys.argv[1], options)


def entry(table: str, match: dict[str, Any], action: Any, **more: Any) -> finsy.P4TableEntry:
    return finsy.P4TableEntry(table, match=finsy.P4TableMatch(match), action=action, **more)


async def show(sw: finsy.Switch, *wanted: Any) -> None:
    async for found in sw.read(list(wanted)):
        print(found)


async def netfold() -> None:
    async with switch("netfold-v1model-64", "p4/build") as sw:
        print("version", sw.p4runtime_version, "primary", sw.is_primary)
        forward = finsy.P4TableAction("ipv4_forward", port=1, src_mac=1, dst_mac=2)
        group = finsy.P4MulticastGroupEntry(7, replicas=[1, 2])
        await sw.insert([entry("ipv4", {"dst_addr": "10.0.0.0/24"}, forward), group])
        await show(sw, finsy.P4TableEntry(), finsy.P4MulticastGroupEntry())
        await sw.delete_all()


async def resources() -> None:
    rates = finsy.P4MeterConfig(cir=1, cburst=2, pir=3, pburst=4)
    picks = [(weight, finsy.P4TableAction("pick", name=name)) for weight, name in ((2, 5), (1, 6))]
    async with switch("resources") as sw:
        wide = entry("wides", {"wide": "2001:db8::1"}, finsy.P4TableAction("set_wide", wide=1 << 127))
        measure = finsy.P4TableAction("measure", name=1)
        await sw.insert(
            [
                wide,
                entry("ranges", {"number": "5...9"}, finsy.P4TableAction("set_ranged", name=1), priority=3),
                entry("balanced", {"choice": 2}, finsy.P4IndirectAction(picks)),
                entry("metered", {"choice": 1}, measure, meter_config=rates),
            ]
        )
        await sw.modify([finsy.P4MeterEntry("cell_meters", index=1, config=rates)])
        await show(sw, finsy.P4TableEntry(), finsy.P4MeterEntry("cell_meters"), finsy.P4CounterEntry("cell_counters"))
        try:
            await sw.insert([wide])
        except finsy.P4ClientError as refused:
            print("again:", next(iter(refused.details.values())).message)
        await sw.delete_all()
        members = [
            finsy.P4ActionProfileMember("ways", member_id=n, action=finsy.P4TableAction("pick", name=n)) for n in (1, 2)
        ]
        weights = [finsy.P4Member(n, weight=n) for n in (1, 2)]
        await sw.insert(members)
        await sw.insert([finsy.P4ActionProfileGroup("ways", group_id=1, max_size=4, members=weights)])
        await sw.insert([entry("balanced", {"choice": 2}, finsy.P4IndirectAction(group_id=1))])
        await show(sw, finsy.P4ActionProfileMember(), finsy.P4ActionProfileGroup(), finsy.P4TableEntry("balanced"))
        await sw.delete_all()


async def first(found: AsyncIterator[Any]) -> Any:
    async for each in found:
        print(each)
        return each


async def control() -> None:
    host = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    host.bind(HOST)
    host.setblocking(False)
    async with switch("control") as sw:
        await sw.insert(
            [
                entry("destinations", {"dst_addr": "02:00:00:00:00:02"}, finsy.P4TableAction("punt", reason=42)),
                entry(
                    "sources",
                    {"src_addr": "02:00:00:00:00:09"},
                    finsy.P4TableAction("NoAction"),
                    idle_timeout_ns=400 * 10**6,
                ),
                finsy.P4CloneSessionEntry(5, replicas=[1], packet_length_bytes=60),
                finsy.P4DigestEntry("learned_t", max_list_size=1, ack_timeout_ns=10**9),
            ]
        )
        await sw.modify([finsy.P4ValueSetEntry("mirrored_types", members=[P4ValueSetMember(0x86DD)])])
        await show(sw, finsy.P4CloneSessionEntry(), finsy.P4DigestEntry())
        waiting = [sw.read_packets(), sw.read_digests("learned_t"), sw.read_idle_timeouts()]
        tasks = [asyncio.create_task(first(each)) for each in waiting]
        await asyncio.sleep(0.1)
        host.sendto(bytes.fromhex("0200000000020200000000010800") + b"hello", WIRE)
        _, digest, _ = await asyncio.wait_for(asyncio.gather(*tasks), 5)
        await sw.write([finsy.P4DigestListAck("learned_t", digest.list_id)])
        await sw.write([finsy.P4PacketOut(bytes(12) + b"\x08\x00out", egress_port=1, pad=0)])
        loop = asyncio.get_running_loop()
        print("left by port 1:", await asyncio.wait_for(loop.sock_recv(host, 2000), 5))
        await sw.delete_all()
    host.close()


async def main() -> None:
    for part in (netfold, resources, control):
        await part()


asyncio.run(main())
