"""Bytes of frames: as emulated links charge them, and as Ethernet carries them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hostlib.protocol.framing import EMULATED, LEGAL_ELEMENTS, PHYSICAL, ip_bytes
from hostlib.protocol.header import frame_bytes
from simulation.errors import SimulationError
from simulation.experiments.scenario import RUNTIME, Scenario
from simulation.models.workload_source import bare
from simulation.simulator.network import Network

MEGABYTE = 10**6


@pytest.mark.parametrize(
    ("elements", "emulated", "physical", "percent"),
    [(32, 202, 226, 57), (64, 330, 354, 72), (256, 1098, 1122, 91), (1024, 4170, 4194, 98), (2048, 8266, 8290, 99)],
)
def test_slot_protocol(elements: int, emulated: int, physical: int, percent: int) -> None:
    """By hand: 14 Ethernet, 20 IPv4, 8 UDP, 32 of the slot header; 8 preamble, 4 check sequence, 12 gap."""
    assert EMULATED.slot_frame(elements) == (4 * elements, emulated)
    assert PHYSICAL.slot_frame(elements) == (4 * elements, physical)
    assert round(100 * PHYSICAL.slot_efficiency(elements)) == percent  # docs/tofino.md
    assert EMULATED.slot_frame() == frame_bytes()


def test_tcp_with_timestamps() -> None:
    assert EMULATED.tcp_segment() == (1448, 1514) and PHYSICAL.tcp_segment() == (1448, 1538)
    assert replace(PHYSICAL, mtu=9000).tcp_segment() == (8948, 9038)
    assert EMULATED.acknowledgement() == 66 / 2 and PHYSICAL.acknowledgement() == 90 / 2
    assert PHYSICAL.wire_bytes(42) == 84, "the smallest frame, with preamble and gap"


def test_a_link_carries_what_frames_have() -> None:
    def seconds(mechanism: str, **semantics: object) -> float:
        how = replace(RUNTIME, slots=0, jitter=0.0, frames=False, **semantics)  # type: ignore[arg-type]
        return Scenario(bare(MEGABYTE), mechanism, 2, Network(1e9), how).play().outcomes[0].iteration_s

    for framing in (EMULATED, replace(PHYSICAL, mtu=9000), PHYSICAL):
        for elements in (each for each in LEGAL_ELEMENTS if ip_bytes(each) <= framing.mtu):
            payload, frame = framing.slot_frame(elements)
            found = seconds("inagg+mcast", framing=framing, elements=elements)
            assert found == pytest.approx(MEGABYTE * 8 / 1e9 * frame / payload, rel=1e-3)
        payload, frame = framing.tcp_segment()
        found = seconds("ring", framing=framing, turns=False)
        assert found == pytest.approx(MEGABYTE * 8 / 1e9 * (frame + framing.acknowledgement()) / payload, rel=1e-3)
    with pytest.raises(SimulationError, match="--elements must be one of 32, 64, 256, 1024, 2048, not 128"):
        replace(RUNTIME, elements=128)
    with pytest.raises(SimulationError, match=r"^--elements 2048 is above --mtu 1500: such packets have 8252 bytes$"):
        replace(RUNTIME, elements=2048)
    assert replace(RUNTIME, elements=2048, framing=replace(PHYSICAL, mtu=8252)).elements == 2048
