"""What a worker sent again, as a share of what its link carried."""

from __future__ import annotations

import pytest

from emulation.experiments.packet_counts import PacketCounts

ENGINE = {"packets_sent": 1000, "packets_received": 900, "retransmits": 30, "duplicates": 5}


def test_an_engine_has_counted_them() -> None:
    assert PacketCounts.of(ENGINE, 0) - PacketCounts(400, 300, 10) == PacketCounts(600, 600, 20)


@pytest.mark.parametrize(
    ("mechanism", "busier"),
    [("ring", 1000), ("inagg+mcast", 1000), ("ralp/inagg+mcast", 1000), ("mcast", 0), ("ring+mcast", 0)],
)
def test_asking_for_a_chunk_is_not_sending_it_again(mechanism: str, busier: int) -> None:
    assert PacketCounts.of(ENGINE, 0).busier(mechanism) == busier
    assert PacketCounts(10, 0, 0).busier("ring") == PacketCounts(0, 10, 0).busier("ring") == 10
