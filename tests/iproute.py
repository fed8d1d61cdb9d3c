"""iproute2, for what tests change in namespaces: an eye on the network that is not the code's own."""

from __future__ import annotations

import subprocess

IP_S = 20


def ip(*arguments: str) -> None:
    """Run `ip`, which must succeed."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=IP_S)
