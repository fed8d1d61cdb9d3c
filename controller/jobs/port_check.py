"""Whether a member of a job is at the switch port where it was placed: proved by an echo of the switch.

Each UDP port of a member has an entry on its switch that sends one kind of packet back to where it came from, if it came
in by the right port from the right address and UDP port. The switch writes a number into it that nobody else knows. So
who says that number has sent a packet into that port, and has got it out of that port (docs/adr/0021).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from controller.errors import RequestError
from controller.jobs.job import Job, Rank, member_name

# The rank asks several times a second, and says what came back once a second.
SILENT_S = 3.0  # from when it first says that nothing comes back until it is believed


def port_numbers(job: Job, member: Rank) -> list[int]:
    """The number that the switch writes into the echo of each of a member's UDP ports, below 2^16.

    As with its token (rank_token.py), nothing but the job's key is kept; a controller that takes over knows them.
    """

    def number(udp_port: int) -> int:
        said = f"port/{job.epoch}/{member.rank}/{udp_port}"
        return int.from_bytes(hmac.new(bytes.fromhex(job.key), said.encode(), hashlib.sha256).digest()[:2], "big")

    return [number(udp_port) for udp_port in member.udp_ports]


def judge_port(job: Job, member: Rank, echoes: Sequence[int | None], now: float, answers: bool) -> None:
    """Conclude from what came back to a member whether it is at its port; a port that is right stays right.

    Args:
        echoes: for each of its UDP ports the number that came back; None if nothing did.
        now: seconds, of one clock.
        answers: whether its switch answers the controller; while it does not, its silence means nothing.

    Raises:
        RequestError: 422, not one for each UDP port.
    """
    if len(echoes) != len(member.udp_ports):
        who = f"{member_name(member.rank)} of job {job.name}"
        raise RequestError(422, f"{who} has {len(member.udp_ports)} UDP ports; it came with {len(echoes)} echoes")
    if job.state != "ready" or member.port == "right" or member.refuted:
        return
    if any(found not in (None, number) for found, number in zip(echoes, port_numbers(job, member), strict=True)):
        member.port, member.refuted = "silent", True  # One guess: a second one would be an attempt.
    elif None not in echoes:
        member.port = "right"
    elif not answers:
        member.silent_since = None
    elif member.silent_since is None:
        member.silent_since = now
    elif now - member.silent_since >= SILENT_S:
        member.port = "silent"


def forget_port(member: Rank) -> None:
    """Begin again: the member has other UDP ports, or another place."""
    member.port, member.silent_since, member.refuted = "unchecked", None, False


def port_text(job: Job, member: Rank) -> str:
    """What became of the check, in a sentence."""
    who = f"{member_name(member.rank)} of job {job.name}"
    where = f"port {member.switch_port} of {member.switch}"
    if member.refuted:
        return f"{who} claims to be at {where}, but the switch has not sent what it claims to have received"
    if member.port == "silent":
        there = f"{member.address}:{member.udp_ports[0]}"
        return (
            f"{who} is not at {where}, where the topology has it: nothing sent there reaches {there}, or comes from it"
        )
    return f"{who} is at {where}" + ("" if member.port == "right" else "; that was not checked")
