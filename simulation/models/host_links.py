"""Links between the GPUs of a host, by name."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.errors import QuantityError
from hostlib.text import units
from simulation.errors import SimulationError


@dataclass(frozen=True, slots=True)
class HostLink:
    """What a GPU has to the others of its host.

    Attributes:
        gb_s: in each direction, 10^9 bytes per second.
        source: where the rate is published, or the option.
    """

    name: str
    gb_s: float
    source: str


DEFAULT_HOST_LINK = "nvlink4"
HOST_LINKS: dict[str, HostLink] = {
    link.name: link
    for link in (
        HostLink("nvlink4", 450.0, "NVIDIA H100 data sheet: 900 GB/s in both directions together"),
        HostLink("nvlink3", 300.0, "NVIDIA A100 data sheet: 600 GB/s in both directions together"),
        HostLink("pcie5", 63.0, "PCI Express 5.0: 16 lanes of 32 GT/s, 128b/130b"),
        HostLink("pcie4", 31.5, "PCI Express 4.0: 16 lanes of 16 GT/s, 128b/130b"),
    )
}


def find_host_link(text: str) -> HostLink:
    """A link by name, or of a rate as `400gbit`.

    Raises:
        SimulationError: neither a known name nor a rate; the message lists the names.
    """
    if text.lower() in HOST_LINKS:
        return HOST_LINKS[text.lower()]
    try:
        return HostLink(text, units.bandwidth(text) / 8e9, "--host-link")
    except QuantityError:
        legal = ", ".join(HOST_LINKS)
        raise SimulationError(f"--host-link takes a rate such as 400gbit, or one of {legal}, not {text!r}") from None
