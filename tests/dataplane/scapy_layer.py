"""The aggregation header for scapy, made from hostlib/protocol/constants.py. For tests and for looking at captures.

>>> from scapy.layers.inet import IP, UDP
>>> packet = IP() / UDP() / Netfold(job=7, rank=1, element_count=2, elements=[5, -5])
>>> packet[UDP].dport
4793
>>> Netfold(bytes(packet[Netfold])).elements
[5, -5]
"""

from __future__ import annotations

from typing import ClassVar

from scapy.fields import ByteField, FieldListField, IntField, ShortField, SignedIntField
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_bottom_up, bind_layers

from hostlib.protocol import constants

_FIELDS = {"B": ByteField, "H": ShortField, "I": IntField}
_DEFAULTS = {
    "magic": constants.NETFOLD_MAGIC,
    "version": constants.NETFOLD_VERSION,
    "operation": constants.OPERATION_CONTRIBUTION,
}


class Netfold(Packet):  # type: ignore[misc]
    """Header and vector."""

    name = "netfold"
    fields_desc: ClassVar = [
        *(
            _FIELDS[code](name, _DEFAULTS.get(name, 0))
            for code, name in zip(constants.HEADER_FORMAT.lstrip(">"), constants.HEADER_FIELDS, strict=True)
        ),
        FieldListField(
            "elements",
            [],
            SignedIntField("element", 0),
            count_from=lambda packet: packet.element_count,
            max_count=0xFFFF,  # scapy's own limit is 100
        ),
    ]


bind_layers(UDP, Netfold, dport=constants.NETFOLD_UDP_PORT)
bind_bottom_up(UDP, Netfold, sport=constants.NETFOLD_UDP_PORT)
