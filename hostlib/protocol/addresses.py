"""Addresses that netfold assigns: the fabric's, switches' and hosts'.

The ranges are locally administered (IEEE 802, bit 1 of the first byte) or private (RFC 1918). p4/ has none of them: a
program gets them from its controller.
"""

from __future__ import annotations

from ipaddress import IPv4Address

from hostlib.protocol.constants import NETFOLD_UDP_PORT

FABRIC_ADDRESS = "10.255.255.254"
CABLE_ADDRESS = "169.254.47.93"  # switches check their cables with packets from and to it; nobody else has it
SWITCH_MAC = 0x0200_0000_0001
_UDP_HOSTS, _LINK_HOSTS = 0x0200_0001_0000, 0x024E_4600_0000


def fabric_address(switch: int = 0) -> str:
    """IPv4 address of a switch of a tree, by its number; the root is 0."""
    return str(IPv4Address(FABRIC_ADDRESS) - switch)


def fabric_endpoint(switch: int = 0) -> str:
    """ADDRESS:PORT that hosts send to."""
    return f"{fabric_address(switch)}:{NETFOLD_UDP_PORT}"


def udp_host_mac(port: int) -> int:
    """The MAC address that the embedded switch's UDP port uses for its host in rebuilt headers."""
    return _UDP_HOSTS | port


def link_mac(number: int) -> int:
    """MAC address of the interface of host `number`, from 1, in a network that netfold makes."""
    return _LINK_HOSTS + number


def mac_text(mac: int) -> str:
    """Format a MAC address: 02:00:00:00:00:01."""
    return mac.to_bytes(6, "big").hex(":")
