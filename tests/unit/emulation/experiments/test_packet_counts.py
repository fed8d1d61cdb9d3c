"""What a worker sent again, as a share of what its link carried."""

from __future__ import annotations

from emulation.experiments.packet_counts import PacketCounts

ENGINE = {"packets_sent": 1000, "packets_received": 900, "retransmits": 30, "duplicates": 5}


def test_an_engine_has_counted_them() -> None:
    counted = PacketCounts.of(ENGINE, 0)
    assert counted - PacketCounts(400, 300, 10, counted.marked) == PacketCounts(600, 600, 20)


def test_asking_for_a_chunk_is_not_sending_it_again() -> None:
    assert PacketCounts.of(ENGINE, 0).busier(multicast=False) == 1000
    assert PacketCounts.of(ENGINE, 0).busier(multicast=True) == 0
    assert PacketCounts(10, 0, 0).busier(False) == PacketCounts(0, 10, 0).busier(False) == 10
