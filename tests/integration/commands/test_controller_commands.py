"""Commands that look at a running controller, and the controller as a service."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509

from controller.cli import main
from controller.errors import ControllerError
from controller.state_file import State
from tests.conftest import ROOT, Fabric, controller, stop_fabric


def run(fabric: Fabric, *words: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(main, [*words, "--state-dir", str(fabric.state_dir)], input=stdin)
    assert result.exception is None, result.output
    return result.output


def read(fabric: Fabric, *words: str) -> Any:
    return json.loads(run(fabric, *words, "--json"))


def join(fabric: Fabric, job: str, rank: int, world_size: int = 1) -> None:
    body = {"world_size": world_size, "address": "127.0.0.1", "udp_ports": [5000 + rank], "slots": 64}
    assert fabric.call("POST", f"/v1/jobs/{job}/ranks/{rank}", body)[0] == 200


@pytest.fixture
def busy(fabric: Fabric) -> Any:
    """A fabric with a job that is ready, and one that waits."""
    join(fabric, "looked-at", 0)
    join(fabric, "waiting", 0, world_size=2)
    yield fabric
    for job in ("looked-at", "waiting"):
        fabric.call("DELETE", f"/v1/jobs/{job}/ranks/0")


def test_jobs_slots_and_events_are_what_the_api_says(busy: Fabric) -> None:
    for words, path in ((["jobs"], "jobs"), (["slots"], "slots"), (["events", "--most", "3"], "events?most=3")):
        there, said = busy.call("GET", f"/v1/{path}")[1], read(busy, *words)
        assert said.keys() == there.keys()
        if words[0] != "jobs":  # which has the time since the last heartbeats
            assert said == there
    assert [job["name"] for job in read(busy, "jobs")["jobs"]] == ["looked-at", "waiting"]


def test_people_read_tables(busy: Fabric) -> None:
    assert "127.0.0.1:5000" in run(busy, "jobs") and "waiting" in run(busy, "jobs")
    slots = run(busy, "slots")
    assert slots.startswith("128 of 1024 slots of each switch are taken") and "64..127" in slots
    last = run(busy, "events", "--most", "1")
    assert last.endswith("job waiting waits for its 2 ranks; rank 0 came first\n")
    busy.call("DELETE", "/v1/jobs/looked-at/ranks/0")
    ended = run(busy, "jobs", "--ended")
    assert "looked-at" in ended and "its ranks have left" in ended
    assert read(busy, "jobs", "--ended")["jobs"][0]["name"] == "looked-at"


def test_events_are_followed(busy: Fabric) -> None:
    command = [sys.executable, "-m", "controller", "events", "--follow", "--json", "--most", "1", "--state-dir"]
    with subprocess.Popen([*command, str(busy.state_dir)], stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["job"] == "waiting"
        join(busy, "followed", 0)
        assert [json.loads(child.stdout.readline())["kind"] for _ in range(2)] == ["job-waiting", "job-ready"]
        busy.call("DELETE", "/v1/jobs/followed/ranks/0")
        assert json.loads(child.stdout.readline())["kind"] == "job-ended"
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 130


def test_the_doctor_finds_what_waits_and_what_is_well(busy: Fabric) -> None:
    found = {each["name"]: each for each in read(busy, "doctor")}
    assert {name for name, each in found.items() if each["state"] != "ok"} == {"job waiting"}
    assert found["job waiting"]["remedy"] and found["slots"]["found"] == "128 of 1024 taken"
    assert {"state folder", "controller", "P4 program", "switch switch", "job looked-at"} <= found.keys()
    assert "ok   switch switch: netfold-v1model-256" in run(busy, "doctor")
    run(busy, "drain", "switch")
    drained = {each["name"]: each for each in read(busy, "doctor")}["switch switch"]
    run(busy, "drain", "switch", "--undo")
    assert drained["state"] == "warn" and "takes no new jobs; still on it: looked-at, waiting" in drained["found"]


def test_the_doctor_finds_that_nobody_is_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", "--state-dir", str(tmp_path), "--json"])
    assert result.exit_code == 1
    last = json.loads(result.output)[-1]
    assert (last["state"], last["found"]) == ("fail", "no controller is running (controller start)")
    result = CliRunner().invoke(main, ["doctor", "--state-dir", str(tmp_path / "absent"), "--json"])
    assert json.loads(result.output)[0]["state"] == "fail"


def test_the_shell_obeys_line_by_line(busy: Fabric) -> None:
    said = run(busy, "shell", stdin="slots\n\nget /v1/jobs/waiting\nexit\njobs\n")
    slots, _, rest = said.partition("{")
    assert slots == run(busy, "slots") and json.loads("{" + rest)["name"] == "waiting"
    assert json.loads(run(busy, "shell", "--json", stdin="slots"))["used"] == 128
    assert "switch takes no new jobs; jobs that are still on it: looked-at, waiting" in run(
        busy, "shell", stdin="drain switch\ndrain switch --undo\nend looked-at"
    )
    assert [job["name"] for job in read(busy, "jobs")["jobs"]] == ["waiting"]
    for line, says in (
        ("jbos", "'jbos' is no command here; legal: doctor, drain, end, events, jobs, slots, status ("),
        ("get /v1/jobs/nobody", "there is no job nobody"),
        ("get 'x", "has an open quote"),
    ):
        result = CliRunner().invoke(main, ["shell", "--state-dir", str(busy.state_dir)], input=f"{line}\nslots\n")
        assert says in str(result.exception) and result.output == ""


def test_a_service_says_when_it_is_ready_and_when_it_ends(tmp_path: Path) -> None:
    config = tmp_path / "controller.toml"
    config.write_text('http = "127.0.0.1:0"\nports = 2\nelements = 64\nstate-dir = "state"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        command = [sys.executable, "-m", "controller", "run", "--config", str(config)]
        with subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        ) as child:
            state, status = systemd.recv(1000).decode().splitlines()
            running = State.read(tmp_path / "state")
            assert running is not None and running.controller.pid == child.pid
            assert (state, status) == ("READY=1", f"STATUS=at {running.http}")
            switch = running.processes["switch"]
            child.send_signal(signal.SIGTERM)
            assert systemd.recv(1000) == b"STOPPING=1"
            assert child.wait(30) == 0
        assert not switch.alive and State.read(tmp_path / "state") is None


def test_the_state_folder_is_its_owners_alone_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder, before = tmp_path / "state", os.umask(0o022)
    try:
        started = controller("start", "--http", "127.0.0.1:0", "--ports", "2", "--state-dir", folder)
    finally:
        os.umask(before)
    try:
        assert started.returncode == 0, started.stderr
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert {"controller.json", "controller.log", "events.jsonl", "state.db", "switch.log"} <= modes.keys()
        assert set(modes.values()) == {0o600} and folder.stat().st_mode & 0o777 == 0o700
    finally:
        stop_fabric(folder)


def test_a_switch_is_drained_and_a_job_ended(busy: Fabric) -> None:
    try:
        left = "switch takes no new jobs; jobs that are still on it: looked-at, waiting\n"
        assert run(busy, "drain", "switch") == left
        assert "up, draining, jobs left: looked-at, waiting" in run(busy, "status")
        body = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [5000], "queue": True}
        assert busy.call("POST", "/v1/jobs/queued/ranks/0", body)[1]["queue_position"] == 1
        assert "queued, 1." in run(busy, "status") and "queued" in run(busy, "jobs")
        for job in ("looked-at", "waiting", "queued"):
            assert run(busy, "end", job) == f"job {job} has ended\n"
        assert "up, draining, empty" in run(busy, "status")
        with pytest.raises(ControllerError, match="there is no job waiting; jobs: none"):
            CliRunner().invoke(main, ["end", "waiting", "--state-dir", str(busy.state_dir)], catch_exceptions=False)
    finally:
        undone = read(busy, "drain", "switch", "--undo")
    assert undone == {"switch": "switch", "draining": False, "jobs": []}


def test_certificates_are_made(tmp_path: Path) -> None:
    made = tmp_path / "certificates"
    result = CliRunner().invoke(main, ["certificates", "--folder", str(made), "--reached-at", "192.0.2.1", "--json"])
    assert sorted(json.loads(result.output)["files"]) == sorted(path.name for path in made.iterdir())
    server = x509.load_pem_x509_certificate((made / "server.pem").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "192.0.2.1"]
    for name in ("ca.pem", "server.pem", "client.pem"):
        begins = x509.load_pem_x509_certificate((made / name).read_bytes()).not_valid_before_utc
        assert datetime.now(timezone.utc) - begins > timedelta(hours=23)  # a clock may be set back
