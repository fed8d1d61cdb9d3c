"""Joining a job: what a rank sends, how long it waits, and what ends the waiting."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hostlib.errors import JoinError
from hostlib.fabric.job_client import FabricSession, Pool, Rejoin, join
from hostlib.system.interfaces import mac_of, mtu_of
from hostlib.system.network_namespace import inside, veths
from tests.conftest import Fabric
from tests.iproute import ip

READY = {
    "state": "ready",
    "job_id": 7,
    "epoch": 9,
    "rank": 0,
    "world_size": 2,
    "pools": [{"first_slot": 0, "slots": 64}, {"first_slot": 64, "slots": 64}],
    "elements": 256,
    "levels": 1,
    "secret": "00" * 16,
    "fabric": {"address": "127.0.0.1", "port": 4793},
    "switch": "switch",
    "switch_port": 1,
    "token": "of-rank-0",
}
WAITING = {"state": "waiting", "token": "of-rank-0"}
DOWN = (503, {"detail": "the switch at 127.0.0.1:1 is gone"})
GONE = (404, {"detail": "there is no job demo; jobs: none"})


class ScriptedController(ThreadingHTTPServer):
    """Answers with what it is told, the last for ever.

    Attributes:
        heard: (method, path, body) of every request, but for the nonces.
        tokens: what each of them sent.
        nonces: of the joins.
    """

    daemon_threads = True

    def __init__(self, *answers: tuple[int, Any]) -> None:
        super().__init__(("127.0.0.1", 0), ScriptedHandler)
        self.answers = list(answers)
        self.heard: list[tuple[str, str, Any]] = []
        self.tokens: list[str | None] = []
        self.nonces: set[str] = set()
        self.silent = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class ScriptedHandler(BaseHTTPRequestHandler):
    server: ScriptedController

    def answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        if body and "nonce" in body:
            self.server.nonces.add(body.pop("nonce"))
        self.server.heard.append((self.command, self.path, body))
        self.server.tokens.append(self.headers["Authorization"])
        answers = self.server.answers
        code, payload = (200, {}) if self.command == "DELETE" else answers[0] if len(answers) == 1 else answers.pop(0)
        data = json.dumps(payload).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, format: str, *arguments: Any) -> None:
        return


@contextmanager
def answering(*answers: tuple[int, Any]) -> Iterator[ScriptedController]:
    with ScriptedController(*answers) as controller:
        thread = threading.Thread(target=controller.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield controller
        finally:
            controller.shutdown()
            thread.join()


def joined(url: str, deadline_s: float = 20.0, **options: Any) -> FabricSession:
    return join(url, "demo", 0, 2, "127.0.0.1", [5000, 5001], deadline_s, lambda: 0, **options)


def test_a_rank_learns_the_slots_of_each_of_its_pools() -> None:
    with answering((200, WAITING), (200, WAITING), (200, READY)) as controller:
        session = joined(controller.url, slots=64)
        session.leave()
        assert session.place.pools == (Pool(0, 64), Pool(64, 64))
        methods = [method for method, _, _ in controller.heard]
        assert methods == ["POST", "GET", "GET", "DELETE"]
        # On loopback no MAC is told.
        assert controller.heard[0][1:] == (
            "/v1/jobs/demo/ranks/0",
            {"world_size": 2, "address": "127.0.0.1", "udp_ports": [5000, 5001], "slots": 64, "mtu": mtu_of("lo")},
        )


def test_a_switch_that_is_down_is_an_error_unless_one_is_patient() -> None:
    with answering(DOWN) as controller, pytest.raises(JoinError, match=r"refused: the switch at .* is gone"):
        joined(controller.url)
    with answering(DOWN, (200, WAITING), GONE, (200, READY)) as controller:
        joined(controller.url, patient=True).leave()
        # The job that ended under a waiting rank is joined anew.
        assert [method for method, _, _ in controller.heard] == ["POST", "POST", "GET", "POST", "DELETE"]
        own = "Bearer of-rank-0"
        assert controller.tokens == [None, None, own, None, own] and len(controller.nonces) == 1
    with answering((409, {"detail": "another world size"})) as controller:
        with pytest.raises(JoinError, match="another world size"):
            joined(controller.url, patient=True)
        assert len(controller.heard) == 1


def test_a_rank_that_comes_back_shows_its_token() -> None:
    with answering((200, READY)) as controller:
        session = joined(controller.url, token="of-before")
        session.leave()
        assert controller.tokens == ["Bearer of-before", "Bearer of-rank-0"] and session.token == "of-rank-0"


def test_patience_ends_with_the_deadline() -> None:
    started = time.monotonic()
    with pytest.raises(JoinError, match="no controller answers at"):
        joined("http://127.0.0.1:1", deadline_s=1.2, patient=True)
    assert 0.4 < time.monotonic() - started < 3


def test_a_session_outlives_its_job_and_leaves_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostlib.fabric.job_client.HEARTBEAT_S", 0.05)
    with answering((200, READY), GONE) as controller:
        session = joined(controller.url)
        give_up = time.monotonic() + 5
        while len(controller.heard) < 4:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        session.leave()
        beat = ("POST", "/v1/jobs/demo/ranks/0/heartbeat?epoch=9", {"position": 0})
        assert controller.heard[1:4] == [beat] * 3
        assert controller.heard[-1][:2] == ("DELETE", "/v1/jobs/demo/ranks/0?epoch=9")


@pytest.mark.parametrize("url", ["127.0.0.1:9339", "ftp://127.0.0.1", "http://127.0.0.1:nine"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    started = time.monotonic()
    with pytest.raises(JoinError, match="no controller answers at"):
        joined(url, patient=True)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("answer", [DOWN, (200, WAITING)])
def test_another_thread_ends_the_waiting(answer: tuple[int, Any]) -> None:
    cancelled = threading.Event()
    with answering(answer) as controller:
        started = time.monotonic()
        threading.Timer(0.3, cancelled.set).start()
        with pytest.raises(JoinError, match="joining job demo was cancelled"):
            joined(controller.url, patient=True, again=Rejoin(cancelled))
        assert 0.3 <= time.monotonic() - started < 1.5
        # The place is given back.
        assert (controller.heard[-1][0] == "DELETE") == (answer[0] == 200)


def test_a_rank_that_joins_again_and_again_is_the_same_member() -> None:
    again = Rejoin()
    with answering((200, READY)) as controller:
        for _ in range(2):
            joined(controller.url, again=again).leave()
        assert controller.nonces == {again.nonce}
        joined(controller.url).leave()
        assert len(controller.nonces) == 2


def test_a_controller_that_hangs_does_not_keep_a_cancelled_rank() -> None:
    cancelled = threading.Event()
    with ScriptedController((200, READY)) as hanging:  # listens, and nobody accepts
        started = time.monotonic()
        threading.Timer(0.3, cancelled.set).start()
        with pytest.raises(JoinError, match="joining job demo was cancelled"):
            joined(hanging.url, again=Rejoin(cancelled))
        assert time.monotonic() - started < 2


def test_there_is_no_mac_on_loopback_and_for_nobodys_address() -> None:
    assert mac_of("127.0.0.1") is None
    assert mac_of("192.0.2.77") is None  # RFC 5737: nobody's


@pytest.mark.root
def test_the_mac_is_that_of_the_interface_with_the_address() -> None:
    with veths(2, "test") as space:
        for interface, number in (("h1", 1), ("h2", 2), ("h2", 3)):
            ip("-n", space, "addr", "add", f"192.0.2.{number}/24", "dev", interface)
        found = inside(space, lambda: [mac_of(f"192.0.2.{number}") for number in (1, 2, 3)])
        links = subprocess.run(["ip", "-n", space, "-j", "link"], capture_output=True, check=True, timeout=10).stdout
    macs = {link["ifname"]: link["address"] for link in json.loads(links)}
    assert found == [macs["h1"], macs["h2"], macs["h2"]]
    assert macs["h1"] != macs["h2"]


def test_a_rank_whose_interface_is_too_narrow_for_the_packets_is_told(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric("--elements", "2048")
    body = {"world_size": 1, "address": "192.0.2.1", "udp_ports": [5000], "mac": "06:00:00:00:00:01"}
    code, answer = fabric.call("POST", "/v1/jobs/wide/ranks/0", {**body, "mtu": 1500})
    assert (code, answer["detail"]) == (
        422,
        "rank 0 of job wide: packets of 2048 elements have 8252 bytes, and its interface sends 1500: raise the MTU of all "
        "links, or controller start with fewer --elements",
    )
    assert fabric.status()["jobs"] == []
