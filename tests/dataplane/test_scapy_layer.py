"""The scapy layer says what hostlib/protocol/header.py says."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from hostlib.protocol import constants
from hostlib.protocol.header import Header
from tests.dataplane import scapy_layer
from tests.dataplane.scapy_layer import Netfold

WIDTHS = dict(
    zip(constants.HEADER_FIELDS, (8 * {"B": 1, "H": 2, "I": 4}[c] for c in constants.HEADER_FORMAT[1:]), strict=True)
)
FIELDS = st.fixed_dictionaries({name: st.integers(0, 2**bits - 1) for name, bits in WIDTHS.items()})
ELEMENTS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8)


@given(FIELDS, ELEMENTS)
def test_the_bytes_are_those_of_the_wire(fields: dict[str, int], elements: list[int]) -> None:
    wire = Header(**fields).pack() + np.array(elements, ">i4").tobytes()
    assert bytes(Netfold(**fields, elements=elements)) == wire


@given(FIELDS, ELEMENTS)
def test_what_is_dissected_is_what_was_sent(fields: dict[str, int], elements: list[int]) -> None:
    fields["element_count"] = len(elements)
    got = Netfold(Header(**fields).pack() + np.array(elements, ">i4").tobytes() + b"tail")
    assert {name: getattr(got, name) for name in fields} == fields
    assert got.elements == elements
    assert bytes(got.payload) == b"tail"


@pytest.mark.parametrize("count", [0, 64, 256, 0xFFFF])
def test_a_vector_of_any_size(count: int) -> None:
    elements = list(range(-count // 2, -count // 2 + count))
    assert Netfold(bytes(Netfold(element_count=count, elements=elements))).elements == elements


def test_it_is_found_behind_the_protocols_port_in_both_directions() -> None:
    for ports in ({"dport": constants.NETFOLD_UDP_PORT}, {"sport": constants.NETFOLD_UDP_PORT}):
        packet = IP(bytes(IP() / UDP(**ports) / Raw(Header(job=7).pack())))
        assert packet[Netfold].job == 7


def test_its_own_example() -> None:
    assert doctest.testmod(scapy_layer) == doctest.TestResults(failed=0, attempted=4)
