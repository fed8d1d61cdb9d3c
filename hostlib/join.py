"""A rank's place in a job of the controller: join, heartbeat, leave."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from hostlib.errors import JoinError

DEFAULT_CONTROLLER = "http://127.0.0.1:9339"
POLL_S = 0.05
HEARTBEAT_S = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """What the controller says of this rank's place; see docs/protocol.md for slots and epochs."""

    job_id: int
    epoch: int
    rank: int
    world_size: int
    first_slot: int
    slots: int
    elements: int
    fabric_address: str
    fabric_port: int
    switch: str
    switch_port: int

    @classmethod
    def told(cls, answer: dict[str, Any]) -> Place:
        fields = ("job_id", "epoch", "rank", "world_size", "elements", "switch", "switch_port")
        (pool,) = answer["pools"]
        fabric = answer["fabric"]
        return cls(
            **{name: answer[name] for name in fields},
            first_slot=pool["first_slot"],
            slots=pool["slots"],
            fabric_address=fabric["address"],
            fabric_port=fabric["port"],
        )


class FabricSession:
    """Membership of one rank in one job, kept alive by a thread. A dead controller is no reason to stop training."""

    def __init__(self, controller: str, job: str, rank: int, place: Place, position: Callable[[], int]) -> None:
        self.place = place
        self._url = f"{controller}/jobs/{quote(job, safe='')}/ranks/{rank}"
        self._position = position
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(f"{self._url}/heartbeat", json={"position": self._position()}, timeout=HEARTBEAT_S)

    def leave(self) -> None:
        """Give the place back, if the controller is there to take it."""
        self._ended.set()
        with contextlib.suppress(httpx.HTTPError):
            httpx.delete(self._url, timeout=HEARTBEAT_S)


def join(
    controller: str,
    job: str,
    rank: int,
    world_size: int,
    address: str,
    udp_port: int,
    deadline_s: float,
    position: Callable[[], int],
) -> FabricSession:
    """Join a job and wait until every rank has.

    Args:
        address, udp_port: where this rank's packets come from.
        position: how far in its stream the rank is, for heartbeats.

    Raises:
        JoinError: no controller answers, it refused, or the others did not come in time.
    """
    controller = controller.rstrip("/")
    url = f"{controller}/jobs/{quote(job, safe='')}/ranks/{rank}"
    give_up = time.monotonic() + deadline_s
    body = {"world_size": world_size, "address": address, "udp_ports": [udp_port]}
    with httpx.Client(timeout=max(1.0, min(deadline_s, 30.0))) as client:
        try:
            answer = _answer(client.post(url, json=body))
            while answer["state"] != "ready":
                if time.monotonic() > give_up:
                    client.delete(url)
                    raise JoinError(
                        f"rank {rank}: not all {world_size} ranks of job {job} joined within {deadline_s:.0f} s"
                    )
                time.sleep(POLL_S)
                answer = _answer(client.get(url))
        except (httpx.HTTPError, httpx.InvalidURL) as wrong:
            raise JoinError(
                f"no controller answers at {controller} ({wrong}): start one with `controller start`, "
                "or name it with --controller"
            ) from wrong
    return FabricSession(controller, job, rank, Place.told(answer), position)


def require_controller(controller: str) -> None:
    """Fail early when nobody answers.

    Raises:
        JoinError: see `join`.
    """
    try:
        _answer(httpx.get(f"{controller.rstrip('/')}/status", timeout=5))
    except (httpx.HTTPError, httpx.InvalidURL) as wrong:
        raise JoinError(
            f"no controller answers at {controller} ({wrong}): start one with `controller start`, "
            "or name it with --controller"
        ) from wrong


def _answer(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        raise JoinError(f"{response.url} is not a netfold controller") from None
    if response.status_code != 200:
        raise JoinError(f"the controller refused: {body.get('detail', response.status_code)}")
    return dict(body)
