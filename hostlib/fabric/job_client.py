"""A rank's, or a server's, place in a job of the controller: join, heartbeat, leave."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from hostlib.errors import JoinError
from hostlib.fabric.port_check import EchoSocket, PortCheck, WrongPortError
from hostlib.protocol.openings import TensorCut
from hostlib.system.http_client import (
    API,
    ControllerAddresses,
    HttpError,
    RefusedError,
    bearer,
    decoded,
    get,
    is_standby,
    tenant_token,
    verification,
)
from hostlib.system.interfaces import interface_of, mac_of, mtu_of

DEFAULT_CONTROLLER = "http://127.0.0.1:9339"
POLL_S = 0.05
HEARTBEAT_S = 5.0
REQUEST_S = 30.0
RETRY_S = 0.5
TAKE_OVER_S = 10.0  # from a primary that dies or is stopped to its standby's first answer
START_ONE = "start one with `controller start`, or name it with --controller"
LEAVING_S = 3.0  # how long a rank that leaves asks a controller that is too busy for it, or several that none answers
TOO_MANY = 429  # the controller is asked too often: it says neither yes nor no
NONCE_BYTES = 16
LEAVE_S = 0.5  # how long a cancelled join waits until its place has been given up


@dataclass(frozen=True, slots=True)
class Pool:
    """A range of slots of the job, one for each UDP port that a rank joined with."""

    first_slot: int
    slots: int


@dataclass(frozen=True, slots=True)
class Ends:
    """Address of another member of the job.

    Attributes:
        udp_ports: one for each pool.
    """

    address: str
    udp_ports: tuple[int, ...]

    @classmethod
    def of_json(cls, answer: dict[str, Any]) -> Ends:
        return cls(answer["address"], tuple(answer["udp_ports"]))

    def end(self, pool: int) -> tuple[str, int]:
        """Where to send one pool's packets."""
        return self.address, self.udp_ports[pool]


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place as assigned by the controller; see docs/protocol.md for slots and epochs.

    Attributes:
        rank: RANK_ALL for a server.
        levels: how many switches a contribution passes, with the one where the sum is taken.
        secret: of the job's members, hexadecimal: check words follow from it.
        server: of the job; None if the switches do everything.
        workers: by rank; for the server, and for the ranks of policies `owners` and `peers`.
    """

    job_id: int
    epoch: int
    rank: int
    world_size: int
    pools: tuple[Pool, ...]
    elements: int
    levels: int
    fabric_address: str
    fabric_port: int
    switch: str
    switch_port: int
    secret: str = field(repr=False)
    server: Ends | None = None
    workers: tuple[Ends, ...] = ()

    @property
    def tensor_cut(self) -> TensorCut:
        """How tensors are cut into blocks: all ranks' sums depend on it. Pools of a job have as many slots each."""
        return TensorCut(self.elements, self.pools[0].slots, len(self.pools), self.world_size)

    @classmethod
    def of_json(cls, answer: dict[str, Any]) -> Place:
        fields = ("job_id", "epoch", "rank", "world_size", "elements", "levels", "switch", "switch_port", "secret")
        fabric = answer["fabric"]
        return cls(
            **{name: answer[name] for name in fields},
            pools=tuple(Pool(pool["first_slot"], pool["slots"]) for pool in answer["pools"]),
            fabric_address=fabric["address"],
            fabric_port=fabric["port"],
            server=Ends.of_json(answer["server"]) if answer.get("server") else None,
            workers=tuple(map(Ends.of_json, answer.get("workers", ()))),
        )


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The attempts of one process to join a later job, each a call of `join`.

    Attributes:
        cancelled: ends the wait when another thread sets it.
        nonce: tells the controller that it is the same member: an earlier attempt may have been given up after the others
            had got their places.
    """

    cancelled: threading.Event = field(default_factory=threading.Event)
    nonce: str = field(default_factory=lambda: secrets.token_hex(NONCE_BYTES), repr=False)


class FabricSession:
    """A rank's or server's membership in one job, kept alive by a thread. Training continues if the controller dies.

    Args:
        path: of the membership in the controllers' API.

    Attributes:
        token: proves who it is; a process that comes back in its place joins with it.
        echoes: what came back from the switch to each UDP port; None as long as it is not known.
    """

    def __init__(
        self, controllers: ControllerAddresses, path: str, place: Place, token: str, position: Callable[[], int]
    ) -> None:
        self.place = place
        self.token = token
        self._headers = bearer(token)
        self._controllers, self._path = controllers, path
        self._verify = verification(controllers.strictest)
        # Another session may have joined a later life of the same job.
        self._epoch = {"epoch": place.epoch}
        self._position = position
        self.echoes: list[int | None] | None = None
        self._ended, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.is_set():
            if self._woken.wait(HEARTBEAT_S):
                self._woken.clear()
            if not self._ended.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    # 404 if the job is over because a switch was restarted; a user of the fabric notices that by itself.
                    self._send_beat(self.echoes)

    def _send_beat(self, echoes: list[int | None] | None) -> httpx.Response:
        beat: dict[str, Any] = {"position": self._position()}
        if echoes is not None:
            beat["echoes"] = echoes
        return self._ask("POST", "/heartbeat", json=beat, params=self._epoch)

    def require_port(
        self, udp_ports: Sequence[int], sockets: Sequence[EchoSocket], most_s: float, cancelled: threading.Event
    ) -> None:
        """Check that this member is at its switch port, and let the controller know. See hostlib.fabric.port_check.

        Raises:
            WrongPortError: it is not, and has left the job.
        """
        check = PortCheck(self.place, udp_ports, sockets)
        try:
            right = check.run(self._report, most_s, cancelled)
        except WrongPortError:
            self.leave()
            raise
        if right:
            self.echoes = check.echoes
            self._woken.set()  # The heartbeat says it, so that nobody waits for the controller.

    def _report(self, echoes: list[int | None]) -> str | None:
        """Tell the controller what came back; returns its conclusion, None if it has none."""
        try:
            answer = self._send_beat(echoes)
            if answer.status_code == TOO_MANY or is_standby(answer):
                return "unchecked"
            return answer.json()["port"] if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError, KeyError):
            return None

    def _ask(self, method: str, below: str = "", **more: Any) -> httpx.Response:
        def send(url: str) -> httpx.Response:
            where = url + self._path + below
            return httpx.request(method, where, headers=self._headers, timeout=HEARTBEAT_S, verify=self._verify, **more)

        return self._controllers.ask(send)

    def alive(self) -> bool:
        """Whether the controller still has this place; true if no controller that knows answers."""
        try:
            answer = self._ask("GET")
            if answer.status_code == TOO_MANY or is_standby(answer):
                return True
            return answer.status_code == 200 and answer.json().get("epoch") == self.place.epoch
        except (httpx.HTTPError, ValueError):
            return True

    def leave(self) -> None:
        """Give up the place, if the controller answers. One of several may be about to take over: they are asked again."""
        self._ended.set()
        self._woken.set()
        give_up = time.monotonic() + LEAVING_S
        while not self._left() and time.monotonic() < give_up:
            time.sleep(RETRY_S)

    def _left(self) -> bool:
        """Whether there is nothing more to ask for: a controller has answered, or the only one does not."""
        try:
            answer = self._ask("DELETE", params=self._epoch)
        except httpx.HTTPError:
            return not self._controllers.several
        return answer.status_code != TOO_MANY and not is_standby(answer)


def join(
    controller: str,
    job: str,
    rank: int | None,
    world_size: int,
    address: str,
    udp_ports: Sequence[int],
    deadline_s: float,
    position: Callable[[], int],
    slots: int | None = None,
    policy: str | None = None,
    again: Rejoin | None = None,
    patient: bool = False,
    token: str | None = None,
    sockets: Sequence[EchoSocket] = (),
    admitted: Callable[[JoinError | None], None] | None = None,
) -> FabricSession:
    """Join a job and wait until every rank has joined.

    Args:
        controller: URL; or those of a primary and its standbys, separated by commas.
        rank: None for the job's server.
        address, udp_ports: source of this rank's packets; a slot pool for each port.
        position: returns the rank's position in its stream, for heartbeats.
        slots: of each pool, a power of two; None for the controller's default.
        policy: what the switches do (docs/topology.md); None for the controller's default.
        again: for a job that follows one which the switch ended; None for the first.
        patient: keep trying if no controller answers, its switch is down, or the job ended in the meantime.
        admitted: see RankContext; called before the wait for the other ranks.
        token: of this rank's earlier process, which died: its place in the job is this one's, if the job is still there.
        sockets: of `udp_ports`, by which to check that this rank is at its switch port; without any it is not checked.

    Raises:
        JoinError: no controller answers, it refused, the others did not join in time, `again` was cancelled, or this rank
            is not at its switch port.
    """
    controllers = ControllerAddresses(controller)
    body: dict[str, Any] = {"world_size": world_size, "address": address, "udp_ports": list(udp_ports)}
    rejoin = again or Rejoin()
    body["nonce"] = rejoin.nonce
    mac = mac_of(address)
    if mac is not None:
        body["mac"] = mac
    interface = interface_of(address)
    if interface is not None:
        body["mtu"] = mtu_of(interface)
    if slots is not None:
        body["slots"] = slots
    if policy is not None:
        body["policy"] = policy
    stopped = rejoin.cancelled
    joining = _Joining(
        controllers, job, rank, body, time.monotonic() + deadline_s, deadline_s, stopped, patient, token, admitted
    )
    answer = joining.place() if again is None else _unless(stopped, joining)
    session = FabricSession(controllers, joining.path, Place.of_json(answer), answer["token"], position)
    if sockets:
        try:
            session.require_port(udp_ports, sockets, deadline_s, stopped)
        except WrongPortError:
            place = session.place
            raise WrongPortError(
                f"{joining.who} is not at port {place.switch_port} of {place.switch}, where the topology has it: "
                f"nothing sent there reaches {address}:{udp_ports[0]}, or comes from it"
            ) from None
        if stopped.is_set():
            session.leave()
            raise JoinError(f"{joining.who}: joining job {job} was cancelled")
    return session


class _Again(Exception):
    """An error after which a patient rank tries again, and any rank if the controller says so."""

    def __init__(self, refused: JoinError, asked_to: bool = False) -> None:
        super().__init__()
        self.refused = refused
        self.asked_to = asked_to


@dataclass(frozen=True, slots=True)
class _Joining:
    """State of one call of `join`: its request, and its deadline."""

    controllers: ControllerAddresses
    job: str
    rank: int | None
    body: dict[str, Any]
    give_up: float
    deadline_s: float
    cancelled: threading.Event
    patient: bool
    token: str | None
    admitted: Callable[[JoinError | None], None] | None = None
    said: list[JoinError | None] = field(default_factory=list)

    @property
    def path(self) -> str:
        member = "server" if self.rank is None else f"ranks/{self.rank}"
        return f"{API}/jobs/{quote(self.job, safe='')}/{member}"

    @property
    def who(self) -> str:
        return "the server" if self.rank is None else f"rank {self.rank}"

    def place(self) -> dict[str, Any]:
        """The controller's answer once all ranks have joined, with this rank's token."""
        try:
            return self._place()
        except JoinError as error:
            self._say(error)
            raise

    def _say(self, refused: JoinError | None) -> None:
        """Say once whether this rank has its place."""
        if self.admitted is not None and not self.said:
            self.said.append(refused)
            self.admitted(refused)

    def _place(self) -> dict[str, Any]:
        patience_s = self.controllers.patience_s(max(1.0, min(self.deadline_s, REQUEST_S)))
        try:
            verify = verification(self.controllers.strictest)
        except HttpError as error:
            raise JoinError(str(error)) from error
        with httpx.Client(timeout=patience_s, verify=verify) as client:
            while True:
                try:
                    return self._once(client)
                except _Again as again:
                    if not (self.patient or again.asked_to) or time.monotonic() + RETRY_S > self.give_up:
                        raise again.refused from None
                    self._pause(client, RETRY_S, joined=False)

    def _once(self, client: httpx.Client) -> dict[str, Any]:
        client.headers.pop("Authorization", None)
        client.headers.update(bearer(self.token or tenant_token()))
        answer = self._ask(client, "POST", self.body)
        token = answer["token"]
        client.headers.update(bearer(token))
        try:
            self._say(None)
        except Exception:
            self._leave(client)
            raise
        while answer["state"] != "ready":
            if time.monotonic() > self.give_up:
                self._leave(client)
                raise JoinError(
                    f"{self.who}: not all {self.body['world_size']} ranks of job {self.job} joined "
                    f"within {self.deadline_s:.0f} s"
                )
            self._pause(client, POLL_S, joined=True)
            answer = self._ask(client, "GET")
        if self.cancelled.is_set():
            self._pause(client, 0, joined=True)
        return {**answer, "token": token}

    def _ask(self, client: httpx.Client, method: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request. Raises _Again, from a JoinError, for errors that may be temporary."""
        try:
            response = self.controllers.ask(lambda url: client.request(method, url + self.path, json=body))
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise _nobody(self.controllers, error) from error
        except httpx.HTTPError as error:
            # One of several may be about to take over.
            raise _Again(_nobody(self.controllers, error), self.controllers.several) from error
        try:
            return decoded(response)
        except RefusedError as error:
            if error.status in (TOO_MANY, 503):
                raise _Again(_refused(error), error.temporary) from error
            if error.status in (403, 404) and method == "GET":
                raise _Again(_refused(error)) from error  # That life of the job is over.
            raise _refused(error) from error
        except HttpError as error:
            raise JoinError(str(error)) from error

    def _pause(self, client: httpx.Client, seconds: float, joined: bool) -> None:
        if self.cancelled.wait(seconds):
            if joined:
                self._leave(client)
            raise JoinError(f"{self.who}: joining job {self.job} was cancelled")

    def _leave(self, client: httpx.Client) -> None:
        with contextlib.suppress(httpx.HTTPError):
            self.controllers.ask(lambda url: client.delete(url + self.path))


def _unless(cancelled: threading.Event, joining: _Joining) -> dict[str, Any]:
    """Run `joining.place()` in a thread, so that a controller that does not answer cannot block cancellation."""
    future: Future[dict[str, Any]] = Future()

    def work() -> None:
        try:
            future.set_result(joining.place())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="join", daemon=True).start()
    while not cancelled.wait(POLL_S) and not future.done():
        pass
    wait([future], LEAVE_S)
    if not future.done():
        raise JoinError(f"{joining.who}: joining job {joining.job} was cancelled")
    return future.result()


def require_controller(controller: str, admitted: Callable[[JoinError | None], None] | None = None) -> None:
    """Fail early if no controller answers. Cheap for the controller: all ranks of a job ask at once.

    Args:
        controller, admitted: see `join`; one of several controllers may be about to take over.

    Raises:
        JoinError: see `join`.
    """
    try:
        _require_controller(controller)
    except JoinError as error:
        if admitted is not None:
            admitted(error)
        raise


def _require_controller(controller: str) -> None:
    give_up = time.monotonic() + TAKE_OVER_S * ControllerAddresses(controller).several
    while True:
        try:
            get(controller, "")
            return
        except HttpError as error:
            if time.monotonic() + RETRY_S > give_up:
                if isinstance(error, RefusedError):
                    raise _refused(error) from error
                raise JoinError(f"{error}: {START_ONE}") from error
        time.sleep(RETRY_S)


def _nobody(controllers: ControllerAddresses, error: Exception) -> JoinError:
    return JoinError(f"no controller answers at {controllers} ({error}): {START_ONE}")


def _refused(error: RefusedError) -> JoinError:
    return JoinError(f"the controller refused: {error}")
